#!/usr/bin/env python3
"""Everything the GPU run needs besides the teacher, as token ids in one file: prompts, texts of fixed form, Wikipedia text, the vocabulary's table.

Run as `python -m train.inputs OUT.npz --valid wikitext2-valid.txt --test wikitext2-test.txt` in tools/. Needs gguf, numpy and tokenizers.
"""

import argparse
import json
import random
import zlib
from pathlib import Path

import gguf
import numpy as np
from tokenizers import Tokenizer

from lib import smollm2, tokenizers_io

from . import everyday, formats, prompts, words
from .kinds import KINDS
from .texts import HELD_OUT, documents
from .vocab import Cut

LONGEST_PROMPT, PIECE = 192, 2600  # tokens; bytes of a piece of Wikipedia text
LEAST = 0.05  # least probability of a token relative to the best
SAMPLE_PROMPTS = Path(__file__).resolve().parent / "sample_prompts.txt"  # answers to these are judged: nothing like them is asked
VOCABULARY = 7680


def pieces(text):
    """Consecutive pieces of whole lines."""
    out, piece = [], ""
    for line in text.splitlines(keepends=True):
        if piece and len(piece) + len(line) > PIECE:
            out.append(piece)
            piece = ""
        piece += line
    return [*out, piece]


def beginnings(text, seed):
    """The first words of every sentence and what follows it, 12 to 60 words."""
    r, out = random.Random(seed), []
    for line in text.splitlines():
        spoken = line.split(" ")
        starts = [0, *(i + 1 for i, w in enumerate(spoken) if w == "." and i + 20 < len(spoken))]
        if len(spoken) > 20:
            out += [" " + " ".join(spoken[s : s + r.randint(12, 60)]).strip() for s in starts]
    return out


def encode(tokenizer, texts):
    return [e.ids for e in tokenizer.encode_batch(texts)]


def wikitext(tokenizer, text):
    lists = encode(tokenizer, [prompts.TEXT_START + p for p in pieces(text)])
    return documents(lists, [1] * len(lists), [KINDS.index("wikitext")] * len(lists))


def formed(tokenizer, count, seed):
    asked, answered = zip(*formats.draw(count, seed))
    heads, tails = encode(tokenizer, list(asked)), encode(tokenizer, list(answered))
    return documents([h + t for h, t in zip(heads, tails)], [len(h) for h in heads], [KINDS.index("format")] * count)


ASKED = ("question", "everyday", "story")  # kinds whose request is ours and not the teacher's


def distinct(maker, count, judged):
    """Prompts without repetition, but those of everyday life, of which there are few; none like the judged ones."""
    out, seen = [], set()
    while len(out) < count:
        kind, text, *rest = maker.draw()
        if kind in ASKED:
            request = text.removeprefix(prompts.SYSTEM + prompts.USER).removesuffix(prompts.END + prompts.ASSISTANT)
            if text in seen or everyday.is_like(request, judged):
                continue
            if kind != "everyday":
                seen.add(text)
        out.append((kind, text, *rest))
    return out


def held_out(number, kind, text):
    """One prompt in so many; by its text, where the same prompt may occur again."""
    return zlib.crc32(text.encode() if kind in ASKED else b"%d" % number) % HELD_OUT == 0


def prompt_arrays(tokenizer, maker, count, judged):
    drawn = distinct(maker, count, judged)
    lists = encode(tokenizer, [d[1] for d in drawn])
    fit = [i for i, ids in enumerate(lists) if len(ids) <= LONGEST_PROMPT]
    ids = np.zeros((len(fit), max(len(lists[i]) for i in fit)), np.uint16)
    for row, i in enumerate(fit):
        ids[row, : len(lists[i])] = lists[i]
    kinds, prompt_texts, ends, first, later = zip(*(drawn[i] for i in fit))
    return {
        "prompt_ids": ids,
        "prompt_lengths": np.array([len(lists[i]) for i in fit]),
        "prompt_kinds": np.array([KINDS.index(k) for k in kinds]),
        "prompt_held": np.array([held_out(i, k, t) for i, k, t in zip(fit, kinds, prompt_texts)]),
        "prompt_ends": np.array(ends),
        "prompt_first": np.array(first, np.float32),
        "prompt_later": np.array(later, np.float32),
        "prompt_least": np.full(len(fit), LEAST, np.float32),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--valid", type=Path, required=True, help="Wikipedia text to train on")
    parser.add_argument("--test", type=Path, required=True, help="Wikipedia text to measure on")
    parser.add_argument("--wordnet", type=Path, default=words.DEFAULT)
    parser.add_argument("--prompts", type=int, default=330000)
    parser.add_argument("--formed", type=int, default=24000, help="chats made by rule")
    parser.add_argument("--seed", type=int, default=20261130)
    args = parser.parse_args()
    source = tokenizers_io.tokenizer_json(gguf.GGUFReader(smollm2.find()))
    tokenizer = Tokenizer.from_str(json.dumps(source))
    valid = args.valid.read_text()
    maker = prompts.Prompts(words.load(args.wordnet), beginnings(valid, args.seed), args.seed)
    judged = SAMPLE_PROMPTS.read_text().splitlines()
    arrays = prompt_arrays(tokenizer, maker, args.prompts, judged)
    arrays |= documents(encode(tokenizer, judged), [0] * len(judged), [0] * len(judged)).arrays("judged")
    arrays |= formed(tokenizer, args.formed, args.seed).arrays("formed")
    arrays |= wikitext(tokenizer, valid).arrays("valid") | wikitext(tokenizer, args.test.read_text()).arrays("test")
    parts, counts = Cut(source, VOCABULARY).spellings()
    np.savez_compressed(args.out, vocabulary=VOCABULARY, parts=parts, counts=counts, head=np.array(tokenizer.encode(prompts.SYSTEM).ids),
                        answer=np.array(tokenizer.encode(prompts.ASSISTANT).ids), **arrays)  # fmt: skip
    print(f"{args.out}: {len(arrays['prompt_lengths'])} prompts of {arrays['prompt_lengths'].mean():.1f} tokens on average, {args.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
