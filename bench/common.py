"""What the benchmarks beside llama.cpp share: memory cgroups, the two engines as processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup/memory")
GIB = 1 << 30

# One model, phases after each other on one context: [{"tokens": n, "seconds": limit or null}]. A phase that reaches its limit ends early; how many tokens it
# got to is in its result.
PEER = r"""
import json, sys, time
import llama_cpp
model, ids_file, threads, repack, prefill, phases = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]), json.loads(sys.argv[6])
if not repack:  # weights stay in the mapped file instead of being rewritten into anonymous memory
    low, defaults = llama_cpp.llama_cpp, llama_cpp.llama_cpp.llama_model_default_params
    def mapped():
        p = defaults()
        p.use_extra_bufts = False
        return p
    low.llama_model_default_params = mapped
ids = json.load(open(ids_file))
context = max(sum(p["tokens"] for p in phases), prefill) + 16
llm = llama_cpp.Llama(model, n_ctx=context, n_threads=threads, n_threads_batch=threads, n_batch=512, n_ubatch=512, use_mmap=True, verbose=False)
out = {"phases": []}
if prefill:
    times = []
    for _ in range(2):  # the first touches the weights
        llm.reset()
        began = time.perf_counter()
        llm.eval(ids[:prefill])
        times.append(time.perf_counter() - began)
    out["prefill"] = prefill / times[-1]
    llm.reset()
at = 0
for p in phases:
    began, done = time.perf_counter(), 0
    while done < p["tokens"] and (not p["seconds"] or done == 0 or time.perf_counter() - began < p["seconds"]):
        llm.eval([ids[(at + done) % len(ids)]])
        done += 1
    at += done
    out["phases"].append({"tokens": done, "tokens_per_second": done / (time.perf_counter() - began)})
print(json.dumps(out))
"""


class Group:
    """A memory cgroup (v1) with a limit in bytes."""

    def __init__(self, limit):
        self.path = CGROUP / f"sluice-bench-{os.getpid()}"
        self.limit = limit

    def __enter__(self):
        self.path.mkdir()
        (self.path / "memory.limit_in_bytes").write_text(str(self.limit))
        return self

    def __exit__(self, *_):
        (self.path / "memory.force_empty").write_text("0")
        self.path.rmdir()

    def enter(self):
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def peak(self):
        return int((self.path / "memory.max_usage_in_bytes").read_text())


def cgroups_work():
    return os.geteuid() == 0 and (CGROUP / "memory.limit_in_bytes").exists()


def forget(path):
    """Drops the file from the page cache: pages that another group brought there would be free of charge in a new one."""
    with open(path, "rb") as f:
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def run(command, group=None, timeout=3600):
    p = subprocess.run([str(x) for x in command], capture_output=True, text=True, timeout=timeout, preexec_fn=group.enter if group else None)
    if p.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\nexited with {p.returncode}: {p.stderr.strip()[-600:]}")
    return p.stdout


def peer(model, ids, phases, threads, group=None, prefill=0, repack=True):
    """llama.cpp: {"prefill": tokens per second, "phases": [{"tokens", "tokens_per_second"}]}."""
    return json.loads(run([sys.executable, "-c", PEER, model, ids, threads, int(repack), prefill, json.dumps(phases)], group))


def phase(tokens, seconds=None):
    return {"tokens": tokens, "seconds": seconds}
