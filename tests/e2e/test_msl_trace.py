"""docs/metal.md shows what `sluice msl trace` prints, and the first program against gpu.h does what it says."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import skip_loudly

RESULT = "result    10 14 18 22 26"


def clang():
    return any(shutil.which(name) for name in ["clang++", *(f"clang++-{v}" for v in range(14, 25))])


def without_measures(text):
    """What differs between machines: the device, the size of its code, the time."""
    text = re.sub(r"^device .*$", "device", text, flags=re.M)
    text = re.sub(r"^library   \d+ bytes", "library   N bytes", text, flags=re.M)
    return re.sub(r"^time      \d+\.\d us", "time      T us", text, flags=re.M)


@pytest.fixture
def trace(run, tmp_path, monkeypatch):
    if not clang():
        skip_loudly("no clang++: the soft device has no compiler")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return lambda *options: run("msl", "trace", *options).stdout


def test_the_documented_trace_is_what_is_printed(trace, repo):
    page = (repo / "docs/metal.md").read_text()
    block = re.search(r"```\n(source .*?)```", page, re.S).group(1)
    assert without_measures(block) == without_measures(trace())


def test_trace_ends_with_five_numbers_without_checks_too(trace, tmp_path):
    for _ in range(2):  # compiled, then from the cache
        assert trace("--no-check").splitlines()[-1] == RESULT
    assert len(list(Path(tmp_path).rglob("*.slgpu"))) == 1


def test_trace_on_the_stand_in_for_metal(trace, build, monkeypatch):
    library = build / "libmetal_standin.so"
    if not library.exists():
        skip_loudly(f"no stand-in for Metal at {library}")
    monkeypatch.setenv("SLUICE_METAL_LIBRARY", str(library))
    lines = trace("--device", "metal").splitlines()
    assert lines[-1] == RESULT
    assert any(line.startswith("device    metal: ") for line in lines)


def test_trace_without_a_device_says_what_is_missing(run, monkeypatch):
    monkeypatch.setenv("SLUICE_CUDA_LIBRARY", "/no/such/library")
    for device, why in [("cuda", "no NVIDIA driver here"), ("soft:0", "0 threads"), ("abacus", "not known")]:
        done = run("msl", "trace", "--device", device, check=False)
        assert done.returncode == 1 and why in done.stderr


def test_trace_without_a_compiler_says_so(run, tmp_path):
    environment = {**os.environ, "PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    done = run("msl", "trace", check=False, env=environment)
    assert done.returncode == 1 and "no clang++ on PATH" in done.stderr


# ---- examples/gpu_add.c --------------------------------------------------------------------------------------------------------------------


def test_the_example_adds(trace, build, tmp_path):
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "SLUICE_DEBUG": "3"}
    done = subprocess.run([build / "example_gpu_add", "soft:2"], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"999 \+ 999 = 1998, in \d+\.\d us\n", done.stdout)
    for line in ["pipeline add: ", "16 x 1 x 1 threadgroups of 64 x 1 x 1 threads", "slot 1: 4000 bytes at 4000 of a buffer of 8000, written"]:
        assert line in done.stderr


def test_the_example_is_one_page_and_says_what_is_missing(build, repo):
    assert len((repo / "examples/gpu_add.c").read_text().splitlines()) <= 60
    environment = {**os.environ, "SLUICE_CUDA_LIBRARY": "/no/such/library"}
    done = subprocess.run([build / "example_gpu_add", "cuda"], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stderr.startswith("no NVIDIA driver here: SLUICE_CUDA_LIBRARY: /no/such/library: cannot open")
