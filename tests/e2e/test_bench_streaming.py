"""The benchmark of streaming, with a tiny model: it measures all cells, goes on where it stopped, and draws."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "bench/streaming.py"


def quick(sluice, there, *options):
    return subprocess.run([sys.executable, SCRIPT, "--sluice", sluice, "--dir", there, "--quick", *options], capture_output=True, text=True, timeout=300)


def test_quick_run_measures_every_cell_and_draws_them(sluice, tmp_path):
    done = quick(sluice, tmp_path)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "streaming.jsonl").read_text().splitlines()]
    assert sorted(r["profile"] for r in rows) == ["flat", "local", "uniform"]
    for r in rows:
        assert r["warm"]["tokens_per_second"] > 0 and 0 < r["warm"]["hit_rate"] < 1 and r["warm"]["bytes_per_token"] > 0
        assert r["warm"]["share_of_causal_bound"] > 0 and r["warm"]["share_of_ideal_bound"] > 0
    table = [line for line in done.stdout.splitlines() if line.startswith("| ") and "GiB |" in line and "tokens/s" not in line]
    assert len(table) == 6
    drawing = ElementTree.fromstring((tmp_path / "streaming.svg").read_text())
    lines = [e for e in drawing.iter() if e.tag.endswith("polyline")]
    assert len(lines) == 6 and len([e for e in lines if e.get("stroke-dasharray")]) == 3
    assert not list(tmp_path.glob("*.gguf")), "models are removed"


def test_an_axis_has_numbers_however_alike_the_speeds_are():
    sys.path.insert(0, str(SCRIPT.parent))
    import curve
    for low, high in ((2.9, 3.0), (0.031, 0.052), (11, 45), (1, 900)):
        drawing = ElementTree.fromstring(curve.draw("t", [("s", "flat", "ours", [(1, low), (2, high)])]))
        side = [float(e.text) for e in drawing.iter() if e.get("text-anchor") == "end"]
        assert 3 <= len(side) <= 25 and side == sorted(set(side))
        assert min(side) >= low / 1.31 and max(side) <= high * 1.31


def test_results_so_far_are_not_measured_again(tmp_path):
    sys.path.insert(0, str(SCRIPT.parent))
    import streaming

    path = tmp_path / "streaming.jsonl"
    key = {"profile": "flat", "budget": 2.0, "round": 0, "engine": "sluice"}
    streaming.Results(path, False).add(key, {"warm": {}})
    with open(path, "a") as f:
        f.write('{"profile": "fl')  # killed while writing
    results = streaming.Results(path, False)
    assert results.have(key) and not results.have(key | {"round": 1})
    assert not streaming.Results(path, True).rows


def test_bench_says_how_near_prefill_and_decode_come_to_the_disk(run, tmp_path):
    model = tmp_path / "m.gguf"
    run("synth", "small-qwen3-moe", model, "--skew", "local")
    bench = ["bench", model, "--ids", f"{model}.ids.json", "--ctx", 512, "--prefill", 256, "--warmup", 64, "--tokens", 64, "--repeat", 2, "--max-slots", 40]
    for prefetch in ("off", "router"):
        got = json.loads(run(*bench, "--prefetch", prefetch, "--json").stdout)
        for w in got["decode"]["repetitions"]:
            assert w["causal_bound_seconds"] > 0 and 0 < w["share_of_causal_bound"] and 0 < w["share_of_ideal_bound"]
            assert (w["read_ahead"] > 0) == (prefetch == "router") and w["read_ahead_used"] <= w["read_ahead"]
        assert got["prefill"]["share_of_bound"] > 0 and got["prefill"]["bytes_read"] > 0
    text = run(*bench, "--prefetch", "router").stdout
    assert "read ahead per token" in text and "causal bound" in text and "longer of disk and compute" in text
    quiet = json.loads(run(*bench, "--no-replay", "--json").stdout)
    assert quiet["prefill"]["share_of_bound"] is None and quiet["decode"]["share_of_causal_bound"] is None


def test_sequences_side_by_side_share_reads(run, tmp_path):
    model = tmp_path / "m.gguf"
    run("synth", "small-qwen3-moe", model, "--skew", "local")
    bench = ["bench", model, "--ids", f"{model}.ids.json", "--ctx", 256, "--prefill", 0, "--warmup", 64, "--tokens", 64, "--repeat", 1, "--max-slots", 60, "--json"]
    one, four = (json.loads(run(*bench, "--sequences", n).stdout)["decode"] for n in (1, 4))
    assert one["sequences"] == 1 and four["sequences"] == 4
    asked = [w["hits"] + w["misses"] for d in (one, four) for w in d["repetitions"]]
    assert asked[0] < asked[1] < 4 * asked[0], "an expert that several sequences want is asked for once"
    done = run("bench", model, "--sequences", 65, check=False)
    assert done.returncode == 2 and "--sequences" in done.stderr
