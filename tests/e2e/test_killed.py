"""SIGKILL at random moments: what was there before stays whole, and the same command afterwards gives what it gives undisturbed."""

import hashlib
import os
import random
import shutil
import signal
import subprocess
import time

import pytest

from conftest import skip_loudly

KILLS = 20
SEED = int(os.environ.get("SLUICE_TEST_SEED", time.time_ns() % 100000))
TEXT = "Once upon a time there was a model that was larger than memory, and it was read from a disk. " * 20
KERNEL = """
#include <metal_stdlib>
using namespace metal;
kernel void twice(device float *x [[buffer(0)]], uint i [[thread_position_in_grid]]) { x[i] *= 2; }
"""


def contents(path):
    """Of a file or of a directory's files."""
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    return {str(p.relative_to(path)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def took(command, **options):
    begin = time.monotonic()
    subprocess.run(command, check=True, capture_output=True, timeout=300, **options)
    return time.monotonic() - begin


def killed(command, seconds, **options):
    """Whether it was killed before its end."""
    p = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)
    try:
        p.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        p.kill()
    return p.wait() == -signal.SIGKILL


def kill_again_and_again(command, duration, whole, **options):
    """whole(): fails the test where something is not. Returns how often it was killed before its end."""
    print(f"seed {SEED}: SLUICE_TEST_SEED sets it")
    draw = random.Random(SEED)
    count = 0
    for i in range(KILLS):
        count += killed(command, draw.uniform(0, duration), **options)
        whole(i)
    assert count >= KILLS // 4, f"{count} of {KILLS} were killed before their end"


def command(sluice, *args):
    return [str(a) for a in (sluice, *args)]


@pytest.fixture(scope="module")
def model(run, tmp_path_factory):
    path = tmp_path_factory.mktemp("killed") / "m.gguf"
    run("synth", "small-qwen3-moe", path, "--skew", "local")
    return path


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text"
    path.write_text(TEXT)
    return path


@pytest.mark.parametrize("format", ["q4_0-gguf", "mlx4"])
def test_synth_over_another_checkpoint(sluice, tmp_path, format):
    out, other = tmp_path / "there" / "m", tmp_path / "other" / "m"
    if format.endswith("gguf"):
        out, other = out.with_suffix(".gguf"), other.with_suffix(".gguf")
    for p in (out, other):
        p.parent.mkdir()
    make = ["synth", "small-qwen3-moe", "--format", format, "--experts", 64, "--force"]
    took(command(sluice, *make, "--seed", 1, out))
    duration = took(command(sluice, *make, "--seed", 2, other))
    before, after = contents(out), contents(other)
    assert before != after

    def whole(i):
        now = {k: v for k, v in contents(out).items() if not k.endswith((".part", ".partial"))}
        assert now in (before, after), f"kill {i}: neither the old checkpoint nor the new one: {sorted(now)}"

    kill_again_and_again(command(sluice, *make, "--seed", 2, out), duration, whole)
    took(command(sluice, *make, "--seed", 2, out))
    assert contents(out) == after, "and nothing is left beside it"
    assert not list(out.parent.rglob("*.part*"))


def test_pack_goes_on_from_wherever_it_was(sluice, run, model, tmp_path):
    out, undisturbed = tmp_path / "p", tmp_path / "undisturbed"
    duration = took(command(sluice, "pack", model, undisturbed))
    before = contents(model)

    def whole(i):
        assert contents(model) == before
        if (out / "pack.json").exists():
            run("pack", "--verify", out)
            assert contents(out) == contents(undisturbed)
            shutil.rmtree(out)

    kill_again_and_again(command(sluice, "pack", model, out), duration * 0.8, whole)
    took(command(sluice, "pack", model, out))
    assert contents(out) == contents(undisturbed)


@pytest.mark.parametrize("what", ["--record", "--routing"])
def test_records_of_eval(sluice, model, text, tmp_path, what):
    out, other = tmp_path / "there", tmp_path / "other"
    took(command(sluice, "eval", model, text, "--tokens", 50, what, out))
    before = contents(out)
    duration = took(command(sluice, "eval", model, text, what, other))
    after = contents(other)
    assert before != after

    def whole(i):
        assert contents(out) in (before, after), f"kill {i}"

    kill_again_and_again(command(sluice, "eval", model, text, what, out), duration, whole)
    took(command(sluice, "eval", model, text, what, out))
    assert contents(out) == after


def test_the_cache_of_compiled_kernels(sluice, run, tmp_path):
    if not shutil.which("clang++"):
        skip_loudly("no clang++: the soft device compiles with it")
    kernel = tmp_path / "k.metal"
    kernel.write_text(KERNEL)
    env = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    go = command(sluice, "msl", "run", kernel, "twice", "--arg", "0=iota:float:32")
    done = subprocess.run(go, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    shutil.rmtree(tmp_path / "cache")
    duration = took(go, env=env)
    kept = [p for p in (tmp_path / "cache").rglob("*") if p.is_file()]
    assert kept, "nothing was kept"
    shutil.rmtree(tmp_path / "cache")

    def whole(i):
        if i % 4 == 3:  # with what there is now
            again = subprocess.run(go, env=env, capture_output=True, text=True, timeout=120)
            assert (again.returncode, again.stdout) == (0, done.stdout), again.stderr
            shutil.rmtree(tmp_path / "cache")

    kill_again_and_again(go, duration, whole, env=env)
    again = subprocess.run(go, env=env, capture_output=True, text=True, timeout=120)
    assert (again.returncode, again.stdout) == (0, done.stdout), again.stderr
    assert "warning" not in again.stderr


def test_the_list_of_hot_experts(sluice, run, model, tmp_path):
    """Killed at any time, it is the list of an earlier run, from which the next one starts without a complaint."""
    hot = tmp_path / "hot"
    go = command(sluice, "run", model, "There was once", "--raw", "-n", 60, "--ignore-eos", "--hot-list", hot)
    expected = run(*go[1:], text=False, stdin=b"").stdout
    duration = took(go)
    there = hot.read_bytes()

    def whole(i):
        assert len(hot.read_bytes()) == len(there)
        if i % 5 == 4:
            done = run(*go[1:], text=False, stdin=b"")
            assert done.stdout == expected and b"warning" not in done.stderr, done.stderr

    kill_again_and_again(go, duration, whole)
    assert run(*go[1:], text=False, stdin=b"").stdout == expected
