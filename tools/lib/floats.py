"""bfloat16 for numpy, which has none: held as uint16 on disk, as float32 in memory."""

import numpy as np


def to_bf16_bits(x):
    """float32 -> uint16, round to nearest even. NaN is not expected here."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16_bits(bits):
    return (np.asarray(bits).astype(np.uint32) << 16).view(np.float32)


def round_bf16(x):
    return from_bf16_bits(to_bf16_bits(x))


def portable(x):
    """Rounds to values that bfloat16 and float16 both hold exactly, so that one set of weights can be written in either."""
    x = np.asarray(x, np.float32)
    return round_bf16(np.where(np.abs(x) < 2.0**-14, 0, x))
