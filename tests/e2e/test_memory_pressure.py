"""--memory auto: the budget follows what the machine has left, and slots are given back when others need memory. Answers stay the same."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import skip_loudly

GROUP = Path("/sys/fs/cgroup/memory")
# Takes its memory over a second or two: nobody can react to what is there at once.
SLOWLY = ["--numeric", "exact", "--threads", 1]  # so that there is time for what is to happen meanwhile
HOG = """
import sys, time
held = []
for _ in range(int(sys.argv[1]) // 8):
    held.append(b"x" * (8 << 20))
    time.sleep(0.06)
time.sleep(60)
"""


@pytest.fixture(scope="module")
def wide(run, tmp_path_factory):
    """About 300 MiB of experts: several slabs."""
    path = tmp_path_factory.mktemp("pressure") / "wide.gguf"
    run("synth", "small-qwen3-moe", path, "--layers", 12, "--experts", 512)
    return path


def machine(root, available_mib, total_mib=16000):
    """A recorded machine; the file is replaced at once, as a reader may look at any time."""
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    (root / "proc/self/cgroup").write_text("0::/\n")
    new = root / "proc/meminfo.new"
    new.write_text(f"MemTotal: {total_mib * 1024} kB\nMemAvailable: {available_mib * 1024} kB\n")
    new.rename(root / "proc/meminfo")


def test_auto_budget_leaves_what_others_hold(run, wide, tmp_path, monkeypatch):
    monkeypatch.setenv("SLUICE_SYSTEM_ROOT", str(tmp_path))
    budgets = []
    for available in (15000, 4000, 1000):
        machine(tmp_path, available)
        said = run("info", wide, "--json").stdout
        budgets.append(int(re.search(r'"memory": (\d+)', said).group(1)) >> 20)
    assert budgets[0] == 12000 and 3000 < budgets[1] < 4000 and budgets[2] < 1000


def test_where_the_least_is_all_there_is_info_and_plan_name_the_slots_that_run_has(run, tmp_path, monkeypatch):
    # the chunk of a prompt is then smaller than usual: without that nothing would be left for experts
    model = tmp_path / "resident.gguf"
    run("synth", "small-qwen3-moe", model, "--format", "f32-gguf", "--experts", 4, "--layers", 60)
    least = json.loads(run("info", model, "--json").stdout)["least_memory"] >> 20
    machine(tmp_path, least + 2, least + 8)
    monkeypatch.setenv("SLUICE_SYSTEM_ROOT", str(tmp_path))
    info = json.loads(run("info", model, "--json").stdout)
    plan = json.loads(run("plan", model, "--json").stdout)["model"]
    ran = run("run", model, "--raw", "a", "-n", 1, "--timing").stderr
    assert info["slots"] == plan["slots"] == int(re.search(r"slots for (\d+) of", ran).group(1)) > 0
    model.unlink()


def test_slots_are_given_back_under_pressure_and_the_answer_is_the_same(run, sluice, wide, tmp_path, monkeypatch):
    prompt = "".join(chr(33 + i * 37 % 90) for i in range(600))
    args = ["run", wide, prompt, "--raw", "-n", 800, "--ignore-eos", "--ctx", 2048, "--timing", *SLOWLY]
    expected = run(*args, "--memory", "1G")
    assert "given back" not in expected.stderr
    monkeypatch.setenv("SLUICE_SYSTEM_ROOT", str(tmp_path))
    machine(tmp_path, 12000)
    with open(tmp_path / "said", "w") as log, subprocess.Popen([str(x) for x in (sluice, *args)], stdout=subprocess.PIPE, stderr=log, text=True) as p:
        first = p.stdout.read(1)  # the prompt has been through all layers
        machine(tmp_path, 10)
        rest = p.stdout.read()
        p.wait(timeout=120)
    said = (tmp_path / "said").read_text()
    assert p.returncode == 0, said
    assert first + rest == expected.stdout
    assert "of expert slots given back under memory pressure" in said, said
    assert "are left to the system or the cgroup" in said


def test_who_is_asked_nothing_gives_back_too(sluice, wide, tmp_path, monkeypatch):
    monkeypatch.setenv("SLUICE_SYSTEM_ROOT", str(tmp_path))
    machine(tmp_path, 12000)
    said = tmp_path / "said"
    with open(said, "w") as log, subprocess.Popen([str(x) for x in (sluice, "chat", wide, "--ctx", 512)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=log, text=True) as p:
        p.stdin.write("Say hello.\n")
        p.stdin.flush()
        end = time.monotonic() + 60
        while "the context is full" not in said.read_text():  # what random weights say has no end before
            assert p.poll() is None and time.monotonic() < end, said.read_text()
            time.sleep(0.1)
        machine(tmp_path, 10)
        while "are left to the system or the cgroup: experts give back" not in said.read_text():
            assert p.poll() is None and time.monotonic() < end, said.read_text()
            time.sleep(0.1)
        p.stdin.close()
        p.wait(timeout=60)


def test_nobody_is_killed_when_a_neighbour_in_the_cgroup_takes_memory(sluice, wide, tmp_path):
    if os.geteuid() != 0 or not (GROUP / "memory.limit_in_bytes").exists():
        skip_loudly("no cgroup v1 that a test may make")
    group = GROUP / f"sluice-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as e:
        skip_loudly(f"no cgroup can be made: {e}")

    def enter():
        (group / "cgroup.procs").write_text(str(os.getpid()))

    processes = []

    def start(command, **options):
        processes.append(subprocess.Popen([str(x) for x in command], preexec_fn=enter, stdout=subprocess.PIPE, text=True, **options))
        return processes[-1]

    try:
        (group / "memory.limit_in_bytes").write_text(str(700 << 20))
        prompt = "".join(chr(33 + i * 37 % 90) for i in range(600))
        with open(tmp_path / "said", "w") as said:
            p = start([sluice, "run", wide, prompt, "--raw", "-n", 1400, "--ignore-eos", "--ctx", 2048, "--timing", *SLOWLY], stderr=said)
            first = p.stdout.read(1)
            held = int((group / "memory.usage_in_bytes").read_text())
            hog = start([sys.executable, "-c", HOG, ((700 << 20) - held >> 20) + 60])
            rest = p.stdout.read()
            assert p.wait(timeout=120) == 0, (tmp_path / "said").read_text()
        assert len(first + rest) > 0
        assert hog.poll() is None, "the neighbour was killed"
        assert "given back under memory pressure" in (tmp_path / "said").read_text()
    finally:
        for p in processes:
            p.kill()
            p.wait()
        for _ in range(50):
            try:
                group.rmdir()
                break
            except OSError:
                time.sleep(0.1)
