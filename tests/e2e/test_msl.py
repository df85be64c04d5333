"""sluice msl: Metal kernels checked and run on a machine without a GPU, as their author would."""

import shutil

import numpy as np
import pytest

if not any(shutil.which(name) for name in ["clang++"] + [f"clang++-{v}" for v in range(14, 25)]):
    pytest.skip("no clang++ on PATH", allow_module_level=True)

SOURCE = """#include <metal_stdlib>
using namespace metal;
constant int mode [[function_constant(0)]];
struct P { uint n; float scale; };
#ifndef BIAS
#define BIAS 0
#endif
kernel void scale(device const float *x [[buffer(0)]], device half *y [[buffer(1)]], constant P &p [[buffer(2)]],
                  threadgroup float *t [[threadgroup(0)]], uint i [[thread_position_in_grid]],
                  uint l [[thread_position_in_threadgroup]]) {
    t[l] = x[i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (i < p.n) y[i] = half(t[l ^ 1] * p.scale + mode + BIAS);
}
kernel void beyond(device float *y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    y[i + 1] = i;
}
kernel void races(device float *y [[buffer(0)]], uint l [[thread_index_in_threadgroup]]) {
    threadgroup float t[64];
    t[l] = l;
    y[l] = t[63 - l];
}
"""


@pytest.fixture
def metal(tmp_path):
    path = tmp_path / "k.metal"
    path.write_text(SOURCE)
    return path


def test_check_lists_kernels_and_arguments(run, metal):
    text = run("msl", "check", metal).stdout
    assert [line.split(":")[0] for line in text.splitlines() if not line.startswith(" ")] == ["scale", "beyond", "races"]
    scale = text[:text.index("beyond:")]
    assert [line.split()[:3] for line in scale.splitlines()[1:]] == [["buffer", "0", "x"], ["buffer", "1", "y"], ["buffer", "2", "p"], ["threadgroup", "0", "t"]]
    assert "written, elements of 2 bytes" in scale and "reference, elements of 8 bytes" in scale


def test_run_from_and_to_files(run, metal, tmp_path):
    x = np.arange(64, dtype=np.float32) * 0.5
    np.save(tmp_path / "x.npy", x)
    y = tmp_path / "y.npy"
    scale = np.float32(2).view(np.uint32)
    run("msl", "run", metal, "scale", "-a", f"0={tmp_path}/x.npy", "-a", "1=zeros:half:64", "-a", f"2=uint:50,{scale}", "--threadgroup", "0=128", "-g", 2,
        "--constant", "0=int:7", "-D", "BIAS=0.25", "-o", f"1={y}")
    want = (x.reshape(-1, 2)[:, ::-1].reshape(-1) * 2 + 7.25).astype(np.float16)
    want[50:] = 0
    got = np.load(y)
    assert got.dtype == np.float16 and (got == want).all()


def test_generated_inputs_are_printed(run, metal):
    done = run("msl", "run", metal, "beyond", "-a", "0=zeros:float:33")
    assert done.stdout == "0 y (float, 33): 0 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 ...\n"


@pytest.mark.parametrize("options, words", [
    (["beyond", "-a", "0=zeros:float:32"], ["k.metal:16: out of bounds: write of 4 bytes", "index 32", "thread (31,0,0)"]),
    (["races", "-a", "0=zeros:float:64", "-t", "64"], ["k.metal:21: ", "threadgroup variable t"]),
    (["beyond"], ["0", "y"]),
    (["nothing", "-a", "0=zeros:float:64"], ["nothing"]),
    ([], ["3 kernels"]),
    (["beyond", "-a", "0=zeros:float:32", "-t", "2000"], ["2000"]),
    (["beyond", "-a", "5=zeros:float:32"], ["slot"]),
])
def test_faults_are_told_in_a_line(run, metal, options, words):
    done = run("msl", "run", metal, *options, check=False)
    assert done.returncode == 1 and done.stdout == ""
    for word in words:
        assert word in done.stderr.splitlines()[-1]


def test_a_fault_is_one_line(run, metal):
    done = run("msl", "run", metal, "beyond", "-a", "0=zeros:float:32", check=False)
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("options", [["-a", "x"], ["-a", "99=zeros:float:1"], ["-a", "0=zeros:double:1"], ["-a", "0=uchar:256"], ["-a", "0=int:1,,2"], ["-a", "0="],
                                     ["-t", "0"], ["-t", "1,2,3,4"], ["-g", "x"], ["--threadgroup", "0=0"], ["-t", "-5"], ["--constant", "=int:5"],
                                     ["--constant", "0=int:"], ["--constant", "0=ushort:65536"], ["--constant", "65536=int:1"], ["--constant", "0=bool:maybe"],
                                     ["-o", "x"], ["-o", "0=x.npy"], ["more"]])
def test_wrong_options_are_usage_errors(run, metal, options):
    done = run("msl", "run", metal, "beyond", *options, check=False)
    assert done.returncode == 2 and done.stderr.startswith("sluice: ")


def test_source_with_an_error(run, tmp_path):
    path = tmp_path / "k.metal"
    path.write_text("kernel void f(device float *y [[buffer(0)]]) {\n  y[0] = undefined_thing;\n}\n")
    done = run("msl", "check", path, check=False)
    assert done.returncode == 1 and done.stderr == f"sluice: {path}:2: use of undeclared identifier 'undefined_thing'\n"
    path.write_text("kernel void f(device float *y [[buffer(0)]]) {\n  y[0] = one;\n  y[0] = two;\n}\n")
    done = run("msl", "check", path, check=False)
    assert [line.split("metal:")[1][:3] for line in done.stderr.splitlines()] == ["2: ", "3: "]


TEXTURE = "kernel void blur(metal::texture2d<float> t [[texture(0)]], device float *y [[buffer(0)]]) {\n}\n"


@pytest.mark.parametrize("text, status, words", [
    (TEXTURE + "kernel void f(device float *y [[buffer(0)]]) {}\n", 0, "kernel 'blur' is left out: {path}:1: "),
    (TEXTURE, 1, "{path}:1: kernel blur: textures are not supported"),
    ("", 0, "{path}: no kernel that could run"),
    ("kernel void f(device int *y [[buffer(0)]]) {\n  threadgroup int big[20000];\n  y[0] = big[y[1]];\n}\n", 1, "f: 80000 bytes of threadgroup memory"),
    ("#include \"nowhere.h\"\n", 1, "{path}:1: included file nowhere.h"),
    ("kernel void f() {}\n\0", 1, "{path}:1: source contains a NUL byte"),
    ("#define A B\n#define B A\nkernel void f(device int *y [[buffer(0)]]) { y[0] = A; }\n", 1, "{path}:3: use of undeclared identifier 'A'"),
    ("#define M0 1+1\n" + "".join(f"#define M{i} M{i - 1} M{i - 1}\n" for i in range(1, 64)) + "int x = M63;\n", 1, "{path}:65: macros expand to more than"),
    ("// x\n" * (4 << 20), 1, "{path}: 20971520 bytes, at most"),
    ("kernel void f(device int *y [[buffer(0)]]) { y[0] = " + "(" * 9999 + "1" + ")" * 9999 + "; }\n", 1, "{path}:1: bracket nesting level"),
    ("#include \"k.metal\"\n", 1, "{path}:1: #include is nested too deep"),
])
def test_what_a_file_lacks_is_told_in_a_line(run, tmp_path, text, status, words):
    path = tmp_path / "k.metal"
    path.write_text(text)
    done = run("msl", "check", path, check=False)
    assert done.returncode == status
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("sluice: " + words.format(path=path))


def test_files_beside_the_source_are_found(run, tmp_path, monkeypatch):
    (tmp_path / "h.h").write_text("inline float two() { return 2; }\n")
    (tmp_path / "k.metal").write_text("#include \"h.h\"\nkernel void f(device float *y [[buffer(0)]]) { y[0] = two(); }\n")
    monkeypatch.chdir(tmp_path)
    for path in [tmp_path / "k.metal", "./k.metal", "k.metal"]:
        assert run("msl", "run", path, "-a", "0=zeros:float:1", "-t", "1").stdout == "0 y (float, 1): 2\n"


def test_arguments_in_a_struct(run, tmp_path):
    path = tmp_path / "k.metal"
    path.write_text("""struct Shape { float scale; uint n; };
template <typename T> struct view { device T *p; constant Shape &shape; };
struct A { device float *y [[buffer(2)]]; view<const float> x; threadgroup float *t; };
const uint lane [[thread_index_in_threadgroup]];
kernel void f(A a, constant uint &m [[buffer(5)]], uint i [[thread_position_in_grid]]) {
    a.t[lane] = i < a.x.shape.n ? a.x.p[i] : 0;
    threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    a.y[i] = a.t[lane ^ 1] * a.x.shape.scale + m;
}
""")
    shape = np.array([np.float32(2).view(np.uint32), 50], dtype=np.uint32)
    np.save(tmp_path / "shape.npy", shape)
    run("msl", "run", path, "-a", "0=iota:float:64", "-a", f"1={tmp_path}/shape.npy", "-a", "2=zeros:float:64", "-a", "5=uint:1", "--threadgroup", "0=128",
        "-g", 2, "-o", f"2={tmp_path}/y.npy")
    x = np.arange(64, dtype=np.float32)
    x[50:] = 0
    assert (np.load(tmp_path / "y.npy") == x.reshape(-1, 2)[:, ::-1].reshape(-1) * 2 + 1).all()


def test_a_constant_without_value_is_told(run, metal):
    options = ["msl", "run", metal, "beyond", "-a", "0=zeros:float:33", "-v"]
    assert "constant 0 'mode' is not given" in run(*options).stderr
    assert "is not given" not in run(*options, "--constant", "0=int:1").stderr


def test_a_machine_without_what_is_needed(run, metal, tmp_path, monkeypatch):
    with monkeypatch.context() as m:
        m.setenv("XDG_CACHE_HOME", str(metal))
        done = run("msl", "run", metal, "beyond", "-a", "0=zeros:float:33")
        assert "compiled kernels are not kept" in done.stderr
    with monkeypatch.context() as m:
        m.setenv("TMPDIR", "/nowhere/at/all")
        m.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        done = run("msl", "check", metal, check=False)
        assert done.returncode == 1 and len(done.stderr.splitlines()) == 1 and "/nowhere/at/all" in done.stderr
    monkeypatch.setenv("PATH", str(tmp_path))
    done = run("msl", "check", metal, check=False)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1 and "no clang++ on PATH" in done.stderr
    broken = tmp_path / "clang++"
    broken.write_text("#!/bin/sh\necho boom >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    done = run("msl", "check", metal, check=False)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1 and "the compiler failed: boom" in done.stderr


def test_damaged_npy(run, metal, tmp_path):
    good = tmp_path / "x.npy"
    np.save(good, np.zeros(33, dtype=np.float32))
    data = good.read_bytes()
    path = tmp_path / "bad.npy"
    for bad in [data[:5], data[:100], data[:-1], data + b"\0", data.replace(b"<f4", b"<c8"), data.replace(b"(33,)", b"(34,)"),
                data.replace(b"False", b" True")]:
        path.write_bytes(bad)
        done = run("msl", "run", metal, "beyond", "-a", f"0={path}", check=False)
        assert done.returncode == 2 and "bad.npy" in done.stderr
