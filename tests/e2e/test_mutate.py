"""tools/mutate_kernels.py: which places it breaks and how. Running the mutants takes too long for a test."""

import importlib.util

import pytest

SOURCE = """// a comment that can give way: a[i] < b[i]
#include "x.h"
template <typename T> inline T f(device const T *a [[buffer(0)]], uint i) {
    threadgroup float t[32], u[N];
    float own[4] = {1, 2, 3, 4};
    t[i] = a[i * stride + j] + own[2];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint k = 0; k < n; k++)
        if (k >= m && vec<float, 2>(k).x > 1)
            return a[g.y];
    threadgroup_barrier(mem_flags::mem_threadgroup);
}
"""


@pytest.fixture(scope="module")
def tool(repo):
    spec = importlib.util.spec_from_file_location("mutate_kernels", repo / "tools/mutate_kernels.py")
    module = importlib.util.module_from_spec(spec)
    import sys
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def mutants(tool, tmp_path):
    path = tmp_path / "k.metal"
    path.write_text(SOURCE)
    return list(tool.find_mutants(path, ["barrier", "bound", "index"]))


def test_places(mutants):
    found = [(m.kind, m.line, SOURCE[m.begin:m.end], m.text) for m in mutants]
    assert found == [
        ("barrier", 7, "threadgroup_barrier(mem_flags::mem_threadgroup);", ";"),
        ("barrier", 11, "threadgroup_barrier(mem_flags::mem_threadgroup);", ";"),
        ("bound", 8, "<", "<="), ("bound", 9, ">=", ">"), ("bound", 9, ">", ">="),
        ("index", 6, "i", "(i) + 1"), ("index", 6, "i * stride + j", "j * stride + i"), ("index", 6, "2", "(2) + 1"), ("index", 10, "g.y", "(g.y) + 1"),
    ]
    assert [m.occurrence for m in mutants[:2]] == [1, 2]


def test_a_mutant_is_as_long_as_the_text(tool, mutants):
    for m in mutants:
        new = tool.mutate(SOURCE, m)
        assert len(new) == len(SOURCE) and new != SOURCE and new.count("\n") == SOURCE.count("\n")
        assert m.text in new


def test_no_room_is_no_mutant(tool, mutants):
    bound = next(m for m in mutants if m.kind == "bound")
    without = SOURCE.replace("// a comment that can give way: a[i] < b[i]", " " * 43)
    assert len(without) == len(SOURCE) and tool.mutate(without, bound) is None


def test_headers_are_covered_by_who_includes_them(tool, tmp_path):
    for name in ["test_kernels_matvec", "test_kernels_rows", "test_kernels_moe"]:
        (tmp_path / name).write_text("")
    assert [p.name for p in tool.tests_of(tmp_path, "matvec.metal")] == ["test_kernels_matvec"]
    assert "test_kernels_matvec" in [p.name for p in tool.tests_of(tmp_path, "blocks.h")]
