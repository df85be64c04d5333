#!/usr/bin/env python3
r"""Would the checks of the kernels notice? Breaks src/kernels one place at a time and runs the tests that cover it.

  tools/mutate_kernels.py BUILD [--kind barrier,bound,index] [--file NAME ...] [--match EXPR] [--sample N] [--seed N] [--jobs N] [--list]

A mutant removes one barrier, shifts one bound (< and <=, > and >=; not where it chooses the lesser or the greater of two), or changes one index (its first and last names change places, or it is moved
by one). The kernels' texts lie inside the test programs: a mutant is a copy of the program with one of them patched, the
same length as before (a comment gives way), so nothing is built.

A mutant is killed by a wrong result, a report of the checking mode or a crash; one that does not compile, or that is the same kernel after
compiling, says nothing. Survivors are either gaps in the tests or equivalent: those are listed with their proof in tools/mutants_equivalent.txt,
one a line: FILE | KIND | SOURCE LINE | OCCURRENCE IN LINES THAT READ SO | PROOF (\\| is a |). Exit status 1 when a survivor has no proof.
"""

import argparse
import concurrent.futures
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
KERNELS = REPO / "src/kernels"
PROOFS = REPO / "tools/mutants_equivalent.txt"
COMPILE_ERROR = re.compile(r"ERROR\s*[:\]].*?\b[\w.-]+\.(?:metal|h):\d+: |\b[\w.-]+\.(?:metal|h):\d+: (?:error|no |use of|expected|invalid|cannot|unknown)")


@dataclass(frozen=True)
class Mutant:
    file: str
    kind: str
    begin: int  # bytes of the file that are replaced
    end: int
    text: str
    line: int
    source: str  # the line, without spaces around it
    occurrence: int  # of this kind in lines that read the same

    @property
    def name(self):
        return f"{self.file}:{self.line} {self.kind} {self.occurrence}: {self.source}"

    @property
    def key(self):
        return (self.file, self.kind, self.source, str(self.occurrence))


# ---- places ----------------------------------------------------------------------------------------------------------


def blank_comments(text):
    """Same length, comments and preprocessor's includes as spaces: what is left is code."""
    def spaces(match):
        return re.sub(r"[^\n]", " ", match.group(0))
    return re.sub(r'//[^\n]*|/\*.*?\*/|#include[^\n]*|\[\[.*?\]\]', spaces, text, flags=re.S)


def barriers(code):
    for m in re.finditer(r"\b(?:threadgroup|simdgroup)_barrier\s*\([^()]*\)\s*;", code):
        yield m.start(), m.end(), ";"


def same_either_way(code, at, op):
    """The lesser or the greater of two: where they are equal, it is the same. Ends at the nearest operators and brackets around."""
    left = re.search(r"[\w.\[\]]+(?:\([\w.\[\]]*\))?$", code[:at].rstrip())
    right = re.match(r"\s*([\w.\[\]]+)\s*\?\s*([^?:;,]+?)\s*:\s*([\w.\[\]]+(?:\([\w.\[\]]*\))?)", code[at + len(op):])
    return bool(left and right) and {left.group(0).lstrip("("), right.group(1)} == {right.group(2), right.group(3)}


def bounds(code):
    """Comparisons stand between spaces, template brackets do not."""
    for m in re.finditer(r"(?<= )(<=|>=|<|>)(?= )", code):
        before = code[:m.start()].rstrip()
        if before.endswith("template") or before.endswith("operator"):
            continue
        op = m.group(1)
        if same_either_way(code, m.start(), op) or re.search(r"static_assert\([^;]*$", before):
            continue
        yield m.start(), m.end(), op[:-1] if op.endswith("=") else op + "="


def index_text(inside):
    """The first and the last name change places, unless that is the same sum or product."""
    names = re.findall(r"\b[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*\b(?!\s*\()", inside)
    distinct = list(dict.fromkeys(n for n in names if n not in ("uint", "int", "ulong", "long", "ushort", "short")))
    operators = set(re.findall(r"[-+*/%&|^?]|<<|>>", inside))
    if len(distinct) < 2 or len(operators) == 1 and operators & {"+", "*", "&", "|", "^"}:
        return f"({inside}) + 1"
    a, b = distinct[0], distinct[-1]
    return re.sub(rf"(?<![\w.])(?:{re.escape(a)}|{re.escape(b)})(?![\w.])", lambda m: b if m.group(0) == a else a, inside)


def indices(code):
    """Subscripts in expressions: not declarations of arrays."""
    depth_start = []
    for i, c in enumerate(code):
        if c == "[":
            depth_start.append(i)
        elif c == "]" and depth_start:
            begin = depth_start.pop()
            if depth_start or not code[begin + 1:i].strip():
                continue
            if is_declaration(code, begin, i):
                continue
            yield begin + 1, i, index_text(code[begin + 1:i])


def is_declaration(code, begin, end):
    statement = code[max(code.rfind(ch, 0, begin) for ch in ";{}(\n") + 1:begin]
    after = code[end + 1:end + 40].lstrip()
    typed = re.match(r"\s*(?:(?:threadgroup|thread|constexpr|constant|const|device|static)\s+)*[A-Za-z_]\w*(?:<[^<>]*>)?[\s*&]+(?:[A-Za-z_]\w*(?:\[[^\]]*\])*\s*,\s*)*[A-Za-z_]\w*(?:\[[^\]]*\])*\s*$",
                     statement)
    return bool(typed) and not re.match(r"\s*return\b", statement) and after[:1] in (";", "=", "{", "[", ",")


KINDS = {"barrier": barriers, "bound": bounds, "index": indices}


def find_mutants(path, kinds):
    text = path.read_text()
    code = blank_comments(text)
    for kind in kinds:
        seen = {}
        for begin, end, replacement in KINDS[kind](code):
            line = text.count("\n", 0, begin) + 1
            source = text.splitlines()[line - 1].strip()
            seen[source] = seen.get(source, 0) + 1
            yield Mutant(path.name, kind, begin, end, replacement, line, source, seen[source])


# ---- patched programs ------------------------------------------------------------------------------------------------


def mutate(text, m):
    """The text with the mutant in it, of the same length."""
    grown = len(m.text) - (m.end - m.begin)
    new = text[:m.begin] + m.text + (" " * -grown if grown < 0 else "") + text[m.end:]
    while grown > 0:
        comment = max(re.finditer(r"//[^\n]*", new), key=lambda c: len(c.group(0)), default=None)
        cut = min(grown, len(comment.group(0)) - 2) if comment else 0
        if cut <= 0:
            return None
        new = new[:comment.end() - cut] + new[comment.end():]
        grown -= cut
    return new if len(new.encode()) == len(text.encode()) else None


def patched(program, file, text, new, out):
    data = program.read_bytes()
    old = text.encode()
    if data.count(old) != 1:
        sys.exit(f"{program}: {data.count(old)} copies of {file}: is the build older than the source?")
    out.write_bytes(data.replace(old, new.encode()))
    out.chmod(0o755)


def includes(name):
    found = set()
    for other in re.findall(r'#include "([^"]+)"', (KERNELS / name).read_text()):
        if (KERNELS / other).exists():
            found |= {other} | includes(other)
    return found


def tests_of(build, file):
    """Programs test_kernels_X: of the .metal files whose name begins with X, and of all that include a header."""
    programs = []
    for program in sorted(build.glob("test_kernels_*")):
        subject = program.name.removeprefix("test_kernels_")
        sources = [p.name for p in KERNELS.glob("*.metal") if p.stem.split("_")[0] == subject]
        if any(file == s or file in includes(s) for s in sources):
            programs.append(program)
    return programs


def run(program, seconds):
    """Ends the program at its first error: what comes after says no more."""
    with subprocess.Popen([program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=REPO, text=True, errors="replace") as p:
        timer = threading.Timer(seconds, p.kill)
        timer.start()
        error = ""
        for line in p.stdout:
            if "ERROR" in line and "ERROR   ] ---" not in line or "[  FAILED  ]" in line or "[  ERROR   ]" in line:
                error = line.strip()
                p.kill()
                break
        p.stdout.close()
        code = p.wait()
        timed_out = not timer.is_alive() and not error
        timer.cancel()
    if error and COMPILE_ERROR.search(error) and "list '" not in error:
        return "invalid", error
    if code == 0 and not error:
        return "survives", ""
    return "killed", error or ("takes for ever" if timed_out else f"ends with {code}")


def judge(build, m, seconds):
    text = (KERNELS / m.file).read_text()
    new = mutate(text, m)
    if new is None:
        return m, "invalid", "no room in the file's comments"
    for program in tests_of(build, m.file):
        with tempfile.TemporaryDirectory() as directory:
            copy = Path(directory) / program.name
            patched(program, m.file, text, new, copy)
            verdict, why = run(copy, seconds)
        if verdict != "survives":
            return m, verdict, why
    return m, "survives", ""


def read_proofs():
    proofs = {}
    for line in PROOFS.read_text().splitlines() if PROOFS.exists() else []:
        parts = [p.strip().replace("\\|", "|") for p in line.split(" | ")]
        if line.strip() and not line.startswith("#"):
            if len(parts) != 5:
                sys.exit(f"{PROOFS}: expected FILE | KIND | LINE | OCCURRENCE | PROOF: {line}")
            proofs[tuple(parts[:4])] = parts[4]
    return proofs


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("build", type=Path)
    p.add_argument("--kind", default="barrier,bound,index")
    p.add_argument("--file", nargs="*")
    p.add_argument("--match", default="", help="only those whose FILE:LINE KIND N: SOURCE matches this expression")
    p.add_argument("--sample", type=int, help="only so many, chosen at random")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    p.add_argument("--timeout", type=int, default=600)
    p.add_argument("--list", action="store_true", help="show the mutants, run nothing")
    a = p.parse_args()
    files = [f for f in sorted(KERNELS.iterdir()) if f.suffix in (".metal", ".h") and f.name != "args.h" and (not a.file or f.name in a.file)]
    mutants = [m for f in files for m in find_mutants(f, a.kind.split(",")) if re.search(a.match, m.name)]
    if a.sample is not None and a.sample < len(mutants):
        mutants = random.Random(a.seed).sample(mutants, a.sample)
    if a.list:
        print(*(f"{m.name}   ->   {m.text}" for m in mutants), sep="\n")
        print(f"{len(mutants)} mutants")
        return 0
    for f in files:
        if not tests_of(a.build, f.name):
            print(f"{f.name}: no test program in {a.build} covers it")
    proofs, count, unproved = read_proofs(), {"killed": 0, "invalid": 0, "survives": 0, "equivalent": 0}, []
    with concurrent.futures.ThreadPoolExecutor(a.jobs) as pool:
        for m, verdict, why in pool.map(lambda m: judge(a.build, m, a.timeout), mutants):
            if verdict == "survives" and m.key in proofs:
                verdict, why = "equivalent", proofs[m.key]
            elif verdict == "survives":
                unproved.append(m)
            count[verdict] += 1
            print(f"{verdict:10} {m.name}   {why[:200]}", flush=True)
    print(f"{len(mutants)} mutants (seed {a.seed}): " + ", ".join(f"{n} {k}" for k, n in count.items()))
    for m in unproved:
        print(f"SURVIVES without proof: {m.name}   ->   {m.text}")
    return 1 if unproved else 0


if __name__ == "__main__":
    sys.exit(main())
