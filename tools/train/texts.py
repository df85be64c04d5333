"""Documents as arrays of token ids: what is kept of the teacher's writing, what is held out, and rows to train on."""

from dataclasses import dataclass

import numpy as np

from .vocab import respell

SEPARATOR = 0  # <|endoftext|>
HELD_OUT = 64  # one document in so many


@dataclass
class Documents:
    """Document d is ids[offsets[d]:offsets[d + 1]]; its first prompts[d] ids were given, the rest written. kinds: indices into kind names."""

    ids: np.ndarray
    offsets: np.ndarray
    prompts: np.ndarray
    kinds: np.ndarray

    def __len__(self):
        return len(self.prompts)

    def __getitem__(self, d):
        return self.ids[self.offsets[d] : self.offsets[d + 1]]

    def subset(self, chosen):
        chosen = np.asarray(chosen)
        chosen = np.flatnonzero(chosen) if chosen.dtype == bool else chosen
        return documents([self[d] for d in chosen], self.prompts[chosen], self.kinds[chosen])

    def shortened(self, kinds, length):
        """Documents of these kinds without what follows their first `length` ids."""
        cut = np.isin(self.kinds, kinds)
        return documents([self[d][:length] if cut[d] else self[d] for d in range(len(self))], self.prompts, self.kinds)

    def respelt(self, parts, counts):
        ids, offsets = respell(self.ids.astype(np.int64), self.offsets, parts, counts)
        ends = np.concatenate([[0], np.cumsum(counts[self.ids.astype(np.int64)])])
        prompts = ends[self.offsets[:-1] + self.prompts] - offsets[:-1]
        return Documents(ids.astype(np.uint16), offsets, prompts, self.kinds)

    def arrays(self, name):
        return {f"{name}_{k}": v for k, v in vars(self).items()}


def documents(lists, prompts, kinds):
    offsets = np.concatenate([[0], np.cumsum([len(x) for x in lists])]).astype(np.int64)
    ids = np.concatenate([*lists, np.zeros(0, np.uint16)]).astype(np.uint16)
    return Documents(ids, offsets, np.asarray(prompts, np.int64), np.asarray(kinds, np.int64))


def from_arrays(arrays, name):
    return Documents(*(arrays[f"{name}_{k}"] for k in ("ids", "offsets", "prompts", "kinds")))


def join(*parts):
    offsets = [p.offsets[:-1] + sum(len(q.ids) for q in parts[:i]) for i, p in enumerate(parts)]
    total = sum(len(p.ids) for p in parts)
    return Documents(np.concatenate([p.ids for p in parts]), np.concatenate([*offsets, [total]]),
                     np.concatenate([p.prompts for p in parts]), np.concatenate([p.kinds for p in parts]))  # fmt: skip


def loops(ids):
    """Whether a text mostly repeats itself: half of its runs of four tokens, or more, occurred before."""
    if len(ids) < 64:
        return False
    x = ids.astype(np.uint64)
    runs = x[:-3] | x[1:-2] << np.uint64(16) | x[2:-1] << np.uint64(32) | x[3:] << np.uint64(48)
    return len(np.unique(runs)) * 2 < len(runs)


def clean(docs, head):
    """Without the fixed system turn `head` at the front, and without loops and texts of hardly any length."""
    lists, prompts, kinds = [], [], []
    for d in range(len(docs)):
        x, prompt = docs[d], int(docs.prompts[d])
        if len(x) - prompt < 4 or loops(x[prompt:]):
            continue
        if len(x) > len(head) and np.array_equal(x[: len(head)], head):
            x, prompt = x[len(head) :], prompt - len(head)
        lists.append(x)
        prompts.append(prompt)
        kinds.append(docs.kinds[d])
    return documents(lists, prompts, kinds)


def pack(docs, order, length, rng):
    """Documents in this order, in rows of `length` ids [rows, length]: a row begins with a document, and one that does not fit is cut."""
    rows, row, room = [], [], length
    starts, ends = docs.offsets[order], docs.offsets[np.asarray(order) + 1]
    for begin, end in zip(starts.tolist(), ends.tolist()):
        x = docs.ids[begin:end]
        if not row and x[0] == SEPARATOR and rng.random() < 0.5:
            x = x[1:]
        elif row and x[0] != SEPARATOR:
            row.append(np.array([SEPARATOR], np.uint16))
            room -= 1
        row.append(x[: max(room, 0)])
        room -= len(x)
        if room <= 0:
            rows.append(np.concatenate(row)[:length])
            row, room = [], length
    return np.stack(rows) if rows else np.zeros((0, length), np.uint16)


class Batches:
    """Endless batches [rows, length]; each epoch is packed anew, a document repeated by its kind's weight (whole part always, rest by chance)."""

    def __init__(self, docs, weights, rows, length, seed):
        self.docs, self.weights = docs, np.asarray(weights, float)[docs.kinds]
        self.rows, self.length, self.rng, self.epochs = rows, length, np.random.default_rng(seed), 0
        self.packed, self.at = np.zeros((0, length), np.uint16), 0

    def next(self):
        if self.at + self.rows > len(self.packed):
            times = np.floor(self.weights + self.rng.random(len(self.weights))).astype(int)
            order = np.repeat(np.arange(len(self.docs)), times)
            self.rng.shuffle(order)
            self.packed, self.at = pack(self.docs, order, self.length, self.rng), 0
            self.rng.shuffle(self.packed)
            self.epochs += 1
        self.at += self.rows
        return self.packed[self.at - self.rows : self.at].astype(np.int64)
