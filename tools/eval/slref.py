"""The reference file of `sluice eval --reference`: what a reference model gives to the next token, position by position. Little-endian:

  char magic[8]   "SLREF1\\0\\0"
  u32  positions
  u32  vocab
  u32  k          entries per position; vocab: the full distribution
  u32  0
  i32  tokens[positions]             row p is the distribution after tokens[0..p], in one window
  k == vocab: f32 logprob[positions][vocab]
  k <  vocab: u32 id[positions][k], then f32 logprob[positions][k], both by falling probability

With k < vocab the Kullback-Leibler divergence is taken over k + 1 events: the k tokens, and all others together.
"""

import struct

import numpy as np

MAGIC = b"SLREF1\0\0"


def begin(path, tokens, vocab, k):
    """An open file, after header and tokens."""
    f = open(path, "wb")
    f.write(MAGIC + struct.pack("<4I", len(tokens), vocab, k, 0))
    f.write(np.asarray(tokens, "<i4").tobytes())
    return f


def top(logprobs, k):
    """-> (ids, logprobs) of the k most probable, ties by id."""
    ids = np.argsort(-logprobs, axis=-1, kind="stable")[:, :k].astype("<u4")
    return ids, np.take_along_axis(logprobs, ids.astype(np.int64), -1).astype("<f4")


def write_top(path, tokens, vocab, ids, logprobs):
    with begin(path, tokens, vocab, ids.shape[1]) as f:
        f.write(ids.tobytes())
        f.write(logprobs.tobytes())


def read(path):
    """-> (tokens, vocab, k, body): body is [positions][vocab] logprobs, mapped, or (ids, logprobs)."""
    with open(path, "rb") as f:
        magic, positions, vocab, k, _ = struct.unpack("<8s4I", f.read(24))
        if magic != MAGIC:
            raise SystemExit(f"{path}: not a reference file")
        tokens = np.frombuffer(f.read(4 * positions), "<i4")
        offset = f.tell()
    if k == vocab:
        return tokens, vocab, k, np.memmap(path, "<f4", "r", offset, (positions, vocab))
    ids = np.fromfile(path, "<u4", positions * k, offset=offset).reshape(positions, k)
    return tokens, vocab, k, (ids, np.fromfile(path, "<f4", positions * k, offset=offset + ids.nbytes).reshape(positions, k))


def kl(p, q):
    """KL(p || q) per row of full log-probabilities, in nats."""
    p, q = p.astype(np.float64), q.astype(np.float64)
    return (np.exp(p) * (p - q)).sum(-1)


def kl_top(ids, p, q):
    """KL over the k tokens of p and the rest: q is full."""
    p, q = p.astype(np.float64), np.take_along_axis(q, ids.astype(np.int64), -1).astype(np.float64)
    rest_p, rest_q = (np.maximum(1 - np.exp(x).sum(-1), 1e-12) for x in (p, q))
    return (np.exp(p) * (p - q)).sum(-1) + rest_p * (np.log(rest_p) - np.log(rest_q))
