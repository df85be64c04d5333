#!/usr/bin/env python3
"""Expert hit rate at decode against the share of experts that fit, on forced token ids: a table for docs/performance.md.

hit_rates.py --sluice SLUICE NAME=MODEL:IDS...   IDS is a file of token ids or "random", as in `sluice bench --ids`
"""

import argparse
import json
import subprocess

SHARES = (0.25, 0.375, 0.5, 0.625, 0.75, 0.875)


def hit_rate(sluice, model, ids, slots, tokens):
    command = [sluice, "bench", model, "--ids", ids, "--max-slots", str(slots), "--warmup", "256", "--tokens", str(tokens), "--repeat", "1", "--prefill", "0", "--no-replay", "--ctx", "1024", "--json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["decode"]["hit_rate"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="+", metavar="NAME=MODEL:IDS")
    parser.add_argument("--sluice", default="build/release/sluice")
    parser.add_argument("--tokens", type=int, default=512)
    args = parser.parse_args()
    print("| experts in memory |", " | ".join(f"{s:.1%}" for s in SHARES), "|")
    print("|---" * (len(SHARES) + 1) + "|")
    for case in args.cases:
        name, rest = case.split("=", 1)
        model, ids = rest.rsplit(":", 1)
        info = json.loads(subprocess.run([args.sluice, "info", model, "--json"], check=True, capture_output=True, text=True).stdout)
        model_info = info.get("model", info)
        total = model_info["experts"] * model_info["moe_layers"]
        rates = [hit_rate(args.sluice, model, ids, round(s * total), args.tokens) for s in SHARES]
        print(f"| {name} |", " | ".join(f"{r:.1%}" for r in rates), "|", flush=True)


if __name__ == "__main__":
    main()
