"""Every golden checkpoint on a device, as a user runs it: beside the CPU's exact mode, and with few slots for experts in the
device's memory (and in the host's) the same bits. goldens.py SLUICE WORK [--device cuda] [--sizes FILE] [--only A,B] [--jobs N]

Sizes of memory are asked of `sluice info`, which opens the device for it; --sizes FILE keeps them, or takes them from there.
Prints a line for each and a table's worth at the end; exit status 1 where one is wrong."""

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "tools/eval"))
import slref  # noqa: E402

ARCH = REPO / "tests/golden/arch"
TOKENS, VOCAB, MEMORY = 72, 272, "1G"
# Rows at once: largest difference of a row's log probabilities, its median, mean of KL (as tests/e2e/test_golden_device.py)
LIMITS = {12: (0.1, 0.03, 5e-5), TOKENS: (1.0, 0.05, 1e-3)}


def names():
    return sorted(p.parent.name for p in ARCH.glob("*/golden.json"))


class Case:
    def __init__(self, sluice, work, name, device, seconds=120):
        self.sluice, self.device, self.seconds = sluice, device, seconds
        golden = ARCH / name
        about = json.loads((golden / "golden.json").read_text())
        self.model, self.folder = golden / about["model"], Path(work) / name
        self.folder.mkdir(parents=True, exist_ok=True)
        nothing = np.zeros((TOKENS, 1))
        slref.write_top(self.folder / "tokens", about["tokens"][:TOKENS], VOCAB, nothing.astype("<u4"), nothing.astype("<f4"))

    def call(self, *words):
        done = subprocess.run([str(w) for w in (self.sluice, *words)], capture_output=True, text=True, timeout=self.seconds)
        if done.returncode:
            raise RuntimeError(f"{' '.join(str(w) for w in words)}: status {done.returncode}: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def eval(self, name, *options, reference="exact"):
        """-> log probabilities [TOKENS][VOCAB], the JSON document"""
        said = self.call("eval", self.model, "--reference", self.folder / reference, "--record", self.folder / name, "--json", "--quiet",
                         *options)
        return np.array(slref.read(self.folder / name)[3]), said

    def least(self, chunk):
        """Bytes of the device's memory with which it runs, and logits of all rows, which eval asks for."""
        said = self.call("info", self.model, "--device", self.device, "--json", "--chunk", chunk, "--memory", MEMORY)
        return said["least_vram"] + chunk * VOCAB * 4


SLOTS = {"qwen2_moe-mixed": 4}  # experts of so many sizes have a slot each at least


def check(case, chunk, least, slots=3):
    """-> a line; RuntimeError where something is wrong. slots: experts in the host's memory, in the last run."""
    slots = max(slots, SLOTS.get(case.folder.name, 0))
    row, near, kl = LIMITS[chunk]
    exact, _ = case.eval("exact", "--numeric", "exact", reference="tokens")
    on = ("--device", case.device, "--chunk", chunk, "--memory", MEMORY)
    got, said = case.eval(f"all-{chunk}", *on)
    far = np.abs(got - exact).max(-1)
    words = f"chunk {chunk:2d}: worst row {far.max():.1e}, median {np.median(far):.1e}, KL {said['kl_mean']:.1e}"
    if not (far.max() < row and np.median(far) < near and said["kl_mean"] < kl and said["top1_agreement"] >= 70 / TOKENS):
        raise RuntimeError(f"{words}: too far from the CPU's exact mode")
    for options in ((), ("--max-slots", slots)):
        few, told = case.eval(f"few-{chunk}", *on, "--vram", least, *options)
        vram = told["figures"]["vram"]
        words += f"; {vram['slots']} slots of {said['figures']['vram']['slots']}, {vram['expert_misses']} brought"
        if vram["peak"] > least:
            raise RuntimeError(f"{words}: {vram['peak']} bytes of {least} were taken")
        if few.tobytes() != got.tobytes():
            raise RuntimeError(f"{words}: other bits with {options}")
    return words


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("sluice")
    p.add_argument("work")
    p.add_argument("--device", default="cuda")
    p.add_argument("--sizes")
    p.add_argument("--only", help="names, by commas")
    p.add_argument("--many", help="those that are run with all rows at once, too (default: all)")
    p.add_argument("--jobs", type=int, default=os.cpu_count())
    a = p.parse_args()
    chosen = a.only.split(",") if a.only else names()
    many = a.many.split(",") if a.many else chosen
    sizes = json.loads(Path(a.sizes).read_text()) if a.sizes and Path(a.sizes).exists() else {}

    def work(name):
        said, wrong = [], 0
        for chunk in (12, *((TOKENS,) if name in many else ())):
            try:
                case = Case(a.sluice, a.work, name, a.device)
                key = f"{name} {chunk}"
                if key not in sizes:
                    sizes[key] = case.least(chunk)
                said.append(f"ok     {name:24} {check(case, chunk, sizes[key])}")
            except (RuntimeError, subprocess.TimeoutExpired) as e:
                said.append(f"WRONG  {name:24} chunk {chunk}: {e}")
                wrong += 1
        print("\n".join(said), flush=True)
        return wrong

    with ThreadPoolExecutor(a.jobs) as pool:
        wrong = sum(pool.map(work, chosen))
    if a.sizes:
        Path(a.sizes).write_text(json.dumps(sizes, indent=0, sort_keys=True))
    print(f"{len(chosen)} checkpoints, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
