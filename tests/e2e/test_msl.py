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


@pytest.mark.parametrize("options", [["-a", "x"], ["-a", "99=zeros:float:1"], ["-a", "0=zeros:double:1"], ["-a", "0=uchar:256"], ["-a", "0=int:1,,2"],
                                     ["-t", "0"], ["-t", "1,2,3,4"], ["-g", "x"], ["--threadgroup", "0=0"]])
def test_wrong_options_are_usage_errors(run, metal, options):
    done = run("msl", "run", metal, "beyond", *options, check=False)
    assert done.returncode == 2 and done.stderr.startswith("sluice: ")


def test_source_with_an_error(run, tmp_path):
    path = tmp_path / "k.metal"
    path.write_text("kernel void f(device float *y [[buffer(0)]]) {\n  y[0] = undefined_thing;\n}\n")
    done = run("msl", "check", path, check=False)
    assert done.returncode == 1 and "k.metal:2: " in done.stderr.splitlines()[-1] and "undefined_thing" in done.stderr


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
