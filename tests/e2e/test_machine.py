"""What doctor keeps of the machine: plan goes by it, on this machine only; damage is said and costs a measurement; a kill leaves nothing that hurts."""

import json
import os
import shutil
import signal
import subprocess

import pytest

from conftest import preloaded, skip_loudly


def environment(cache, **more):
    return {**os.environ, "XDG_CACHE_HOME": str(cache), **{k: str(v) for k, v in more.items()}}


@pytest.fixture(scope="module")
def model(run, tmp_path_factory):
    path = tmp_path_factory.mktemp("machine") / "m.gguf"
    run("synth", "small-qwen3-moe", path, "--layers", 2, "--experts", 8)
    return path


@pytest.fixture(scope="module")
def measured(run, tmp_path_factory):
    """A cache folder with what doctor kept, and what it said; not to be changed."""
    base = tmp_path_factory.mktemp("measured")
    (base / "dir").mkdir()
    found = json.loads(run("doctor", base / "dir", "--json", env=environment(base / "cache")).stdout)
    assert list((base / "dir").iterdir()) == []
    return base / "cache", found


@pytest.fixture
def kept(measured, tmp_path):
    """A copy of it, and the machine's file in it."""
    shutil.copytree(measured[0], tmp_path / "cache")
    (file,) = (tmp_path / "cache/sluice").glob("machine-*.json")
    return file


@pytest.fixture
def plan(run, model):
    def call(file, *args, **options):
        options.setdefault("env", environment(file.parents[1]))
        return run("plan", model, "--ctx", 256, *args, **options)

    return call


def memory_of(done):
    machine = json.loads(done.stdout)["machine"]
    return machine["memory_kept_since"], machine["memory_read_bytes_per_second"]


def test_what_was_measured_is_kept_and_plan_goes_by_it(measured, kept, plan):
    machine = measured[1]["machine"]
    assert machine["stored"].endswith(f"sluice/{kept.name}") and sorted(p.name.split("-")[0] for p in kept.parent.iterdir()) == ["disk", "machine"]
    assert machine["cpu"] and machine["cores"] == len(os.sched_getaffinity(0)) and machine["memory_rates"][-1]["threads"] == machine["cores"]
    document = json.loads(kept.read_text())
    assert [(m["threads"], pytest.approx(m["bytes_per_second"])) for m in document["memory_read"]] == [(m["threads"], m["bytes_per_second"]) for m in machine["memory_rates"]]
    since, rate = memory_of(plan(kept, "--json"))
    assert since == document["measured"] > 1.7e9 and rate == pytest.approx(machine["memory_read"])
    for i, entry in enumerate(document["memory_read"]):  # as many threads as are asked for
        entry["bytes_per_second"] = (i + 1) * 1.25e12
        since, _ = memory_of(plan(kept, "--json", "--threads", entry["threads"]))
        assert since == document["measured"]
    document["measured"] = 1_700_000_000
    kept.write_text(json.dumps(document))
    done = plan(kept)
    assert f"memory reads {1250 * len(document['memory_read']):.1f} GB/s" in done.stdout and "(measured by doctor on 2023-11-14)" in done.stdout
    assert done.stderr == ""
    since, rate = memory_of(plan(kept, "--json", "--threads", machine["cores"] + 1))
    assert since is None and 0 < rate < 1e12, "measured anew: nothing is known of so many threads"


def recorded(tmp_path, cpu, kib):
    root = tmp_path / f"root-{cpu}-{kib}"
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/cpuinfo").write_text(f"model name\t: {cpu}\n")
    (root / "proc/meminfo").write_text(f"MemTotal: {kib} kB\nMemAvailable: {kib // 2} kB\n")
    return root


def test_on_another_machine_it_is_measured_anew(kept, plan, tmp_path):
    cpu = json.loads(kept.read_text())["machine"].rsplit(",", 2)[0]
    gib = int(json.loads(kept.read_text())["machine"].split()[-2])
    for root, known in [(recorded(tmp_path, cpu, gib << 20), True), (recorded(tmp_path, "another", gib << 20), False),
                        (recorded(tmp_path, cpu, (gib + 4) << 20), False)]:
        done = plan(kept, "--json", env=environment(kept.parents[1], SLUICE_SYSTEM_ROOT=root))
        assert (memory_of(done)[0] is not None) == known and done.stderr == "", root
    if len(os.sched_getaffinity(0)) == 1:
        skip_loudly("one core: fewer cannot be tried")
    one = {min(os.sched_getaffinity(0))}
    done = plan(kept, "--json", preexec_fn=lambda: os.sched_setaffinity(0, one))
    assert memory_of(done)[0] is None and done.stderr == ""


@pytest.mark.parametrize("damage", [
    lambda t: "", lambda t: "{", lambda t: "[]", lambda t: t[: len(t) // 2], lambda t: t.replace('"sluice_machine": 1', '"sluice_machine": 7'),
    lambda t: t.replace("cores", "c\\u001bres"), lambda t: t.replace('"bytes_per_second": ', '"bytes_per_second": 1e99, "x": '), lambda t: t + " " * 70000,
], ids=["empty", "open", "list", "half", "version", "another", "rate", "long"])
def test_damage_is_said_in_one_line_and_measured_anew(kept, plan, damage):
    kept.write_text(damage(kept.read_text()))
    done = plan(kept, "--json")
    since, rate = memory_of(done)
    assert since is None and rate > 0
    assert done.stderr.count("\n") == 1 and str(kept) in done.stderr and "measured anew" in done.stderr and "\x1b" not in done.stderr


def test_what_is_no_file_is_not_waited_for(kept, plan):
    kept.unlink()
    os.mkfifo(kept)
    done = plan(kept, "--json")
    assert memory_of(done)[0] is None and done.stderr.count("\n") == 1 and "plain file" in done.stderr


def test_two_directories_are_two_disks(run, tmp_path):
    second = "/dev/shm"
    if not os.path.isdir(second) or shutil.disk_usage(second).free < 400 << 20 or os.stat(second).st_dev == tmp_path.stat().st_dev:
        skip_loudly("no room in /dev/shm for a second disk")
    done = run("doctor", tmp_path, "--mirror", second, "--json", env=environment(tmp_path / "cache"))
    found = json.loads(done.stdout)
    a, b = found["disk"], found["mirror"]
    assert a["stored"] != b["stored"] and a["mount"] != b["mount"] == second and b["in_memory"]
    assert a["finished"] and b["finished"] and a["chosen"]["bytes_per_second"] > 0 and b["chosen"]["bytes_per_second"] > 0
    assert sorted(p.name.split("-")[0] for p in (tmp_path / "cache/sluice").iterdir()) == ["disk", "disk", "machine"]
    assert any("lies in memory" in w for w in found["warnings"]), "what hurts on the second disk is said, too"


def test_a_second_directory_that_is_none_is_refused_at_once(run, tmp_path):
    done = run("doctor", tmp_path, "--mirror", tmp_path / "nowhere", check=False, env=environment(tmp_path / "cache"))
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "nowhere" in done.stderr and not (tmp_path / "cache").exists()


def test_where_nothing_can_be_kept_it_is_said(run, tmp_path):
    (tmp_path / "file").write_text("")
    found = json.loads(run("doctor", tmp_path, "--json", env=environment(tmp_path / "file")).stdout)
    warnings = [w for w in found["warnings"] if "not kept" in w]
    assert len(warnings) == 2 and all(str(tmp_path / "file") in w for w in warnings)
    assert found["machine"]["stored"] == found["disk"]["stored"] == ""


def doctor_killed(sluice, kill_at, tmp_path, name, at):
    env = environment(tmp_path / "cache", **preloaded(kill_at), KILL_AT=at, KILL_NAME=name, ASAN_OPTIONS="verify_asan_link_order=0")
    (tmp_path / "dir").mkdir(exist_ok=True)
    done = subprocess.run([sluice, "doctor", tmp_path / "dir"], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGKILL, (name, at, done)
    assert list((tmp_path / "dir").iterdir()) == []


def test_a_doctor_killed_at_any_point_of_keeping_leaves_nothing_that_hurts(sluice, run, kill_at, plan, tmp_path):
    """Truncate, write (half of it), flush, rename: each is the last that happens. The disk's result comes seconds later and by the same
    way: two points do."""
    cache = tmp_path / "cache/sluice"
    for name, points in [("machine-", (1, 2, 3, 4)), ("disk-", (2, 4))]:
        for at in points:
            doctor_killed(sluice, kill_at, tmp_path, name, at)
            left = sorted(p.name for p in cache.iterdir() if name in p.name)
            assert len(left) == 1 and left[0].endswith(".sluice-part"), "one file, however many were killed"
            done = plan(cache / "x", "--json")
            assert done.stderr == "" and (memory_of(done)[0] is None) == (name == "machine-")
    run("doctor", tmp_path / "dir", env=environment(tmp_path / "cache"))
    assert sorted(p.name.split("-")[0] + p.suffix for p in cache.iterdir()) == ["disk.json", "machine.json"], "what was left was taken over"


def test_a_hot_list_killed_at_any_point_is_the_old_one_or_none(sluice, run, model, kill_at, tmp_path):
    (tmp_path / "h").mkdir()
    hot = tmp_path / "h/hot"
    ask = ("run", model, "hello", "--raw", "-n", 4, "--ignore-eos", "--max-slots", 13, "--hot-list", hot)
    expected = run(*ask[:-2]).stdout
    for round in ("none before", "one before"):
        for at in range(1, 5):
            env = environment(tmp_path / "cache", **preloaded(kill_at), KILL_AT=at, KILL_NAME="/h/hot", ASAN_OPTIONS="verify_asan_link_order=0")
            before = hot.read_bytes() if hot.exists() else None
            done = subprocess.run([str(a) for a in (sluice, *ask)], env=env, capture_output=True, text=True, timeout=60)
            assert done.returncode == -signal.SIGKILL and done.stderr == "", (round, at, done)
            assert [p.name for p in (tmp_path / "h").iterdir() if p != hot] == ["hot.sluice-part"], (round, at)
            assert (hot.read_bytes() if hot.exists() else None) == before
        done = run(*ask)
        assert done.stdout == expected and done.stderr == "" and [p.name for p in (tmp_path / "h").iterdir()] == ["hot"]
