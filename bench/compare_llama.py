#!/usr/bin/env python3
"""Sluice beside llama.cpp on the same file, in the same run: decode and prefill with everything in memory, both under a memory limit, and the budget test.

    python3 bench/compare_llama.py --sluice build/sluice [--model synth.gguf] [--rounds 3] [--only memory,limit,budget] [--json OUT]

Needs PyPI's llama-cpp-python (built for this machine: CMAKE_ARGS=-DGGML_NATIVE=ON) in the interpreter that runs it, and root with cgroup v1 for the limits.
Without --model it writes the shape qwen3-moe-24l (8.6 GB, Q4_0) beside itself with `sluice synth`. Both engines are teacher-forced on the same random ids, so that the
experts are asked for as evenly as the router allows. Rounds alternate between the engines; medians and their ratio are printed, never one time alone.
"""

import argparse
import json
import random
import statistics
import tempfile
from pathlib import Path

from common import GIB, Group, forget, peer, phase, run

class Engines:
    def __init__(self, a, ids_file):
        self.a, self.ids = a, ids_file

    def sluice(self, tokens, prefill, memory=None, group=None, warmup=None, extra=()):
        warmup = self.a.warmup if warmup is None else warmup
        c = [self.a.sluice, "bench", self.a.model, "--json", "--ids", self.ids, "--threads", self.a.threads, "--repeat", 1]
        c += ["--warmup", warmup, "--tokens", tokens, "--prefill", prefill, *extra]
        c += ["--memory", memory] if memory else []
        return json.loads(run(c, group))

    def peer(self, tokens, prefill, group=None, warmup=None, repack=True):
        warmup = self.a.warmup if warmup is None else warmup
        got = peer(self.a.model, self.ids, [phase(warmup), phase(tokens)], self.a.threads, group, prefill, repack)
        return {"decode": got["phases"][1]["tokens_per_second"]} | ({"prefill": got["prefill"]} if prefill else {})


def median(rows, key):
    return statistics.median(r[key] for r in rows)


def in_memory(e, a):
    """Everything in memory: tokens per second of both, and decode's share of the memory's read rate measured in the same process."""
    ours, theirs = [], []
    for i in range(a.rounds):
        s = e.sluice(a.tokens, a.prefill)
        dense = s["model"]["resident_bytes"]
        bytes_per_token = dense + s["model"]["bytes_per_token"]
        rate = s["decode"]["memory_read_bytes_per_second"]
        ours.append(
            dict(decode=s["decode"]["tokens_per_second"], hit_rate=s["decode"]["hit_rate"],
                 share=s["decode"]["tokens_per_second"] * bytes_per_token / rate, rate=rate))
        if a.prefill:
            ours[-1]["prefill"] = s["prefill"]["tokens_per_second"]
        theirs.append(e.peer(a.tokens, a.prefill))
        print(f"  round {i + 1}: sluice {ours[-1]}  llama.cpp {theirs[-1]}", flush=True)
    r = {k: median(ours, k) for k in ours[0]}
    r |= {f"llama_{k}": median(theirs, k) for k in theirs[0]}
    r["decode_ratio"] = r["decode"] / r["llama_decode"]
    print(f"in memory: decode {r['decode']:.2f} vs {r['llama_decode']:.2f} tokens/s: {r['decode_ratio']:.2f}x; "
          f"{100 * r['share']:.0f} % of the {r['rate'] / 1e9:.1f} GB/s that memory reads reach")
    if a.prefill:
        r["prefill_ratio"] = r["prefill"] / r["llama_prefill"]
        print(f"prefill {r['prefill']:.1f} vs {r['llama_prefill']:.1f} tokens/s: {r['prefill_ratio']:.2f}x")
    return r


def limited(e, a):
    """Both in a cgroup of 3 GiB; llama.cpp through its mmap path."""
    ours, theirs = [], []
    for i in range(a.rounds):
        with Group(3 * GIB) as g:
            s = e.sluice(a.tokens, 0, memory=str(3 * GIB - (64 << 20)), group=g)["decode"]
            ours.append(dict(decode=s["tokens_per_second"], bound=s["share_of_causal_bound"], hit_rate=s["hit_rate"]))
        forget(a.model)
        with Group(3 * GIB) as g:
            theirs.append(e.peer(a.peer_limited_tokens, 0, group=g, warmup=a.peer_limited_tokens, repack=False))
        print(f"  round {i + 1}: sluice {ours[-1]}  llama.cpp {theirs[-1]}", flush=True)
    r = {k: median(ours, k) for k in ours[0]}
    r["llama_decode"] = median(theirs, "decode")
    r["ratio"] = r["decode"] / r["llama_decode"]
    print(f"3 GiB limit: decode {r['decode']:.2f} vs {r['llama_decode']:.3f} tokens/s: {r['ratio']:.1f}x; "
          f"{100 * r['bound']:.0f} % of the causal bound; hit rate {100 * r['hit_rate']:.0f} %")
    return r


def budget(e, a):
    """Limit twice the budget: peak use with page cache stays within the budget. Limit equal to the budget: runs, at nearly the same speed."""
    b = int(a.budget * GIB)
    wide, narrow, peaks = [], [], []
    for i in range(a.rounds):
        with Group(2 * b) as g:
            wide.append(e.sluice(a.tokens, 0, memory=str(b), group=g, extra=("--no-replay",))["decode"]["tokens_per_second"])
            peaks.append(g.peak())
        with Group(b) as g:
            narrow.append(e.sluice(a.tokens, 0, memory=str(b), group=g, extra=("--no-replay",))["decode"]["tokens_per_second"])
        print(f"  round {i + 1}: limit 2x {wide[-1]:.2f} tokens/s, peak {peaks[-1] / GIB:.3f} GiB of {a.budget}; limit 1x {narrow[-1]:.2f}", flush=True)
    r = dict(budget=b, peak=max(peaks), wide=statistics.median(wide), narrow=statistics.median(narrow))
    r["share"] = r["narrow"] / r["wide"]
    print(f"budget {a.budget} GiB: peak {r['peak'] / GIB:.3f} GiB with page cache; limit = budget reaches {100 * r['share']:.0f} % of the speed")
    return r


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--sluice", default="build/sluice")
    p.add_argument("--model", default="bench/qwen3-moe-24l.gguf")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--warmup", type=int, default=256)
    p.add_argument("--tokens", type=int, default=128)
    p.add_argument("--prefill", type=int, default=512)
    p.add_argument("--peer-limited-tokens", type=int, default=4, help="llama.cpp under the limit takes seconds a token")
    p.add_argument("--budget", type=float, default=3.0, help="GiB")
    p.add_argument("--only", default="memory,limit,budget")
    p.add_argument("--json")
    a = p.parse_args()
    if not Path(a.model).exists():
        print(f"writing {a.model}", flush=True)
        run([a.sluice, "synth", "qwen3-moe-24l", a.model])
    random.seed(20261130)
    ids = [random.randrange(256, 150000) for _ in range(4096)]
    results = {}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        json.dump(ids, f)
        f.flush()
        e = Engines(a, f.name)
        for name, part in (("memory", in_memory), ("limit", limited), ("budget", budget)):
            if name in a.only.split(","):
                results[name] = part(e, a)
    if a.json:
        Path(a.json).write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
