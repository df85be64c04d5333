#!/usr/bin/env python3
"""Sluice and llama.cpp (mmap) on the same GGUF under the same memory limits, in one go: speed against memory, for routing of three kinds.

    python3 bench/streaming.py --sluice build/sluice --dir build/bench [--profiles uniform,flat,local] [--budgets 2,3,4,6] [--rounds 2]

For each profile it writes a checkpoint with `sluice synth SHAPE --skew PROFILE` (8.6 GB as it stands) and deletes it again. A cell is a profile and a memory limit, a cgroup (v1; root) that
holds one process at a time. Both engines are teacher-forced on the same recorded ids. Sluice decodes 384: the first 128 are the row "cold", the last, after 256, "warm". llama.cpp gets the same
unless the time runs out (--peer-seconds for each of cold, warm-up and warm): the table says how many tokens it got to. Rounds go over all cells, engines alternate; medians are printed.

Results are appended to DIR/streaming.jsonl as they come: started again, the script goes on where it was interrupted (--restart forgets them). Needs PyPI's llama-cpp-python in the interpreter
that runs it (--no-peer does without). --quick takes a tiny model, no limits and no peer: a test of the script, not of speed.
"""

import argparse
import json
import random
import statistics
import sys
from contextlib import nullcontext
from pathlib import Path

import curve
from common import GIB, Group, cgroups_work, forget, peer, phase, run

COLD, WARMUP, WARM = 128, 256, 128


def model_of(a, profile):
    """The checkpoint and the ids to force, written if need be."""
    path = a.dir / f"{a.shape}-{profile}.gguf"
    ids = Path(f"{path}.ids.json")
    if not path.exists() or not ids.exists():
        print(f"writing {path}", flush=True)
        run([a.sluice, "synth", a.shape, path, "--skew", profile, "--force"])
        if profile == "uniform":
            random.seed(20261130)
            top = 512 if a.quick else 150000
            ids.write_text(json.dumps([random.randrange(256, top) for _ in range(4096)]))
    return path, ids


def sluice_cell(a, model, ids, limit):
    """Windows of 128 tokens: 0..127 are cold, 256..383 warm."""
    command = [a.sluice, "bench", model, "--json", "--ids", ids, "--threads", a.threads, "--prefill", 0, "--warmup", 0, "--tokens", COLD, "--repeat", 3]
    group = Group(limit) if limit else nullcontext()
    with group as g:
        got = json.loads(run(command + (["--memory", limit] if limit else ["--max-slots", 40]), g))
        peak = g.peak() if g else None
    windows = got["decode"]["repetitions"]
    row = {"engine": "sluice", "peak": peak, "slots": got["model"]["slots"]}
    for name, w in (("cold", windows[0]), ("warm", windows[2])):
        row[name] = {k: w[k] for k in ("tokens_per_second", "hit_rate", "share_of_causal_bound", "share_of_ideal_bound")}
        row[name] |= {"tokens": COLD, "bytes_per_token": w["bytes_read"] / COLD}
    return row


def peer_cell(a, model, ids, limit):
    with Group(limit) as g:
        got = peer(model, ids, [phase(COLD, a.peer_seconds), phase(WARMUP - COLD, a.peer_seconds), phase(WARM, a.peer_seconds)], a.threads, g, repack=False)["phases"]
        return {"engine": "llama.cpp", "peak": g.peak(), "cold": got[0], "warm": got[2] | {"after": got[0]["tokens"] + got[1]["tokens"]}}


class Results:
    """One line per cell, engine and round; what is there is not measured again."""

    def __init__(self, path, restart):
        self.path = path
        if restart and path.exists():
            path.unlink()
        self.rows = []
        for line in path.read_text().splitlines() if path.exists() else []:
            try:
                self.rows.append(json.loads(line))
            except ValueError:
                print(f"{path}: a line that is not JSON is left out (interrupted while writing?)", file=sys.stderr)

    def have(self, key):
        return any(all(r.get(k) == v for k, v in key.items()) for r in self.rows)

    def add(self, key, row):
        self.rows.append(key | row)
        with open(self.path, "a") as f:
            f.write(json.dumps(self.rows[-1]) + "\n")

    def of(self, **key):
        return [r for r in self.rows if all(r.get(k) == v for k, v in key.items())]


def measure(a, results, profile, model, ids, round_):
    engines = [("sluice", sluice_cell)] + ([] if a.no_peer else [("llama.cpp", peer_cell)])
    for budget in a.budgets:
        for name, cell in engines:
            key = {"shape": a.shape, "profile": profile, "budget": budget, "round": round_, "engine": name}
            if results.have(key):
                continue
            forget(model)
            results.add(key, cell(a, model, ids, int(budget * GIB)))
            row = results.rows[-1]
            print(f"  round {round_ + 1} {profile} {budget:g} GiB {name}: cold {row['cold']['tokens_per_second']:.3f}, warm {row['warm']['tokens_per_second']:.3f} tokens/s", flush=True)


def median(rows, when, field):
    values = [r[when][field] for r in rows if r[when].get(field) is not None]
    return statistics.median(values) if values else None


def cell_figures(a, results, profile, budget, when):
    """Medians over the rounds; None where nothing was measured."""
    ours = results.of(shape=a.shape, profile=profile, budget=budget, engine="sluice")
    theirs = results.of(shape=a.shape, profile=profile, budget=budget, engine="llama.cpp")
    if not ours:
        return None
    f = {k: median(ours, when, k) for k in ("tokens_per_second", "hit_rate", "bytes_per_token", "share_of_causal_bound", "share_of_ideal_bound")}
    f["bound"] = f["tokens_per_second"] / f["share_of_causal_bound"] if f["share_of_causal_bound"] else None
    peaks = [r["peak"] for r in ours if r["peak"]]
    f["peak"] = max(peaks) if peaks else None
    f["peer"] = median(theirs, when, "tokens_per_second") if theirs else None
    f["peer_tokens"] = min(r[when]["tokens"] for r in theirs) if theirs else None
    return f


def number(v, form):
    return format(v, form) if v is not None else "-"


def print_table(a, results):
    print(f"\n{a.shape}, {a.threads} threads, medians of {a.rounds} rounds; peer: llama.cpp by mmap (tokens it got to)\n")
    print("| routing | limit | | tokens/s | hit rate | MiB/token | of the causal bound | of the ideal bound | peak GiB | llama.cpp | ratio | bound / llama.cpp |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    for profile in a.profiles:
        for budget in a.budgets:
            for when in ("cold", "warm"):
                f = cell_figures(a, results, profile, budget, when)
                if not f:
                    continue
                ratio = f["tokens_per_second"] / f["peer"] if f["peer"] else None
                reach = f["bound"] / f["peer"] if f["peer"] and f["bound"] else None
                theirs = f"{f['peer']:.3f} ({f['peer_tokens']})" if f["peer"] else "-"
                print(f"| {profile} | {budget:g} GiB | {when} | {f['tokens_per_second']:.2f} | {100 * f['hit_rate']:.1f} % | {f['bytes_per_token'] / 2**20:.0f} | "
                      f"{number(f['share_of_causal_bound'], '.0%')} | {number(f['share_of_ideal_bound'], '.0%')} | {number(f['peak'] and f['peak'] / GIB, '.2f')} | {theirs} | "
                      f"{number(ratio, '.1f')} | {number(reach, '.1f')} |")


def draw(a, results, path):
    series = []
    for profile in a.profiles:
        cells = [(b, cell_figures(a, results, profile, b, "warm")) for b in a.budgets]
        cells = [(b, f) for b, f in cells if f]
        series.append((f"Sluice, {profile}", profile, "ours", [(b, f["tokens_per_second"]) for b, f in cells]))
        series.append((f"causal bound, {profile}", profile, "bound", [(b, f["bound"]) for b, f in cells if f["bound"]]))
        series.append((f"llama.cpp, {profile}", profile, "peer", [(b, f["peer"]) for b, f in cells if f["peer"]]))
    path.write_text(curve.draw(f"{a.shape}: decode, warm", [s for s in series if s[3]]))
    print(f"\ndrawn: {path}")


def options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--sluice", default="build/sluice")
    p.add_argument("--dir", type=Path, default=Path("build/bench"), help="for models and results; needs the space of one model")
    p.add_argument("--shape", default="qwen3-moe-24l")
    p.add_argument("--profiles", default="uniform,flat,local")
    p.add_argument("--budgets", default="2,3,4,6", help="GiB")
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--peer-seconds", type=float, default=60)
    p.add_argument("--no-peer", action="store_true")
    p.add_argument("--keep", action="store_true", help="keep the models")
    p.add_argument("--restart", action="store_true", help="forget the results so far")
    p.add_argument("--quick", action="store_true")
    a = p.parse_args()
    if a.quick:
        a.shape, a.budgets, a.rounds, a.no_peer = "small-qwen3-moe", "0", 1, True
    a.profiles = a.profiles.split(",")
    a.budgets = [float(b) for b in a.budgets.split(",")]
    if not a.quick and not cgroups_work():
        sys.exit("limits need root and cgroup v1 (/sys/fs/cgroup/memory): --quick runs without")
    return a


def main():
    a = options()
    a.dir.mkdir(parents=True, exist_ok=True)
    results = Results(a.dir / "streaming.jsonl", a.restart or a.quick)
    for profile in a.profiles:
        model, ids = model_of(a, profile)
        for round_ in range(a.rounds):
            measure(a, results, profile, model, ids, round_)
        if not a.keep:
            model.unlink()
            ids.unlink()
    print_table(a, results)
    draw(a, results, a.dir / "streaming.svg")


if __name__ == "__main__":
    main()
