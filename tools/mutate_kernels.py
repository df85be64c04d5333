#!/usr/bin/env python3
r"""Would the checks of the kernels notice? Breaks src/kernels one place at a time and runs the tests that cover it.

  tools/mutate_kernels.py BUILD [--kind barrier,bound,index] [--file NAME ...] [--match EXPR] [--sample N] [--seed N] [--jobs N] [--list] [--record]
  tools/mutate_kernels.py --check

A mutant removes one barrier, shifts one bound (< and <=, > and >=; not where it chooses the lesser or the greater of two), or
changes one index (its first and last names change places, or it is moved by one). BUILD has the test programs test_kernels_*;
they are linked anew with kernels that hold all mutants, each by choice of the variable SL_MUTANT, so that each program compiles its
kernels once and then runs once per mutant. Where a choice when running is not possible (a template's argument) a program is made
for the mutant alone.

A mutant is killed by a wrong result, a report of the checking mode, a crash, or a run that takes for ever; one that does not compile says
nothing, and of a survivor that no program ever asks for it is said. Survivors are either gaps in the tests or equivalent: those are listed with their proof in tools/mutants_equivalent.txt, one a
line: FILE | KIND | SOURCE LINE | OCCURRENCE IN LINES THAT READ SO | PROOF (\\| is a |). --record writes what a whole sweep of a file found
to tools/mutants_swept.txt. Exit status 1 when a survivor has no proof, when a mutant that is killed has one, or when a proof's place is no
more. --check runs nothing: it looks for proofs whose place is no more (status 1) and says which files have changed since they were swept.
"""

import argparse
import concurrent.futures
import hashlib
import os
import random
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import mutants as places

REPO = Path(__file__).resolve().parents[1]
KERNELS = REPO / "src/kernels"
PROOFS = REPO / "tools/mutants_equivalent.txt"
SWEPT = REPO / "tools/mutants_swept.txt"
PLACE = re.compile(r"\b([\w-]+\.(?:metal|h)|mutants):(\d+): (.*)")
REPORT = re.compile(r"\blist '|out of bounds|misaligned|uninitialised|race|barrier|divergence|bound for reading")


# ---- programs --------------------------------------------------------------------------------------------------------


class Programs:
    """The build's test programs, linked with other kernels."""

    def __init__(self, build, folder):
        self.build, self.folder = build.resolve(), folder
        self.commands = {}
        self.names = sorted(p.name for p in build.glob("test_kernels_*") if p.is_file() and os.access(p, os.X_OK))
        self.names = [n for n in self.names if sources_of(n)]
        if not self.names:
            sys.exit(f"{build}: no programs test_kernels_*: build them first")
        lines = self.output("ninja", "-t", "commands", *self.names).splitlines()
        self.embed = self.one(lines, r"-DPART=gpu .*embed\.cmake")
        self.compile = self.one(lines, r" -c \S*gpu_texts\.c$")
        self.links = {n: self.one(lines, rf" -o {n} ") for n in self.names}

    def output(self, *argv):
        return subprocess.run(argv, cwd=self.build, check=True, capture_output=True, text=True).stdout

    def one(self, lines, pattern):
        found = [line for line in lines if re.search(pattern, line)]
        if len(found) != 1:
            sys.exit(f"{self.build}: {len(found)} commands that match {pattern}: is it a Ninja build?")
        return found[0]

    def make(self, texts, name, programs):
        """Programs whose kernels are `texts` {file: text}, in a folder of that name. Returns it."""
        out = self.folder / name
        out.mkdir(exist_ok=True)
        for file in KERNELS.iterdir():
            (out / file.name).write_text(texts.get(file.name) or file.read_text())
        c, o = out / "texts.c", out / "texts.o"
        self.shell(re.sub(r"-DOUT=\S+", f"-DOUT={c}", self.embed.replace(f"{KERNELS}/", f"{out}/")))
        self.shell(re.sub(r"-O\d", "-O0", re.sub(r" -MF \S+", f" -MF {out}/texts.d", re.sub(r" -o \S+ -c \S+$", f" -o {o} -c {c}", self.compile))))
        for p in programs:
            self.shell(re.sub(r"\S*gpu_texts\.c\.o", str(o), self.links[p]).replace(f" -o {p} ", f" -o {out / p} "))
        return out

    def shell(self, command):
        done = subprocess.run(command, shell=True, cwd=self.build, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{command[:300]} ...\n{done.stderr[:2000]}")


def includes(name):
    found = set()
    for other in re.findall(r'#include "([^"]+)"', (KERNELS / name).read_text()):
        if (KERNELS / other).exists():
            found |= {other} | includes(other)
    return found


def sources_of(program):
    """The .metal file of the program's subject, and those whose name is that and more; or a header of that name."""
    subject = program.removeprefix("test_kernels_")
    found = [p.name for p in KERNELS.glob("*.metal") if f"{p.stem}_".startswith(f"{subject}_")]
    return found or [p.name for p in KERNELS.glob(f"{subject}.h")]


def tests_of(programs, file):
    """Programs of the file, or of all files that include it."""
    return [p for p in programs if any(file == s or file in includes(s) for s in sources_of(p))]


def run(program, number, cache, seconds, trap=False):
    """Ends the program at its first error: what comes after says no more. trap: ends where the mutant is asked for. -> verdict, why"""
    env = dict(os.environ, SL_MUTANT=str(number), SL_KERNELS_CACHE=str(cache), SL_MUTANT_TRAP=str(int(trap)))
    with subprocess.Popen([program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=REPO, text=True, errors="replace", env=env) as p:
        timer = threading.Timer(seconds, p.kill)
        timer.start()
        error = skipped = ""
        for line in p.stdout:
            if "ERROR" in line and "ERROR   ] ---" not in line or "[  FAILED  ]" in line or "[  ERROR   ]" in line:
                error = line.strip()
                p.kill()
                break
            skipped = skipped or (line.strip() if "SKIP" in line else "")
        p.stdout.close()
        code = p.wait()
        timed_out = not timer.is_alive() and not error
        timer.cancel()
    if skipped and not error:
        sys.exit(f"{program.name}: {skipped}")
    if error and PLACE.search(error) and not REPORT.search(error):
        return "invalid", error
    if code == 0 and not error:
        return "survives", ""
    return "killed", error or ("takes for ever" if timed_out else f"ends with {code}")


# ---- the sweep -------------------------------------------------------------------------------------------------------


# What compiles in seconds comes first: most mutants are killed there, and the others may not be needed.
QUICK = ("tile", "few", "delta", "rows", "moe", "matmul", "heads", "expert")


def by_compile_time(program):
    subject = program.removeprefix("test_kernels_")
    return QUICK.index(subject) if subject in QUICK else len(QUICK), program


class Sweep:
    def __init__(self, programs, needed, seconds):
        self.programs, self.needed, self.seconds, self.proofs = programs, needed, seconds, read_proofs()
        # All mutants of the files that are swept, numbered within their file: code in the cache serves until these change.
        swept = {m.file for m in needed}
        self.texts = {f.name: f.read_text() for f in KERNELS.iterdir()}  # as they are now, whoever edits them meanwhile
        self.mutants, self.number = [], {}
        for n, f in enumerate(kernel_files()):
            for i, m in enumerate(places.find_mutants(f, places.KINDS) if f.name in swept else ()):
                self.mutants.append(m)
                self.number[m] = 10000 * (n + 1) + i
        # of its texts; as many as it has: alone only, as in macros that name template arguments
        self.which = {m: len(m.texts) if m.source.startswith(("#define", "SL_KERNEL")) else 0 for m in self.mutants}
        self.cache = programs.build / "mutants"
        self.limit = {}
        self.home = None
        self.lock = threading.Lock()

    def text_with_all(self, file):
        text = self.texts[file]
        text = places.with_all(text, [(self.number[m], m, self.which[m]) for m in self.mutants
                                      if m.file == file and self.which[m] < len(m.texts)])
        return places.with_choice(text) if file == "step.h" else text

    def prepare(self, program):
        """The program with all mutants, which with none chosen passes; made when a mutant first needs it."""
        with self.lock:
            while program not in self.limit:
                self.home = self.programs.make({f: self.text_with_all(f) for f in self.texts}, "all", [program])
                verdict, why = run(self.home / program, 0, self.cache, 900)
                if verdict == "survives":
                    self.limit[program] = min(self.seconds, 20 + 20 * self.must_pass(program))
                elif verdict != "invalid" or not self.retreat(why):
                    sys.exit(f"{program} fails with no mutant chosen: {why}")
        return self.limit[program]

    def must_pass(self, program):
        """With no mutant chosen, or else every mutant would count as killed. Also afterwards: somebody may have built meanwhile. -> seconds"""
        start = time.monotonic()
        verdict, why = run(self.home / program, 0, self.cache, 900)
        if verdict != "survives":
            sys.exit(f"{program} fails with no mutant chosen: {why}")
        return time.monotonic() - start

    def retreat(self, error):
        """Mutants of the line that does not compile get their next text, or are made alone."""
        file, line, what = PLACE.search(error).groups()
        for near in range(6):
            hit = [m for m in self.mutants if m.file == file and m.line == int(line) + near and self.which[m] < len(m.texts)]
            for m in hit:
                self.which[m] += 1
            if hit:
                return True
        return False

    def judge(self, m):
        verdict, why, passed = "survives", "", []
        ordered = sorted(tests_of(self.programs.names, m.file), key=by_compile_time)
        for p in ordered:
            limit = self.prepare(p)
            if self.which[m] == len(m.texts):
                verdict, why = self.alone(m, p)
            else:
                verdict, why = run(self.home / p, self.number[m], self.cache, limit)
                passed.append(p)
            if verdict != "survives":
                return m, verdict, why
        if not passed or m.key in self.proofs:
            return m, verdict, why
        if not any(self.reached(m, p) for p in passed):
            return m, verdict, "no test comes here"
        return m, *self.seen_alone(m, ordered)

    def seen_alone(self, m, programs):
        """Made alone, a mutant is seen by the compiler: it finds accesses behind a thread's own arrays that it cannot find where the mutant
        is chosen when running."""
        for p in programs:
            verdict, why = self.alone(m, p)
            if verdict == "killed":
                return verdict, why
        return "survives", ""

    def reached(self, m, program):
        """Does the program ask for the mutant when it runs?"""
        return run(self.home / program, self.number[m], self.cache, self.limit[program], trap=True)[0] != "survives"

    def alone(self, m, program):
        text = self.texts[m.file]
        for which in range(len(m.texts)):
            with tempfile.TemporaryDirectory(dir=self.programs.folder) as folder:
                home = self.programs.make({m.file: places.with_one(text, m, which)}, folder, [program])
                verdict, why = run(home / program, 0, Path(folder) / "cache", self.seconds)
            if verdict != "invalid":
                break
        return verdict, why


# ---- proofs and records ----------------------------------------------------------------------------------------------


def kernel_files(names=None):
    return [f for f in sorted(KERNELS.iterdir()) if f.suffix in (".metal", ".h") and f.name != "args.h" and (not names or f.name in names)]


def read_rows(path, columns):
    for line in path.read_text().splitlines() if path.exists() else []:
        parts = [p.strip().replace("\\|", "|") for p in line.split(" | ")]
        if line.strip() and not line.startswith("#"):
            if len(parts) != columns:
                sys.exit(f"{path}: {len(parts)} columns instead of {columns}: {line}")
            yield parts


def read_proofs():
    return {tuple(parts[:4]): parts[4] for parts in read_rows(PROOFS, 5)}


def lost_proofs(proofs):
    there = {m.key for f in kernel_files() for m in places.find_mutants(f, places.KINDS)}
    return [key for key in proofs if key not in there]


def version(path):
    """Of a file's code; comments do not count."""
    code = re.sub(r"\s+", " ", places.blank_comments(path.read_text()))
    return hashlib.sha256(code.encode()).hexdigest()[:16]


SWEPT_HEAD = """# What sweeps of tools/mutate_kernels.py found: FILE | VERSION OF ITS CODE | MUTANTS | KILLED | DO NOT COMPILE | EQUIVALENT, WITH PROOF | WITHOUT PROOF
"""


def read_swept():
    return {parts[0]: parts[1:] for parts in read_rows(SWEPT, 7)}


def record(versions, results):
    swept = read_swept()
    for name, code in versions.items():
        mine = [v for m, v in results if m.file == name]
        count = [str(mine.count(v)) for v in ("killed", "invalid", "equivalent", "survives")]
        swept[name] = [code, str(len(mine)), *count]
    there = {f.name for f in kernel_files()}
    SWEPT.write_text(SWEPT_HEAD + "".join(" | ".join([name, *row]) + "\n" for name, row in sorted(swept.items()) if name in there))


def complain():
    """What no longer fits HEAD. -> number of proofs without a place"""
    lost, swept = lost_proofs(read_proofs()), read_swept()
    for key in lost:
        print(f"{PROOFS.name}: no such place: {' | '.join(key)}")
    for f in kernel_files():
        if f.name not in swept:
            print(f"{SWEPT.name}: {f.name} was never swept")
        elif swept[f.name][0] != version(f):
            print(f"{SWEPT.name}: {f.name} has changed since it was swept")
    return len(lost)


def totals(rows):
    rows = [[int(x) for x in r[1:]] for r in rows]
    n = [sum(c) for c in zip(*rows)] or [0] * 5
    return f"{n[0]} mutants: {n[1]} killed, {n[2]} do not compile, {n[3]} equivalent with proof, {n[4]} without"


def options():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("build", type=Path, nargs="?")
    p.add_argument("--kind", default=",".join(places.KINDS))
    p.add_argument("--file", nargs="*")
    p.add_argument("--match", default="", help="only those whose FILE:LINE KIND N: SOURCE matches this expression")
    p.add_argument("--sample", type=int, help="only so many, chosen at random")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    p.add_argument("--timeout", type=int, default=300)
    p.add_argument("--list", action="store_true", help="show the mutants, run nothing")
    p.add_argument("--check", action="store_true", help="proofs without a place, files that changed; runs nothing")
    p.add_argument("--record", action="store_true", help=f"write what was found to {SWEPT.name}")
    a = p.parse_args()
    if not a.build and not a.check and not a.list:
        p.error("BUILD, --check or --list")
    if a.record and (a.match or a.sample is not None or a.kind != ",".join(places.KINDS)):
        p.error("--record takes whole files")
    return a


def sweep(a, found):
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        programs = Programs(a.build, Path(folder))
        for name in sorted({m.file for m in found}):
            if not tests_of(programs.names, name):
                sys.exit(f"{name}: no test program in {a.build} covers it")
        s = Sweep(programs, found, a.timeout)
        with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
            yield from pool.map(s.judge, found)
        for program in s.limit:
            s.must_pass(program)


def main():
    a = options()
    if a.check:
        lost = complain()
        print(totals(read_swept().values()))
        return 1 if lost else 0
    files = kernel_files(a.file)
    found = [m for f in files for m in places.find_mutants(f, a.kind.split(",")) if re.search(a.match, m.name)]
    if a.sample is not None and a.sample < len(found):
        found = random.Random(a.seed).sample(found, a.sample)
    if a.list:
        print(*(f"{m.name}   ->   {m.texts[0]}" for m in found), sep="\n")
        print(f"{len(found)} mutants")
        return 0
    versions = {f.name: version(f) for f in files}
    proofs, results, wrong = read_proofs(), [], complain()
    for m, verdict, why in sweep(a, found):
        if verdict == "survives" and m.key in proofs:
            verdict, why = "equivalent", (f"{why}: " if why else "") + proofs[m.key]
        elif verdict == "killed" and m.key in proofs:
            print(f"{PROOFS.name}: is not equivalent: {m.name}")
            wrong += 1
        results.append((m, verdict))
        print(f"{verdict:10} {m.name}   {why[:200]}", flush=True)
    count = [sum(v == k for _, v in results) for k in ("killed", "invalid", "equivalent", "survives")]
    print(totals([["", len(results), *count]]))
    for m, verdict in results:
        if verdict == "survives":
            print(f"SURVIVES without proof: {m.name}   ->   {' or '.join(m.texts)}")
    if a.record:
        record(versions, results)
    return 1 if wrong or count[3] else 0


if __name__ == "__main__":
    sys.exit(main())
