"""llama2.c's files and its greedy sampling, in float32 numpy: the reference for what a checkpoint made of them must say.

Model file: seven i32 (dim, hidden_dim, layers, heads, kv_heads, vocab (negative: head not tied), seq_len), then f32 arrays in the order of
ORDER below. Rotary pairs are neighbours (2i, 2i + 1). Tokenizer file: i32 longest piece, then per token f32 score, i32 length, bytes;
spaces stand where SentencePiece has U+2581; ids 0, 1, 2 are unk, BOS, EOS and 3..258 the bytes.
"""

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

BOS, EOS, FIRST_BYTE = 1, 2, 3


@dataclass
class Model:
    dim: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    vocab: int
    seq_len: int
    w: dict  # {name: array}; per-layer arrays have the layer first


def read_model(path):
    raw = Path(path).read_bytes()
    dim, hidden, layers, heads, kv_heads, vocab, seq_len = struct.unpack_from("<7i", raw)
    tied, vocab = vocab > 0, abs(vocab)
    kv, half = dim // heads * kv_heads, dim // heads // 2
    order = {
        "embed": (vocab, dim), "att_norm": (layers, dim), "wq": (layers, dim, dim), "wk": (layers, kv, dim), "wv": (layers, kv, dim),
        "wo": (layers, dim, dim), "ffn_norm": (layers, dim), "w1": (layers, hidden, dim), "w2": (layers, dim, hidden), "w3": (layers, hidden, dim),
        "norm": (dim,), "unused_cos": (seq_len, half), "unused_sin": (seq_len, half),
    }  # fmt: skip
    if not tied:
        order["head"] = (vocab, dim)
    w, offset = {}, 28
    for name, shape in order.items():
        w[name] = np.frombuffer(raw, "<f4", int(np.prod(shape)), offset).reshape(shape)
        offset += w[name].nbytes
    if offset != len(raw):
        raise SystemExit(f"{path}: {len(raw)} bytes, expected {offset}")
    return Model(dim, hidden, layers, heads, kv_heads, vocab, seq_len, w)


def read_tokenizer(path, vocab):
    """-> (pieces as bytes, scores)"""
    raw = Path(path).read_bytes()
    pieces, scores, offset = [], [], 4
    for _ in range(vocab):
        score, n = struct.unpack_from("<fi", raw, offset)
        pieces.append(raw[offset + 8 : offset + 8 + n])
        scores.append(score)
        offset += 8 + n
    if offset != len(raw):
        raise SystemExit(f"{path}: {len(raw)} bytes, expected {offset}")
    return pieces, scores


def rmsnorm(x, weight):
    return x / np.sqrt(np.mean(x * x) + np.float32(1e-5)) * weight


def rotate(x, position, heads):
    """x [heads * d], neighbours paired."""
    d = x.size // heads
    angle = position * 10000.0 ** (-np.arange(0, d, 2) / d)
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    pairs = x.reshape(heads, d // 2, 2)
    a, b = pairs[..., 0], pairs[..., 1]
    return np.stack([a * cos - b * sin, a * sin + b * cos], -1).reshape(heads, d)


def attention(q, keys, values):
    """q [heads][d]; keys, values: lists over positions of [kv_heads][d]"""
    k, v = np.array(keys), np.array(values)
    group = q.shape[0] // k.shape[1]
    out = np.empty_like(q)
    for h in range(q.shape[0]):
        scores = k[:, h // group] @ q[h] / np.float32(np.sqrt(q.shape[1]))
        p = np.exp(scores - scores.max())
        out[h] = (p / p.sum()) @ v[:, h // group]
    return out.reshape(-1)


def forward(m, token, position, cache):
    """Logits after one token; cache: per layer ([keys], [values]), appended to."""
    w = m.w
    x = w["embed"][token].copy()
    for layer in range(m.layers):
        keys, values = cache[layer]
        n = rmsnorm(x, w["att_norm"][layer])
        keys.append(rotate(w["wk"][layer] @ n, position, m.kv_heads))
        values.append((w["wv"][layer] @ n).reshape(m.kv_heads, -1))
        x = x + w["wo"][layer] @ attention(rotate(w["wq"][layer] @ n, position, m.heads), keys, values)
        n = rmsnorm(x, w["ffn_norm"][layer])
        gate = w["w1"][layer] @ n
        x = x + w["w2"][layer] @ (gate / (1 + np.exp(-gate)) * (w["w3"][layer] @ n))
    return w.get("head", w["embed"]) @ rmsnorm(x, w["norm"])


def greedy(m, steps):
    """Ids that llama2.c prints at temperature 0 with an empty prompt: at most `steps`, ended by BOS. Also the least gap to the second choice."""
    cache = [([], []) for _ in range(m.layers)]
    token, ids, margin = BOS, [], np.inf
    for position in range(steps):
        logits = forward(m, token, position, cache)
        second, first = np.sort(logits)[-2:]
        margin = min(margin, float(first - second))
        token = int(logits.argmax())
        if token == BOS:
            break
        ids.append(token)
    return ids, margin


def decode(pieces, ids):
    """The bytes that llama2.c prints: the space of a piece right after BOS is dropped."""
    out, previous = b"", BOS
    for i in ids:
        piece = pieces[i]
        if previous == BOS and piece.startswith(b" "):
            piece = piece[1:]
        out += bytes([i - FIRST_BYTE]) if FIRST_BYTE <= i < FIRST_BYTE + 256 else piece
        previous = i
    return out


def encode(pieces, scores, text):
    """llama2.c's ids of a text, without BOS: characters, bytes where unknown, then the best-scored merge until none is left."""
    index = {p: i for i, p in enumerate(pieces)}
    ids = [index[b" "]] if text else []
    for c in text:
        ids += [index[c.encode()]] if c.encode() in index else [b + FIRST_BYTE for b in c.encode()]
    while True:
        best = max(((scores[index[pieces[a] + pieces[b]]], -i) for i, (a, b) in enumerate(zip(ids, ids[1:])) if pieces[a] + pieces[b] in index), default=None)
        if best is None:
            return ids
        i = -best[1]
        ids[i : i + 2] = [index[pieces[ids[i]] + pieces[ids[i + 1]]]]
