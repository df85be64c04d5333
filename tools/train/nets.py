"""The two networks as functions of stacked parameters: the dense teacher (llama) and the student (qwen2_moe).

A parameter stack holds one tensor per layer, [layers, ...]; matrices are [out, in]. Routed experts of a layer lie side by side in one wide FFN:
gate and up [experts * width, hidden], down [hidden, experts * width]; a token's weights of the experts, zero for those not chosen, multiply the
hidden activations. At these sizes the whole wide FFN costs less than gathering tokens by expert.
"""

from dataclasses import asdict, dataclass

import numpy as np
import torch
import torch.nn.functional as F

DENSE_FFN = ("gate", "up", "down")
SPARSE_FFN = ("router", "shared_sigmoid", "shared_gate", "shared_up", "shared_down", *DENSE_FFN)
DENSE = ("ln1", "q", "k", "v", "o", "ln2", *DENSE_FFN)
SPARSE = ("ln1", "q", "k", "v", "o", "ln2", "qb", "kb", "vb", *SPARSE_FFN)


@dataclass(frozen=True)
class Shape:
    """Sizes of either network; experts 0: dense, with `ffn` neurons."""

    vocab: int
    layers: int
    hidden: int = 576
    heads: int = 9
    kv_heads: int = 3
    ffn: int = 1536
    experts: int = 0
    top_k: int = 0
    width: int = 0  # neurons of a routed expert
    shared: int = 0  # neurons of the shared expert
    theta: float = 100000.0
    eps: float = 1e-5

    @property
    def head_dim(self):
        return self.hidden // self.heads

    @property
    def stacks(self):
        return SPARSE if self.experts else DENSE

    def replaced(self, **changes):
        return Shape(**{**asdict(self), **changes})


def rms_norm(x, weight, eps):
    y = x.float()
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)
    return (y * weight.float()).to(x.dtype)


def rotary(shape, positions):
    """-> cos, sin [positions, head_dim], halves repeated."""
    d = shape.head_dim
    frequencies = shape.theta ** (-torch.arange(0, d, 2, device=positions.device, dtype=torch.float32) / d)
    angles = positions.float()[:, None] * frequencies
    return torch.cat([angles.cos()] * 2, -1), torch.cat([angles.sin()] * 2, -1)


def rotate(x, cos, sin):
    """x [..., head_dim]; cos, sin broadcast against it."""
    a, b = x.float().chunk(2, -1)
    return (x.float() * cos + torch.cat([-b, a], -1) * sin).to(x.dtype)


def split_heads(x, heads):
    return x.view(*x.shape[:-1], heads, -1).transpose(-2, -3)


def attention(h, q, k, v, cos, sin, shape):
    """h [batch, time, hidden] (normed) and already projected q, k, v -> [batch, time, hidden], causal."""
    q = rotate(split_heads(q, shape.heads), cos, sin)
    k = rotate(split_heads(k, shape.kv_heads), cos, sin)
    v = split_heads(v, shape.kv_heads)
    repeat = shape.heads // shape.kv_heads
    k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return out.transpose(1, 2).reshape(h.shape)


def swiglu(h, gate, up):
    return F.silu(F.linear(h, gate)) * F.linear(h, up)


def dense_ffn(shape, h, gate, up, down):
    return F.linear(swiglu(h, gate, up), down)


def dense_layer(shape, x, cos, sin, ln1, q, k, v, o, ln2, *ffn):
    h = rms_norm(x, ln1, shape.eps)
    x = x + F.linear(attention(h, F.linear(h, q), F.linear(h, k), F.linear(h, v), cos, sin, shape), o)
    return x + dense_ffn(shape, rms_norm(x, ln2, shape.eps), *ffn)


def route(h, router, top_k):
    """-> weights [..., experts] that sum to 1, zero for all but the top_k; the softmax over all experts."""
    probabilities = F.linear(h.float(), router.float()).softmax(-1)
    rank = (probabilities[..., None, :] > probabilities[..., :, None]).sum(-1)  # cheaper than a sort for few experts
    kept = torch.where(rank < top_k, probabilities, 0.0)
    return kept / kept.sum(-1, keepdim=True), probabilities


def sparse_ffn(shape, h, router, shared_sigmoid, shared_gate, shared_up, shared_down, gate, up, down):
    """-> y, weights of the experts, their probabilities."""
    weights, probabilities = route(h, router, shape.top_k)
    neurons = swiglu(h, gate, up)
    neurons = (neurons.unflatten(-1, (shape.experts, shape.width)) * weights[..., None].to(h.dtype)).flatten(-2)
    shared = F.linear(swiglu(h, shared_gate, shared_up), shared_down)
    opened = torch.sigmoid(F.linear(h.float(), shared_sigmoid[None].float())).to(h.dtype)
    return F.linear(neurons, down) + opened * shared, weights, probabilities


def sparse_layer(shape, x, cos, sin, ln1, q, k, v, o, ln2, qb, kb, vb, *ffn):
    """-> x, share of choices per expert [experts], mean probability per expert [experts]."""
    h = rms_norm(x, ln1, shape.eps)
    x = x + F.linear(attention(h, F.linear(h, q, qb), F.linear(h, k, kb), F.linear(h, v, vb), cos, sin, shape), o)
    y, weights, probabilities = sparse_ffn(shape, rms_norm(x, ln2, shape.eps), *ffn)
    chosen = (weights > 0).float().flatten(0, -2).mean(0) / shape.top_k
    return x + y, chosen, probabilities.flatten(0, -2).mean(0)


def compiled(layer):
    return torch.compile(layer, dynamic=False, fullgraph=True) if torch.cuda.is_available() else layer


class Net:
    """Runs either network on a dictionary of parameters; holds no weights. One compiled layer serves all layers."""

    def __init__(self, shape, compile=True):
        self.shape = shape
        layer = sparse_layer if shape.experts else dense_layer
        self.layer = compiled(layer) if compile else layer

    def hidden(self, p, ids):
        """p: parameters in the type to compute in; ids [batch, time] -> final normed states, list of (chosen, probabilities) per layer."""
        s, routing = self.shape, []
        x = F.embedding(ids, p["embed"])
        cos, sin = rotary(s, torch.arange(ids.shape[1], device=ids.device))
        for weights in zip(*[p[n].unbind(0) for n in s.stacks]):
            x = self.layer(s, x, cos, sin, *weights)
            if s.experts:
                x, *stats = x
                routing.append(stats)
        return rms_norm(x, p["norm"], s.eps), routing

    def logits(self, p, ids):
        return F.linear(self.hidden(p, ids)[0], p["embed"])


def cast(p, dtype):
    return {k: v.to(dtype) for k, v in p.items()}


HF_DENSE = {
    "ln1": "input_layernorm.weight", "q": "self_attn.q_proj.weight", "k": "self_attn.k_proj.weight", "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight", "ln2": "post_attention_layernorm.weight", "gate": "mlp.gate_proj.weight", "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
}  # fmt: skip


def load_teacher(path):
    """SmolLM2's GGUF, dequantised -> shape, float32 parameters on the CPU."""
    import gguf

    from lib import gguf_io

    reader = gguf.GGUFReader(path)
    config = gguf_io.read_config(reader)
    tensors = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in reader.tensors}
    weights = {k: np.array(v) for k, v in gguf_io.canonical_weights(config, tensors).items()}
    shape = Shape(config["vocab_size"], config["num_hidden_layers"], config["hidden_size"], config["num_attention_heads"], config["num_key_value_heads"],
                  config["intermediate_size"], theta=config["rope_theta"], eps=config["rms_norm_eps"])  # fmt: skip
    p = {name: torch.stack([torch.from_numpy(weights[f"model.layers.{i}.{tail}"]) for i in range(shape.layers)]) for name, tail in HF_DENSE.items()}
    p["embed"], p["norm"] = torch.from_numpy(weights["model.embed_tokens.weight"]), torch.from_numpy(weights["model.norm.weight"])
    return shape, p


def random_teacher(shape, seed=0):
    """Weights for trying the scripts out."""
    g = torch.Generator().manual_seed(seed)
    s, kv = shape, shape.kv_heads * shape.head_dim
    sizes = {"q": (s.hidden, s.hidden), "k": (kv, s.hidden), "v": (kv, s.hidden), "o": (s.hidden, s.hidden), "gate": (s.ffn, s.hidden), "up": (s.ffn, s.hidden), "down": (s.hidden, s.ffn)}
    p = {n: torch.randn(s.layers, *size, generator=g) * 0.04 for n, size in sizes.items()}
    p["embed"] = torch.randn(s.vocab, s.hidden, generator=g) * 0.1
    p |= {n: torch.ones(s.layers, s.hidden) for n in ("ln1", "ln2")} | {"norm": torch.ones(s.hidden)}
    return p
