"""--mirror: experts come from two directories with the same files. Tokens stay; what is no copy is refused; a disk that fails is dropped."""

import json
import os
import shutil

import pytest


@pytest.fixture(scope="module")
def disks(run, tmp_path_factory):
    """A model, and a directory with its copy."""
    base = tmp_path_factory.mktemp("mirror")
    (base / "second").mkdir()
    model = base / "m.gguf"
    run("synth", "small-qwen3-moe", model, "--layers", 3, "--experts", 32)
    shutil.copy(model, base / "second")
    return model, base / "second"


ASK = ("hello", "--raw", "-n", 12, "--ignore-eos", "--max-slots", 10)


def lines_of(done, word="mirror:"):
    return [line for line in done.stderr.splitlines() if word in line and "own disk" not in line and "faults are injected" not in line]


@pytest.mark.parametrize("how", [(), ("--reader", "pread"), ("--buffered",), ("--reader", "pread", "--buffered"), ("--prefetch", "router")], ids=" ".join)
def test_tokens_stay_and_both_disks_are_read(run, disks, how):
    model, second = disks
    alone = run("run", model, *ASK, *how, "--json")
    both = run("run", model, *ASK, *how, "--json", "--mirror", second)
    a, b = json.loads(alone.stdout), json.loads(both.stdout)
    assert a["text"] == b["text"] and not lines_of(both)
    bench = json.loads(run("bench", model, *how, "--mirror", second, "--max-slots", 10, "--tokens", 8, "--warmup", 8, "--repeat", 1, "--prefill", 16, "--json").stdout)
    own, copy = bench["decode"]["repetitions"][0]["disks"]  # of so small experts all may come from the one that is found faster
    assert own["bytes"] + copy["bytes"] > 0 and own["path"] == str(model) and copy["path"] == str(second)
    assert not own["dropped"] and not copy["dropped"] and own["bytes_per_second"] > 0
    assert all(d["bytes"] > 0 for d in b["figures"]["disks"])
    assert bench["decode"]["share_of_causal_bound"] > 0
    assert bench["model"]["mirror"] == str(second) and "2 disks" in bench["model"]["reader"]


def test_what_is_said(run, disks):
    model, second = disks
    assert f"copy in {second}" in run("info", model, "--mirror", second).stdout
    assert "own disk" in run("info", model, "--mirror", second).stderr
    assert f"from {second} at" in run("bench", model, "--mirror", second, "--max-slots", 10, "--tokens", 4, "--warmup", 2, "--repeat", 1, "--prefill", 0).stdout
    figures = run("run", model, *ASK, "--timing", "--mirror", second).stderr
    assert "disks " in figures and f"from {second} at" in figures
    assert run("plan", model, "--mirror", second, "--memory", "64M").returncode == 0


def test_every_kind_of_checkpoint_has_its_copy(run, disks, golden, tmp_path):
    model, _ = disks
    run("pack", model, tmp_path / "pack")
    hf = golden / "arch/qwen2_moe"
    for source, name in [(tmp_path / "pack", "p2"), (hf, "h2")]:
        copy = tmp_path / name
        shutil.copytree(source, copy)
        ask = ("bench", source, "--max-slots", 4, "--tokens", 4, "--warmup", 2, "--repeat", 1, "--prefill", 0, "--json")
        only = {**os.environ, "SLUICE_FAULTS": "gone=0,disk=1"}  # all comes from the copy
        got = json.loads(run(*ask, "--mirror", copy, env=only).stdout)["decode"]["repetitions"][0]
        assert got["disks"][0]["dropped"] and got["disks"][1]["bytes"] > 0 and got["misses"] > 0


def test_doctor_measures_both_disks(run, disks, tmp_path):
    model, second = disks
    found = json.loads(run("doctor", model, "--mirror", second, "--json", env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)}).stdout)
    for disk in ("disk", "mirror"):
        assert found[disk]["chosen"]["bytes_per_second"] > 0 and found[disk]["stored"].startswith(str(tmp_path))
    assert json.loads(run("doctor", model, "--json", env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)}).stdout)["mirror"] is None


def refused(run, model, directory, *words):
    done = run("run", model, *ASK, "--mirror", directory, check=False)
    assert done.returncode == 1 and done.stdout == "" and done.stderr.count("\n") == 1, done.stderr
    for word in ("mirror: ", *words):
        assert word in done.stderr, done.stderr


def test_what_is_no_copy_is_refused(run, disks, tmp_path):
    model, second = disks
    refused(run, model, tmp_path / "nowhere", "nowhere", "not a directory")
    refused(run, model, model, "not a directory")
    refused(run, model, tmp_path, "m.gguf", "No such file")
    refused(run, model, model.parent, "own file")
    other = tmp_path / "m.gguf"
    run("synth", "small-qwen3-moe", other, "--layers", 3, "--experts", 32, "--seed", 9)
    refused(run, model, tmp_path, str(other), "byte ", "no copy of")
    data = model.read_bytes()
    other.write_bytes(data[:-4096])
    refused(run, model, tmp_path, str(other), f"{len(data) - 4096} bytes, {len(data)} expected")
    other.write_bytes(data[:-4096] + bytes(4096))  # as a copy that was interrupted leaves it
    refused(run, model, tmp_path, str(other), "byte ", "no copy of")


def test_a_dense_model_says_that_it_is_no_use(run, disks, golden):
    assert "is dense" in run("info", golden / "arch/llama", "--mirror", disks[1]).stderr


@pytest.mark.parametrize("disk", [1, 2])
@pytest.mark.parametrize("fault", ["gone=6", "eio=0.2,seed=3"])
@pytest.mark.parametrize("reader", ["uring", "pread"])
def test_a_disk_that_fails_is_dropped_with_one_line(run, disks, disk, fault, reader):
    model, second = disks
    ask = ("run", model, *ASK, "--reader", reader, "--json")
    want = json.loads(run(*ask).stdout)["text"]
    done = run(*ask, "--mirror", second, env={**os.environ, "SLUICE_FAULTS": f"{fault},disk={disk}"})
    assert json.loads(done.stdout)["text"] == want
    said = lines_of(done)
    good = second if disk == 1 else model
    assert len(said) == 1 and f"read from {good} alone" in said[0] and (str(model) if disk == 1 else str(second)) in said[0], done.stderr


def test_reads_go_where_they_are_done_sooner(run, disks):
    """The second disk brings 8 MB per second: it is asked for little."""
    model, second = disks
    ask = ("bench", model, "--mirror", second, "--max-slots", 10, "--tokens", 24, "--warmup", 24, "--repeat", 1, "--prefill", 0, "--prefetch", "off", "--no-replay", "--json")
    done = run(*ask, env={**os.environ, "SLUICE_FAULTS": "pace=8,disk=2"})
    own, copy = json.loads(done.stdout)["decode"]["repetitions"][0]["disks"]
    assert own["bytes"] > copy["bytes"] and own["bytes_per_second"] > copy["bytes_per_second"]
