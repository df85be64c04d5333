#!/usr/bin/env python3
"""Everything the GPU run needs besides the teacher, as token ids in one file: prompts, texts of fixed form, Wikipedia text, the vocabulary's table.

Run as `python -m train.inputs OUT.npz --valid wikitext2-valid.txt --test wikitext2-test.txt` in tools/. Needs gguf, numpy and tokenizers.
"""

import argparse
import json
import random
from pathlib import Path

import gguf
import numpy as np
from tokenizers import Tokenizer

from lib import smollm2, tokenizers_io

from . import formats, prompts, words
from .kinds import KINDS
from .texts import documents
from .vocab import Cut

LONGEST_PROMPT, PIECE = 192, 2600  # tokens; bytes of a piece of Wikipedia text
LEAST = {"article": 0.0, "entry": 0.0, "free": 0.0}  # least probability of a token relative to the best
LEAST_CHAT = 0.05
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


def prompt_arrays(tokenizer, maker, count):
    drawn = [maker.draw() for _ in range(count)]
    lists = encode(tokenizer, [d[1] for d in drawn])
    fit = [i for i, ids in enumerate(lists) if len(ids) <= LONGEST_PROMPT]
    ids = np.zeros((len(fit), max(len(lists[i]) for i in fit)), np.uint16)
    for row, i in enumerate(fit):
        ids[row, : len(lists[i])] = lists[i]
    kinds, _, ends, first, later = zip(*(drawn[i] for i in fit))
    return {
        "prompt_ids": ids,
        "prompt_lengths": np.array([len(lists[i]) for i in fit]),
        "prompt_kinds": np.array([KINDS.index(k) for k in kinds]),
        "prompt_ends": np.array(ends),
        "prompt_first": np.array(first, np.float32),
        "prompt_later": np.array(later, np.float32),
        "prompt_least": np.array([LEAST.get(k, LEAST_CHAT) for k in kinds], np.float32),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--valid", type=Path, required=True, help="Wikipedia text to train on")
    parser.add_argument("--test", type=Path, required=True, help="Wikipedia text to measure on")
    parser.add_argument("--wordnet", type=Path, default=words.DEFAULT)
    parser.add_argument("--prompts", type=int, default=230000)
    parser.add_argument("--formed", type=int, default=24000, help="chats made by rule")
    parser.add_argument("--seed", type=int, default=20261130)
    args = parser.parse_args()
    source = tokenizers_io.tokenizer_json(gguf.GGUFReader(smollm2.find()))
    tokenizer = Tokenizer.from_str(json.dumps(source))
    valid = args.valid.read_text()
    maker = prompts.Prompts(words.load(args.wordnet), beginnings(valid, args.seed), args.seed)
    arrays = prompt_arrays(tokenizer, maker, args.prompts)
    arrays |= formed(tokenizer, args.formed, args.seed).arrays("formed")
    arrays |= wikitext(tokenizer, valid).arrays("valid") | wikitext(tokenizer, args.test.read_text()).arrays("test")
    parts, counts = Cut(source, VOCABULARY).spellings()
    np.savez_compressed(args.out, vocabulary=VOCABULARY, parts=parts, counts=counts, head=np.array(tokenizer.encode(prompts.SYSTEM).ids), **arrays)
    print(f"{args.out}: {len(arrays['prompt_lengths'])} prompts of {arrays['prompt_lengths'].mean():.1f} tokens on average, {args.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
