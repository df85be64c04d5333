"""A smaller vocabulary of the same kind: the first merges of a byte-level BPE are a BPE of their own.

A merge can only use tokens that earlier merges made, so text encoded with the first M merges is what the whole BPE has after its first M ranks;
the later merges only join those tokens further. Hence every id of the large vocabulary has one fixed spelling in the small one (`spellings`), and
texts are carried over id by id, without a tokenizer.

Ids of the small vocabulary: those of the large one up to its first M merges, then the bytes that the large one lacks, so that any text can be said.
"""

import copy

import numpy as np


def byte_alphabet():
    """The 256 characters that stand for bytes in a byte-level BPE (GPT-2's table)."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [b for b in range(256) if b not in plain]
    return [chr(b) for b in plain] + [chr(256 + i) for i in range(len(others))]


def pair(merge):
    return tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge)


class Cut:
    """tokenizer: a parsed tokenizer.json whose ids are: special tokens, bytes, then one per merge in order. size: of the small vocabulary."""

    def __init__(self, tokenizer, size):
        vocab, merges = tokenizer["model"]["vocab"], [pair(m) for m in tokenizer["model"]["merges"]]
        self.tokens = sorted(vocab, key=vocab.get)
        first_merge = len(self.tokens) - len(merges)
        if [a + b for a, b in merges] != self.tokens[first_merge:]:
            raise SystemExit("tokenizer.json: ids are not in the order of the merges")
        missing = [c for c in byte_alphabet() if c not in vocab]
        self.size, self.kept = size, size - len(missing)  # ids below `kept` are the same in both
        self.merges, self.first_merge, self.missing = merges, first_merge, missing
        self.vocab = vocab
        self.source = tokenizer

    def tokenizer(self):
        """tokenizer.json of the small vocabulary."""
        out = copy.deepcopy(self.source)
        out["model"]["vocab"] = {t: i for i, t in enumerate(self.tokens[: self.kept] + self.missing)}
        out["model"]["merges"] = [list(m) for m in self.merges[: self.kept - self.first_merge]]
        return out

    def spellings(self):
        """-> (parts, counts): id i of the large vocabulary is parts[i, :counts[i]] in the small one."""
        spelt = [[i] for i in range(self.kept)]
        for i in range(self.kept, len(self.tokens)):
            a, b = self.merges[i - self.first_merge]
            spelt.append(spelt[self.vocab[a]] + spelt[self.vocab[b]])
        counts = np.array([len(s) for s in spelt], np.int64)
        parts = np.zeros((len(spelt), counts.max()), np.int32)
        for i, s in enumerate(spelt):
            parts[i, : len(s)] = s
        return parts, counts


def respell(ids, offsets, parts, counts):
    """Concatenated documents of large ids, document d = ids[offsets[d]:offsets[d + 1]], in the small vocabulary: (ids, offsets)."""
    n = counts[ids]
    ends = np.concatenate([[0], np.cumsum(n)])
    small = np.empty(ends[-1], np.int32)
    for k in range(int(n.max(initial=0))):
        longer = n > k
        small[ends[:-1][longer] + k] = parts[ids[longer], k]
    return small, ends[offsets]
