"""tools/mutate_kernels.py: which places it breaks and how, and that its records fit the kernels. A sample of mutants is run."""

import re
import subprocess
import sys

import mutants as places
import pytest

SOURCE = """// a comment: a[i] < b[i]
#include "x.h"
template <typename T> inline T f(device const T *a [[buffer(0)]], thread float (&r)[N][2], uint i) {
    threadgroup float t[32], u[N];
    float own[4] = {1, 2, 3, 4};
    t[i] = a[i * stride + own[j < 2 ? j : 1]] + own[2];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint k = 0; k < n; k++)
        if (k >= m && vec<float, 2>(k).x > 1)
            return load<(A > 1 ? 4 : 1)>(a[g.y], 2);
    threadgroup_barrier(mem_flags::mem_threadgroup);
}
"""


@pytest.fixture
def found(tmp_path):
    path = tmp_path / "k.metal"
    path.write_text(SOURCE)
    return list(places.find_mutants(path, places.KINDS))


def test_places(found):
    got = [(m.kind, m.line, SOURCE[m.begin:m.end], m.texts) for m in found]
    inner = "j < 2 ? j : 1"
    assert got == [
        ("barrier", 7, "threadgroup_barrier(mem_flags::mem_threadgroup);", (";",)),
        ("barrier", 11, "threadgroup_barrier(mem_flags::mem_threadgroup);", (";",)),
        ("bound", 6, "<", ("<=",)), ("bound", 8, "<", ("<=",)), ("bound", 9, ">=", (">",)), ("bound", 9, ">", (">=",)),
        ("bound", 10, ">", (">=",)),
        ("index", 6, "i", ("(i) + 1",)),
        ("index", 6, f"i * stride + own[{inner}]", (f"j * stride + own[i < 2 ? i : 1]", f"(i * stride + own[{inner}]) + 1")),
        ("index", 6, inner, (f"({inner}) + 1",)), ("index", 6, "2", ("(2) + 1",)), ("index", 10, "g.y", ("(g.y) + 1",)),
    ]
    assert [m.occurrence for m in found[:2]] == [1, 2]


def test_all_mutants_stand_in_one_text_within_each_other(found):
    text = places.with_all(SOURCE, [(i + 1, m, 0) for i, m in enumerate(found)])
    lines = text.splitlines()
    assert len(lines) == len(SOURCE.splitlines())  # reports name the lines of the kernel
    assert lines[6].strip() == "{ if (!sl_is(1)) threadgroup_barrier(mem_flags::mem_threadgroup); }"
    assert "for (uint k = 0; k < sl_lt<4>() < n; k++)" in lines[7]
    assert "(sl_is(7) ? load<(A >= 1 ? 4 : 1)>(a[g.y], 2) : load<(A > 1 ? 4 : 1)>(a[(sl_is(12) ? " in lines[9]
    assert "(sl_is(10) ? (decltype((j < 2 ? j : 1) + 0))((j < 2 ? j : 1) + 1) : (j < sl_lt<3>() < 2 ? j : 1))" in lines[5]
    for i in range(len(found)):
        assert len(re.findall(rf"sl_is\({i + 1}\)|sl_l[te]<{i + 1}>|sl_g[te]<{i + 1}>", text)) == 1, found[i]


def test_names_that_change_places_change_the_number():
    assert places.swapped("i * stride + k") == "k * stride + i"
    assert places.swapped("f(i) * stride") is None  # one name and a function
    for same in ("row * N + 8", "A + row * N + i", "(d + i) * 8", "A + B - 1", "2 * a * b + 1"):
        assert places.swapped(same) is None, same
    for other in ("a - b", "a << b", "a + 2 * b", "a / N + b"):
        assert places.swapped(other), other


def test_one_mutant_alone(found):
    for m in found:
        text = places.with_one(SOURCE, m, 0)
        assert text != SOURCE and text[:m.begin] == SOURCE[:m.begin] and text.endswith(SOURCE[m.end:])


def test_proofs_and_records_fit_the_kernels(repo):
    """A proof whose line is no more proves nothing."""
    done = subprocess.run([sys.executable, repo / "tools/mutate_kernels.py", "--check"], capture_output=True, text=True)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_lost_proof_is_named(repo, tmp_path):
    script = (repo / "tools/mutate_kernels.py").read_text()
    proofs = tmp_path / "proofs.txt"
    proofs.write_text("moe.metal | bound | if (there is no < such line) | 1 | because\n")
    script = script.replace('REPO / "tools/mutants_equivalent.txt"', f'Path("{proofs}")')
    script = script.replace("Path(__file__).resolve().parent)", f'"{repo}/tools")').replace("Path(__file__).resolve().parents[1]", f'Path("{repo}")')
    (tmp_path / "tool.py").write_text(script)
    done = subprocess.run([sys.executable, tmp_path / "tool.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "no such place: moe.metal | bound | if (there is no < such line) | 1" in done.stdout, done.stdout


# Of each kind one or two, in a file whose program is quick: KIND, part of the line, what the report must say.
SAMPLE = [
    ("barrier", "group_pairs", r"barrier 1: threadgroup_barrier", r"uninitialised|race"),
    ("bound", "", r"bound 1: for \(uint e = 0; e < size; e\+\+\) \{", r"out of bounds: read .* threadgroup memory 0 \(keys\)"),
    ("bound", "", r"bound 1: if \(row >= uint\(step_head", r"out of bounds: read .* buffer 3 \(done\)"),
    ("index", "", r"index 1: keys\[e\] = key", r"out of bounds: write .* threadgroup memory 0 \(keys\)"),
]


def test_a_sample_of_mutants_is_killed(repo, build):
    if not (build / "test_kernels_moe").exists():
        pytest.skip(f"no test_kernels_moe in {build}")
    match = "|".join(f"(?:{line})" for _, _, line, _ in SAMPLE)
    done = subprocess.run([sys.executable, repo / "tools/mutate_kernels.py", build, "--file", "moe.metal", "--match", match],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    for kind, _, line, why in SAMPLE:
        hit = [x for x in done.stdout.splitlines() if re.search(f"^killed .*{line}.*(?:{why})", x)]
        assert hit, f"{kind} {line}: {done.stdout}"
