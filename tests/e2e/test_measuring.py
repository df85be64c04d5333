"""What plan, bench and eval measure, and the memory they take for it."""

import json
import os
import re
import subprocess
import time
from pathlib import Path

import pytest

MIB = 1 << 20


@pytest.fixture(scope="session")
def model(run, build):
    """6 layers of 32 experts, random."""
    path = build / "models" / "synth-measured.gguf"
    path.parent.mkdir(exist_ok=True)
    run("synth", "small-qwen3-moe", path, "--force")
    return path


def peak_of(sluice, *args):
    """Most bytes that the program held, and its document. (wait4's figure counts what this process held at the fork.)"""
    peak = 0
    with subprocess.Popen([str(a) for a in (sluice, *args, "--json")], stdout=subprocess.PIPE) as p:
        while p.poll() is None:
            status = Path(f"/proc/{p.pid}/status").read_text()
            high = re.search(r"^Name:\tsluice\n(?:.*\n)*VmHWM:\s+(\d+) kB", status)
            peak = max(peak, int(high[1]) * 1024 if high else 0)
            time.sleep(0.002)
        document = json.load(p.stdout)
    assert p.returncode == 0 and peak > 0
    return peak, document


def least_of(run, *args):
    return json.loads(run("info", *args, "--json").stdout)["least_memory"]


# ---- plan -------------------------------------------------------------------------------------------------------------------------------------


def test_plan_measures_within_its_budget(run, sluice, model):
    least = least_of(run, model, "--ctx", 256)
    for budget in (least + 2 * MIB, 100 * MIB):
        peak, plan = peak_of(sluice, "plan", model, "--ctx", 256, "--memory", budget)
        assert peak <= budget
        machine = plan["machine"]
        assert machine["memory_read_bytes_per_second"] > 0 and machine["disk_read_bytes_per_second"] > 0
    assert machine["computing_measured"]
    small = run("plan", model, "--ctx", 256, "--memory", least + 2 * MIB).stdout
    assert "within the caches" in small


def test_plan_is_not_killed_in_a_small_memory_group(run, sluice, model):
    """A group whose limit is below what measuring takes where there is room."""
    group = Path(f"/sys/fs/cgroup/memory/sluice-test-{os.getpid()}")
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(64 * MIB))
    except OSError:
        pytest.skip("no memory cgroup (v1) can be made here")
    try:
        script = 'echo $$ > "$1/cgroup.procs"; exec "$2" plan "$3" --ctx 256 --json'
        done = subprocess.run(["sh", "-c", script, "sh", group, sluice, model], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["model"]["memory"] <= 64 * MIB
    finally:
        group.rmdir()


def test_plan_times_computing(run, model):
    machine = json.loads(run("plan", model, "--ctx", 256, "--json").stdout)["machine"]
    assert machine["computing_measured"] and machine["dense_seconds_per_token"] > 0 and machine["expert_seconds_per_token"] > 0
    exact = json.loads(run("plan", model, "--ctx", 256, "--numeric", "exact", "--json").stdout)["machine"]
    assert exact["computing_measured"] and exact["expert_seconds_per_token"] > 0


def test_plan_reads_the_experts_that_do_not_fit(run, model):
    small = json.loads(run("plan", model, "--ctx", 256, "--memory", "100M", "--max-slots", 60, "--json").stdout)
    assert small["machine"]["reading_measured"]
    for forecast in small["forecasts"]:
        assert 0 < forecast["hit_rate"] < 1 and forecast["disk_seconds_per_token"] > 0 and forecast["decode_tokens_per_second"] > 0
    whole = json.loads(run("plan", model, "--ctx", 256, "--memory", "2G", "--json").stdout)
    assert not whole["machine"]["reading_measured"] and whole["machine"]["disk_read_bytes_per_second"] > 0
    machine, forecast = whole["machine"], whole["forecasts"][0]
    assert forecast["hit_rate"] == 1 and forecast["disk_seconds_per_token"] == 0
    assert 1 / forecast["decode_tokens_per_second"] == pytest.approx(machine["dense_seconds_per_token"] + machine["expert_seconds_per_token"])


def test_plan_of_a_dense_model_has_no_experts_time(run, stories_gguf):
    plan = json.loads(run("plan", stories_gguf, "--json").stdout)
    assert plan["machine"]["computing_measured"] and plan["machine"]["expert_seconds_per_token"] == 0
    seconds = plan["machine"]["dense_seconds_per_token"]
    assert plan["forecasts"][0]["decode_tokens_per_second"] == pytest.approx(1 / seconds)


def test_plan_calls_a_bound_a_bound(run, model):
    """A device's computing is not timed."""
    done = run("plan", model, "--ctx", 256, "--device", "soft", check=False)
    if done.returncode != 0:
        pytest.skip(done.stderr)
    assert "at most" in done.stdout and "upper bound" in done.stdout


# ---- budgets of commands that take memory themselves --------------------------------------------------------------------------------------------


def refused(run, *args):
    """The budget and the least that a message names."""
    done = run(*args, check=False)
    named = re.search(r"memory budget of (\d+) bytes .* at least (\d+) bytes \(", done.stderr)
    assert done.returncode == 1 and named, done.stderr
    return int(named[1]), int(named[2])


def test_bench_names_the_budget_it_was_given_and_a_least_that_works(run, model):
    options = ["--tokens", 8, "--warmup", 120, "--prefill", 16, "--repeat", 2]
    given, least = refused(run, "bench", model, *options, "--memory", "12M")
    assert given == 12 * MIB
    doc = json.loads(run("bench", model, *options, "--memory", least, "--json").stdout)
    assert doc["memory"]["budget"] == doc["model"]["memory"] == least and doc["memory"]["process_peak"] <= least
    assert refused(run, "bench", model, *options, "--memory", least - 5 * MIB)[0] == least - 5 * MIB


def test_eval_names_the_budget_it_was_given_and_a_least_that_works(run, model, tmp_path):
    (tmp_path / "text.txt").write_text("Some words, and some more of them. " * 4)
    args = ["eval", model, tmp_path / "text.txt", "--window", 64]
    given, least = refused(run, *args, "--memory", "12M")
    assert given == 12 * MIB
    doc = json.loads(run(*args, "--memory", least, "--json").stdout)
    assert doc["figures"]["memory_budget"] == least


# ---- bench in a short context -------------------------------------------------------------------------------------------------------------------


def test_bench_with_defaults_fits_a_short_context(run, stories_gguf):
    done = run("bench", stories_gguf, "--json")
    doc = json.loads(done.stdout)
    decode = doc["decode"]
    assert doc["model"]["model_context"] == 512 == doc["prefill"]["tokens"]
    assert 0 < decode["warmup"] + 3 * decode["tokens"] <= 512 and decode["tokens"] > 50
    assert f"a context of 512 tokens: {decode['tokens']} are decoded 3 times, after {decode['warmup']}" in done.stderr


@pytest.mark.parametrize("options, tokens, warmup", [
    (["--tokens", 100], 100, 212),
    (["--warmup", 200], 104, 200),
    (["--repeat", 1], 128, 256),
    (["--repeat", 2, "--tokens", 256], 256, 0),
])
def test_bench_fits_only_what_was_not_given(run, stories_gguf, options, tokens, warmup):
    decode = json.loads(run("bench", stories_gguf, "--prefill", 0, "--json", *options).stdout)["decode"]
    assert (decode["tokens"], decode["warmup"]) == (tokens, warmup)


def test_bench_that_was_told_too_much_says_so(run, stories_gguf):
    done = run("bench", stories_gguf, "--tokens", 200, "--repeat", 3, check=False)
    assert done.returncode == 1 and "600 tokens are to be decoded, the context holds 512" in done.stderr
