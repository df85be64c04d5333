#!/usr/bin/env python3
"""Answers of two models to the same prompts, judged blind: `python -m train.compare_answers` in tools/.

  ask     answers of both, one seed per prompt, nothing picked     -> ANSWERS.json
  sheet   the answers as A and B in an order drawn with a seed     -> text to read
  unblind one letter per prompt (A, B or T for a tie) from a file  -> ANSWERS.json with verdicts, and the count
"""

import argparse
import json
import random
import subprocess
from pathlib import Path

SAMPLING = {
    "student": ["--temp", "0.7", "--min-p", "0.1", "--repeat-penalty", "1.2"],
    "teacher": ["--temp", "0.7", "--min-p", "0.1", "--repeat-penalty", "1.15"],
}
HERE = Path(__file__).resolve().parent


def answer(sluice, model, sampling, prompt, seed, tokens):
    command = [sluice, "run", model, *sampling, "--seed", str(seed), "-n", str(tokens), "--quiet", prompt]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def ask(args):
    """Both may write about as much text: the student's tokens are shorter."""
    out = []
    for i, prompt in enumerate((HERE / "sample_prompts.txt").read_text().splitlines()):
        student = answer(args.sluice, args.student, SAMPLING["student"], prompt, args.first_seed + i, 250)
        teacher = answer(args.sluice, args.teacher, SAMPLING["teacher"], prompt, args.first_seed + i, 220)
        out.append({"prompt": prompt, "student": student, "teacher": teacher})
    args.answers.write_text(json.dumps({"sampling": SAMPLING, "first_seed": args.first_seed, "answers": out}, indent=1, ensure_ascii=False) + "\n")


def order(seed, count):
    """True: the student is A."""
    r = random.Random(seed)
    return [r.random() < 0.5 for _ in range(count)]


def sheet(args):
    answers = json.loads(args.answers.read_text())["answers"]
    for i, (x, first) in enumerate(zip(answers, order(args.seed, len(answers))), 1):
        a, b = (x["student"], x["teacher"]) if first else (x["teacher"], x["student"])
        print(f"#### {i}. {x['prompt']}\n\nA: {a}\n\nB: {b}\n")


def unblind(args):
    data = json.loads(args.answers.read_text())
    letters = args.verdicts.read_text().split()
    if len(letters) != len(data["answers"]) or set(letters) - set("ABT"):
        raise SystemExit(f"{args.verdicts}: {len(data['answers'])} letters A, B or T expected")
    for x, letter, first in zip(data["answers"], letters, order(args.seed, len(letters))):
        x["better"] = "tie" if letter == "T" else "student" if (letter == "A") == first else "teacher"
    data["seed"] = args.seed
    args.answers.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    print({k: sum(x["better"] == k for x in data["answers"]) for k in ("student", "tie", "teacher")})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("ask", "sheet", "unblind"))
    parser.add_argument("answers", type=Path)
    parser.add_argument("--sluice", default="sluice")
    parser.add_argument("--student")
    parser.add_argument("--teacher")
    parser.add_argument("--verdicts", type=Path)
    parser.add_argument("--seed", type=int, default=20, help="of the order")
    parser.add_argument("--first-seed", type=int, default=0, help="of the first prompt's answers")
    args = parser.parse_args()
    {"ask": ask, "sheet": sheet, "unblind": unblind}[args.what](args)


if __name__ == "__main__":
    main()
