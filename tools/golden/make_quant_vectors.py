#!/usr/bin/env python3
"""Writes tests/golden/quant/*.bin: random blocks of every element format with the floats that Python's gguf package (MLX's formats: the
published formula w = q * scale + bias, in float32) makes of them, and inputs with the blocks its reference quantisers make.

Needs numpy and gguf. Run: python3 tools/golden/make_quant_vectors.py [output directory]

A file, little endian: "SLQ1", 16 bytes of format name, u32 group, 16 bytes of side type name, u32 rows, u32 cols, u32 bytes of each of three
parts; the parts; rows * cols float32. In dequantize_*.bin the floats are the expected result, in quantize_*.bin the input and part 0 is expected.
"""

import struct
import sys
from pathlib import Path

import numpy as np
import gguf
from gguf import GGMLQuantizationType as T
from gguf.quants import dequantize, quantize

SEED = 20240607
ROWS = 3

# name: (columns, byte offsets of the f16 fields of one block)
BLOCKS = {
    "Q4_0": (32 * 9, [0]),
    "Q4_1": (32 * 9, [0, 2]),
    "Q5_0": (32 * 9, [0]),
    "Q5_1": (32 * 9, [0, 2]),
    "Q8_0": (32 * 9, [0]),
    "Q4_K": (256 * 3, [0, 2]),
    "Q5_K": (256 * 3, [0, 2]),
    "Q6_K": (256 * 3, [208]),
}

# zero, both subnormal ends, least normal, one, largest, ordinary
EXTREME_HALVES = np.array([0x0000, 0x8000, 0x0001, 0x83FF, 0x0400, 0x3C00, 0x7BFF, 0xFBFF, 0x2E66, 0xA123], dtype=np.uint16)


def write(path, name, group, side, rows, cols, parts, floats):
    parts = list(parts) + [b""] * (3 - len(parts))
    head = b"SLQ1" + struct.pack("<16sI16sII3I", name.encode(), group, side.encode(), rows, cols, *map(len, parts))
    path.write_bytes(head + b"".join(parts) + np.ascontiguousarray(floats, dtype="<f4").tobytes())


def half_fields(rng, n):
    """Random finite halves, half of them extreme."""
    h = rng.integers(0, 0x7C00, n, dtype=np.uint16) | (rng.integers(0, 2, n, dtype=np.uint16) << 15)
    return np.where(rng.random(n) < 0.5, rng.choice(EXTREME_HALVES, n), h).astype("<u2")


def block_bytes(rng, name):
    cols, fields = BLOCKS[name]
    weights, size = gguf.GGML_QUANT_SIZES[T[name]]
    n = ROWS * cols // weights
    blocks = rng.integers(0, 256, (n, size), dtype=np.uint8)
    for at in fields:
        blocks[:, at : at + 2] = half_fields(rng, n).view(np.uint8).reshape(n, 2)
    blocks[0, :] = 0
    return blocks.reshape(ROWS, -1), cols


def dequantize_blocks(out, rng):
    for name in BLOCKS:
        data, cols = block_bytes(rng, name)
        write(out / f"dequantize_{name}.bin", name, 0, "", ROWS, cols, [data.tobytes()], dequantize(data, T[name]))


def dequantize_floats(out, rng):
    cols = 171
    halves = half_fields(rng, ROWS * cols).reshape(ROWS, cols)
    write(out / "dequantize_F16.bin", "F16", 0, "", ROWS, cols, [halves.tobytes()], dequantize(halves.view("<f2"), T.F16))
    brains = rng.integers(0, 0x7F80, (ROWS, cols), dtype=np.uint16) | (rng.integers(0, 2, (ROWS, cols), dtype=np.uint16) << 15)
    brains = brains.astype("<u2")
    write(out / "dequantize_BF16.bin", "BF16", 0, "", ROWS, cols, [brains.tobytes()], dequantize(brains.view(np.uint8), T.BF16))
    floats = (brains.astype("<u4") << 16 | rng.integers(0, 65536, (ROWS, cols), dtype=np.uint32)).astype("<u4").view("<f4")
    write(out / "dequantize_F32.bin", "F32", 0, "", ROWS, cols, [floats.tobytes()], floats)


def side_values(rng, shape, side):
    """Bytes and exact float32 values of random scales or biases."""
    n = int(np.prod(shape))
    if side == "F16":
        h = half_fields(rng, n)
        return h.tobytes(), h.view("<f2").astype("<f4").reshape(shape)
    v = (rng.standard_normal(n) * 10.0 ** rng.integers(-20, 20, n)).astype("<f4")
    if side == "F32":
        return v.tobytes(), v.reshape(shape)
    b = (v.view("<u4") >> 16).astype("<u2")
    return b.tobytes(), (b.astype("<u4") << 16).view("<f4").reshape(shape)


def dequantize_affine(out, rng):
    cols = 384
    for bits in (4, 8):
        for group in (32, 64, 128):
            for side in ("F16", "BF16", "F32"):
                q = rng.integers(0, 1 << bits, (ROWS, cols), dtype=np.uint32)
                per_word = 32 // bits
                words = np.zeros((ROWS, cols // per_word), dtype=np.uint32)
                for i in range(per_word):
                    words |= q[:, i::per_word] << np.uint32(bits * i)
                shape = (ROWS, cols // group)
                scale_bytes, scale = side_values(rng, shape, side)
                bias_bytes, bias = side_values(rng, shape, side)
                w = q.astype(np.float32) * np.repeat(scale, group, 1) + np.repeat(bias, group, 1)
                assert w.dtype == np.float32
                write(out / f"dequantize_affine{bits}_{group}_{side}.bin", f"affine{bits}", group, side, ROWS, cols,
                      [words.astype("<u4").tobytes(), scale_bytes, bias_bytes], w)


def quantize_blocks(out, rng):
    for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "BF16", "F16"):
        cols = 320
        x = (rng.standard_normal((ROWS, cols)) * 10.0 ** rng.integers(-3, 4, (ROWS, cols // 32)).repeat(32, 1)).astype("<f4")
        x[0, :32] = 0
        x[1, 32:64] = 1.5
        x[2, :8] *= 1e-7
        data = np.ascontiguousarray(quantize(x, T[name]))
        write(out / f"quantize_{name}.bin", name, 0, "", ROWS, cols, [data.tobytes()], x)


def main():
    root = Path(__file__).resolve().parent.parent.parent
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else root / "tests" / "golden" / "quant"
    out.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(SEED)
    with np.errstate(over="ignore", invalid="ignore"):
        dequantize_blocks(out, rng)
        dequantize_floats(out, rng)
        dequantize_affine(out, rng)
        quantize_blocks(out, rng)
    print(f"{len(list(out.glob('*.bin')))} files, {sum(p.stat().st_size for p in out.glob('*.bin'))} bytes in {out}")


if __name__ == "__main__":
    main()
