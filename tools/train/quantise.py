"""MLX's affine quantisation in torch, for training with it: w = code * scale + bias per group along the last axis, scale and bias float16.

The codes are those of lib/affine.py with float16 sides; `fake` is what a reader of the file gets, with the gradient passed straight through.
"""

import torch

# Bits and group of each quantised parameter; what is not named stays float16.
FORMATS = {
    "embed": (8, 64), "q": (4, 64), "k": (4, 64), "v": (4, 64), "o": (4, 64), "router": (8, 64),
    "shared_gate": (4, 64), "shared_up": (4, 64), "shared_down": (4, 64), "gate": (4, 64), "up": (4, 64), "down": (4, 64),
}  # fmt: skip


def sides(groups, bits):
    """groups [..., n] -> scale, bias [..., 1] as float16 holds them; the edge of larger magnitude is the bias."""
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    step = ((high - low) / (2**bits - 1)).clamp(min=1e-7)
    from_low = low.abs() > high.abs()
    scale = torch.where(from_low, step, -step).half().float()
    return torch.where(scale == 0, 1e-7, scale), torch.where(from_low, low, high).half().float()


def codes(groups, scale, bias, bits):
    return ((groups - bias) / scale).round().clamp(0, 2**bits - 1)


def dequantised(w, bits, group):
    groups = w.float().unflatten(-1, (-1, group))
    scale, bias = sides(groups, bits)
    return (codes(groups, scale, bias, bits) * scale + bias).flatten(-2)


def fake(w, bits, group):
    return w + (dequantised(w, bits, group) - w).detach()


def through_file(p, gradient=False):
    """Parameters as the quantised file gives them back."""
    one = fake if gradient else dequantised
    return {k: one(w, *FORMATS[k]) if k in FORMATS else w if gradient else w.half().float() for k, w in p.items()}
