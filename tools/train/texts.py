"""Documents as arrays of token ids: what is kept of the teacher's writing, what is held out, and rows to train on."""

from dataclasses import dataclass

import numpy as np

from .vocab import respell

SEPARATOR = 0  # <|endoftext|>
HELD_OUT = 64  # one document in so many
SHORT, LOOP = 64, 32  # ids: too short to tell; looked at to find where a loop begins
LOOPS = 0.35  # share of repetition from which a text is dropped


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


def slice_of(docs, begin, end):
    first, last = docs.offsets[begin], docs.offsets[end]
    return Documents(docs.ids[first:last], docs.offsets[begin : end + 1] - first, docs.prompts[begin:end], docs.kinds[begin:end])


def join(*parts):
    offsets = [p.offsets[:-1] + sum(len(q.ids) for q in parts[:i]) for i, p in enumerate(parts)]
    total = sum(len(p.ids) for p in parts)
    return Documents(np.concatenate([p.ids for p in parts]), np.concatenate([*offsets, [total]]),
                     np.concatenate([p.prompts for p in parts]), np.concatenate([p.kinds for p in parts]))  # fmt: skip


def said_before(ids):
    """Which runs of four tokens occurred earlier in the text: bool [len - 3]."""
    x = ids.astype(np.uint64)
    runs = x[:-3] | x[1:-2] << np.uint64(16) | x[2:-1] << np.uint64(32) | x[3:] << np.uint64(48)
    out = np.ones(len(runs), bool)
    out[np.unique(runs, return_index=True)[1]] = False
    return out


def before_loop(ids):
    """How many ids come before the text begins to repeat itself: three quarters of the next runs said before."""
    if len(ids) < SHORT:
        return len(ids)
    total = np.concatenate([[0], np.cumsum(said_before(ids))])
    inside = np.flatnonzero(total[LOOP:] - total[:-LOOP] >= 0.75 * LOOP)
    return int(inside[0]) if len(inside) else len(ids)


def loops(ids):
    """Whether a text repeats itself much."""
    return len(ids) >= SHORT and said_before(ids).mean() > LOOPS


def clean(docs, head=(), unwanted=()):
    """Without the fixed system turn `head` at the front, and each cut where it begins to loop; without texts of which hardly anything is left, those
    that repeat themselves otherwise, and those with one of the `unwanted` runs of ids."""
    lists, prompts, kinds = [], [], []
    unwanted = [np.asarray(u, np.uint16).tobytes() for u in unwanted]
    for d in range(len(docs)):
        x, prompt = docs[d], int(docs.prompts[d])
        length = before_loop(x[prompt:])
        if length < (4 if length == len(x) - prompt else SHORT):
            continue
        x = x[: prompt + length]
        if loops(x[prompt:]) or any(u in x.tobytes() for u in unwanted):
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


def rows(docs, weights, length, rng):
    """Documents packed in any order [rows, length], each repeated by its kind's weight (whole part always, rest by chance)."""
    weights = np.asarray(weights, float)[docs.kinds]
    order = np.repeat(np.arange(len(docs)), np.floor(weights + rng.random(len(weights))).astype(int))
    rng.shuffle(order)
    return pack(docs, order, length, rng)


def until(docs, ids, longest):
    """The documents up to the first occurrence of `ids`, itself included, where that is at most `longest` ids: [n, longest], lengths [n]."""
    mark = np.asarray(ids, np.uint16)
    out, lengths = [], []
    for d in range(len(docs)):
        x = docs[d][:longest]
        at = np.flatnonzero((np.lib.stride_tricks.sliding_window_view(x, len(mark)) == mark).all(-1)) if len(x) >= len(mark) else ()
        if len(at):
            lengths.append(at[0] + len(mark))
            out.append(np.pad(x[: lengths[-1]], (0, longest - lengths[-1])))
    return np.stack(out), np.array(lengths)
