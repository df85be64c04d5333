"""The teacher, or the student, as a writer: continuous batched sampling on one GPU.

Every row of the batch writes one document at a time. A step feeds each row its next token: from its prompt while that lasts, else the sampled one.
A row that ends its document takes the next prompt within the same step, so all rows always work and a step has fixed shapes: it is captured once
as a CUDA graph and replayed. What each step fed is recorded on the GPU and cut into documents afterwards.

The KV cache is [layer][row][kv head][time][head_dim]; attention reads only what a row has written (Triton; a masked product elsewhere).
"""

import math
import time

import numpy as np
import torch
import torch.nn.functional as F

from .nets import DENSE_FFN, SPARSE_FFN, compiled, dense_ffn, rms_norm, rotary, rotate, sparse_ffn

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

TEXT_END, TURN_END = 0, 2  # <|endoftext|>, <|im_end|>
BURST = 50  # steps between two looks at the clock

if triton:

    @triton.jit
    def decode_kernel(Q, K, V, POS, O, time, GROUP: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr):
        """One program: one row, one kv head and its GROUP query heads, over the row's own length. Q, O [row][head][D]; K, V [row][kv][time][D]."""
        row, kv = tl.program_id(0), tl.program_id(1)
        length = tl.load(POS + row) + 1
        g, d = tl.arange(0, 16), tl.arange(0, D)
        at = (row * HEADS + kv * GROUP + g)[:, None] * D + d[None, :]
        q = tl.load(Q + at, mask=g[:, None] < GROUP, other=0.0)
        base = (row.to(tl.int64) * (HEADS // GROUP) + kv) * time * D
        best = tl.full([16], -1e30, tl.float32)
        total = tl.zeros([16], tl.float32)
        acc = tl.zeros([16, D], tl.float32)
        for start in range(0, length, BLOCK):
            t = start + tl.arange(0, BLOCK)
            inside = t < length
            k = tl.load(K + base + t[None, :] * D + d[:, None], mask=inside[None, :], other=0.0)
            s = tl.dot(q, k) * (1.0 / D**0.5)
            s = tl.where(inside[None, :], s, -1e30)
            peak = tl.maximum(best, tl.max(s, 1))
            w = tl.exp(s - peak[:, None])
            keep = tl.exp(best - peak)
            v = tl.load(V + base + t[:, None] * D + d[None, :], mask=inside[:, None], other=0.0)
            acc = acc * keep[:, None] + tl.dot(w.to(v.dtype), v)
            total = total * keep + tl.sum(w, 1)
            best = peak
        tl.store(O + at, (acc / total[:, None]).to(q.dtype), mask=g[:, None] < GROUP)


def decode_attention(q, k, v, position, group):
    """q [rows, heads, d]; k, v [rows, kv, time, d]; row r sees times 0..position[r]."""
    if q.is_cuda:
        out = torch.empty_like(q)
        decode_kernel[(q.shape[0], k.shape[1])](q, k, v, position, out, k.shape[2], group, q.shape[1], q.shape[2], 64)
        return out
    return masked_attention(q, k, v, position, group)


def masked_attention(q, k, v, position, group):
    seen = torch.arange(k.shape[2], device=q.device) <= position[:, None]
    q = q.unflatten(1, (-1, group))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen[:, None, None, :]).flatten(1, 2)


def project(shape, x, cos, sin, ln1, qkv, bias):
    """-> rotated q, k and v of one token per row."""
    rows, d = x.shape[0], shape.head_dim
    y = F.linear(rms_norm(x, ln1, shape.eps), qkv, bias).view(rows, -1, d)
    q, k, v = y.split([shape.heads, shape.kv_heads, shape.kv_heads], 1)
    return rotate(q, cos, sin).contiguous(), rotate(k, cos, sin), v


def finish(shape, x, attended, o, ln2, *ffn):
    x = x + F.linear(attended, o)
    h = rms_norm(x, ln2, shape.eps)
    return x + (sparse_ffn(shape, h, *ffn)[0] if shape.experts else dense_ffn(shape, h, *ffn))


def sample(logits, uniform, temperature, floor):
    """Gumbel sampling at each row's temperature among tokens at least exp(floor) times as probable as the best."""
    z, uniform = logits.float() / temperature[:, None], uniform.clamp(1e-10, 1 - 1e-7)
    z = torch.where(z >= z.amax(-1, keepdim=True) + floor[:, None], z - torch.log(-torch.log(uniform)), -1e30)
    return z.argmax(-1)


class Writer:
    """p: parameters in the types to compute in.
    prompts: (ids [n, longest], lengths [n], ends [n], first temperature [n], later temperature [n], least relative probability [n])."""

    def __init__(self, shape, p, prompts, rows, longest, steps, device):
        self.shape, self.rows, self.longest = shape, rows, longest
        self.p = {k: v.detach().to(device, copy=True) for k, v in p.items()}
        self.p |= self.joined()
        self.graph = None
        ids, lengths, ends, first, later, least = prompts
        to = {"device": device}
        self.prompt, self.length = torch.tensor(ids, dtype=torch.int32, **to), torch.tensor(lengths, **to)
        self.ends, self.first, self.later = (torch.tensor(x, **to) for x in (ends, first, later))
        self.floor = torch.tensor(np.log(np.maximum(least, 1e-9)), dtype=torch.float32, **to)
        self.cache = torch.zeros(2, shape.layers, rows, shape.kv_heads, longest, shape.head_dim, dtype=self.p["embed"].dtype, **to)
        self.document = torch.arange(rows, **to) % len(self.length)
        self.next_document = torch.full((1,), rows, **to)
        self.position, self.ended = torch.zeros(rows, dtype=torch.long, **to), torch.zeros(rows, dtype=torch.long, **to)
        self.token = self.prompt[self.document, 0].long()
        self.history = torch.zeros(2, steps, rows, dtype=torch.int32, **to)
        self.step_number = torch.zeros(1, dtype=torch.long, **to)
        self.all_rows = torch.arange(rows, **to)
        self.cos, self.sin = rotary(shape, torch.arange(longest, **to))
        self.project, self.finish, self.sample = compiled(project), compiled(finish), compiled(sample)

    def joined(self):
        p = self.p
        out = {"qkv": torch.cat([p["q"], p["k"], p["v"]], 1)}
        return out | ({"bias": torch.cat([p["qb"], p["kb"], p["vb"]], 1)} if self.shape.experts else {})

    @torch.no_grad()
    def restart(self, p):
        """With other weights, from the next prompts on."""
        for k, v in p.items():
            self.p[k].copy_(v)
        for k, v in self.joined().items():
            self.p[k].copy_(v)
        self.document.copy_((self.next_document + self.all_rows) % len(self.length))
        self.next_document.copy_((self.next_document + self.rows) % len(self.length))
        for state in (self.position, self.ended, self.step_number):
            state.zero_()
        self.token.copy_(self.prompt[self.document, 0].long())

    def logits(self):
        s, p = self.shape, self.p
        ffn = SPARSE_FFN if s.experts else DENSE_FFN
        x = p["embed"][self.token]
        cos, sin = self.cos[self.position][:, None], self.sin[self.position][:, None]
        for i in range(s.layers):
            q, k, v = self.project(s, x, cos, sin, p["ln1"][i], p["qkv"][i], p["bias"][i] if s.experts else None)
            self.cache[0, i][self.all_rows, :, self.position] = k
            self.cache[1, i][self.all_rows, :, self.position] = v
            attended = decode_attention(q, self.cache[0, i], self.cache[1, i], self.position, s.heads // s.kv_heads)
            x = self.finish(s, x, attended.flatten(1), p["o"][i], p["ln2"][i], *(p[n][i] for n in ffn))
        return F.linear(rms_norm(x, p["norm"], s.eps), p["embed"])

    def step(self):
        logits, doc = self.logits(), self.document
        uniform = torch.rand(logits.shape, device=logits.device)
        own_turn = (self.ended % 2 == 0) & (self.ends[doc] > 1)
        temperature = torch.where(own_turn, self.first[doc], self.later[doc])
        sampled = self.sample(logits, uniform, temperature, self.floor[doc])
        position = self.position + 1
        given = position < self.length[doc]
        token = torch.where(given, self.prompt[doc, position.clamp(max=self.prompt.shape[1] - 1)].long(), sampled)
        self.ended += ~given & (token == TURN_END)
        done = ~given & ((token == TEXT_END) | (self.ended >= self.ends[doc])) | (position >= self.longest - 1)
        self.record(token)
        fresh = (self.next_document + done.cumsum(0) - 1) % len(self.length)
        self.next_document += done.sum()
        self.document.copy_(torch.where(done, fresh, doc))
        self.position.copy_(torch.where(done, 0, position))
        self.ended.copy_(torch.where(done, 0, self.ended))
        self.token.copy_(torch.where(done, self.prompt[self.document, 0].long(), token))

    def record(self, token):
        self.history[0].index_copy_(0, self.step_number, token.int()[None])
        self.history[1].index_copy_(0, self.step_number, self.document.int()[None])
        self.step_number += 1

    @torch.no_grad()
    def run(self, seconds, log=print, again=False):
        """Writes until the time, the history or, unless they may be answered `again`, the prompts are used up."""
        steps = self.history.shape[1]
        if self.token.is_cuda and not self.graph:
            self.graph = self.capture()
        advance = self.graph.replay if self.graph else self.step
        begin = time.time()
        while True:
            for _ in range(min(BURST, steps - int(self.step_number))):
                advance()
            taken, used = int(self.step_number), int(self.next_document)
            spent = time.time() - begin
            if taken % 1000 == 0:
                log(f"writer: {taken} steps, {used} documents begun, {taken * self.rows / spent:.0f} tokens/s")
            if spent > seconds or taken == steps or (used > len(self.length) - self.rows and not again):
                log(f"writer: {taken} steps of {self.rows} rows in {spent:.1f} s, {used} documents begun")
                return

    def capture(self):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
        return graph

    def documents(self):
        """-> ids (one array), offsets [n + 1], prompt number [n], whether it came to its end [n]. Documents still being written are left out."""
        taken = int(self.step_number)
        tokens, docs = (self.history[i, :taken].T.cpu().numpy() for i in range(2))
        first = self.prompt[:, 0].cpu().numpy()
        edge = np.ones((self.rows, taken + 1), bool)
        edge[:, 1:-1] = docs[:, 1:] != docs[:, :-1]
        ids, offsets, numbers = [], [0], []
        for row in range(self.rows):
            starts = np.flatnonzero(edge[row])[:-1]
            for a, b in zip(starts[:-1], starts[1:]):
                doc = docs[row, a]
                ids.append(np.concatenate([[first[doc]], tokens[row, a:b]]))
                numbers.append(doc)
                offsets.append(offsets[-1] + len(ids[-1]))
        numbers, offsets = np.array(numbers), np.array(offsets)
        whole = np.diff(offsets) < self.longest
        return np.concatenate(ids).astype(np.uint16), offsets, numbers, whole
