"""MLX's affine quantisation: w = code * scale + bias per group along the last axis, codes packed low bits first into u32."""

import numpy as np

from . import floats


def quantise(w, bits, group):
    """-> (packed u32 [..., cols*bits/32], scales, biases [..., cols/group]); scales and biases are float32 values that bfloat16 holds exactly.

    The edge of larger magnitude is the bias, so scales of both signs occur, as in published checkpoints."""
    levels = 2**bits - 1
    g = np.asarray(w, np.float32).reshape(*w.shape[:-1], -1, group)
    low, high = g.min(-1), g.max(-1)
    from_low = np.abs(low) > np.abs(high)
    step = np.maximum((high - low) / levels, 1e-7)
    scale = floats.round_bf16(np.where(from_low, step, -step))
    bias = floats.round_bf16(np.where(from_low, low, high))
    codes = np.clip(np.rint((g - bias[..., None]) / scale[..., None]), 0, levels).astype(np.uint32)
    words = codes.reshape(*w.shape[:-1], -1, 32 // bits)
    packed = np.zeros(words.shape[:-1], np.uint32)
    for i in range(32 // bits):
        packed |= words[..., i] << np.uint32(i * bits)
    return packed, scale, bias


def dequantise(packed, scale, bias, bits, group):
    shifts = np.arange(32 // bits, dtype=np.uint32) * np.uint32(bits)
    codes = ((packed[..., None] >> shifts) & np.uint32(2**bits - 1)).astype(np.float32)
    codes = codes.reshape(*packed.shape[:-1], -1, group)
    w = codes * scale[..., None] + bias[..., None]
    return w.reshape(*packed.shape[:-1], -1).astype(np.float32)
