#!/usr/bin/env python3
"""Writes tests/golden/quant/*.bin: random blocks of every element format with the floats that Python's gguf package (MLX's formats: the
published formula w = q * scale + bias, in float32) makes of them, and inputs with the blocks its reference quantisers make.

Needs numpy and gguf. Run: python3 tools/golden/make_quant_vectors.py [output directory [seed]]
tests/e2e/test_formats_reference.py runs it again, with other seeds too, and compares MLX's formats with MLX where that is installed.

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

# As BLOCKS, with the offsets of e8m0 or e4m3 scales, whose extremes are used too. IQ1_M's half is in four pieces.
BLOCKS_2 = {
    "Q2_K": (256 * 3, [80, 82]),
    "Q3_K": (256 * 3, [108]),
    "IQ4_NL": (32 * 9, [0]),
    "IQ4_XS": (256 * 3, [0]),
    "MXFP4": (32 * 9, []),
    "NVFP4": (64 * 9, []),
    "IQ2_XXS": (256 * 3, [0]),
    "IQ2_XS": (256 * 3, [0]),
    "IQ2_S": (256 * 3, [0]),
    "IQ3_XXS": (256 * 3, [0]),
    "IQ3_S": (256 * 3, [0]),
    "IQ1_S": (256 * 3, [0]),
    "IQ1_M": (256 * 3, []),
    "TQ1_0": (256 * 3, [52]),
    "TQ2_0": (256 * 3, [64]),
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
    cols, fields = (BLOCKS | BLOCKS_2)[name]
    weights, size = gguf.GGML_QUANT_SIZES[T[name]]
    n = ROWS * cols // weights
    blocks = rng.integers(0, 256, (n, size), dtype=np.uint8)
    for at in fields:
        blocks[:, at : at + 2] = half_fields(rng, n).view(np.uint8).reshape(n, 2)
    if name == "IQ1_M":
        spread_half(rng, blocks)
    blocks[0, :] = 0
    if name in ("MXFP4", "NVFP4"):
        edge_scales(blocks, name)
    return blocks.reshape(ROWS, -1), cols


def spread_half(rng, blocks):
    """IQ1_M: the four pieces of each block's half, the highest bits of its four words of scales."""
    words = blocks[:, 48:].view("<u2")
    half = half_fields(rng, len(blocks))
    for i in range(4):
        words[:, i] = (words[:, i] & 0x0FFF) | (half >> (4 * i) << 12)


def edge_scales(blocks, name):
    """MXFP4, NVFP4: every scale byte's extremes; e8m0's 255 and e4m3's NaN are numbers to gguf."""
    extremes = np.array([0, 1, 2, 126, 127, 128, 253, 254, 255], dtype=np.uint8)
    n = min(len(blocks), len(extremes))
    if name == "NVFP4":
        blocks[:n, 3] = extremes[:n]
    blocks[:n, 0] = extremes[:n]


def dequantize_blocks(out, rng, names):
    for name in names:
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


def affine_case(rng, bits, group, side, cols=384):
    """Words of codes, bytes and float32 values of scales and biases, the weights."""
    q = rng.integers(0, 1 << bits, (ROWS, cols), dtype=np.uint32)
    stream = (q[:, :, None] >> np.arange(bits, dtype=np.uint32) & 1).astype(np.uint8).reshape(ROWS, -1)
    words = np.packbits(stream, axis=1, bitorder="little").view("<u4")
    shape = (ROWS, cols // group)
    scale_bytes, scale = side_values(rng, shape, side)
    bias_bytes, bias = side_values(rng, shape, side)
    w = q.astype(np.float32) * np.repeat(scale, group, 1) + np.repeat(bias, group, 1)
    assert w.dtype == np.float32
    return words, (scale_bytes, scale), (bias_bytes, bias), w


def dequantize_affine(out, rng, cases):
    for bits, group, side in cases:
        words, (scale_bytes, _), (bias_bytes, _), w = affine_case(rng, bits, group, side)
        write(out / f"dequantize_affine{bits}_{group}_{side}.bin", f"affine{bits}", group, side, *w.shape,
              [words.tobytes(), scale_bytes, bias_bytes], w)


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=np.float32)


def mxfp4_case(rng, cols=288):
    """Bytes of codes, scales (without 255, which is NaN), the weights: minus zero stays."""
    codes = rng.integers(0, 16, (ROWS, cols), dtype=np.uint8)
    scales = rng.integers(0, 255, (ROWS, cols // 32), dtype=np.uint8)
    scales[:, :4] = [0, 1, 127, 254]
    with np.errstate(over="ignore"):
        w = np.ldexp(E2M1[codes], scales.astype(np.int32).repeat(32, 1) - 127).astype(np.float32)
    return codes[:, 0::2] | codes[:, 1::2] << 4, scales, w


def nvfp4_case(rng, cols=288):
    """As mxfp4_case with e4m3 scales of either sign (without NaN)."""
    codes = rng.integers(0, 16, (ROWS, cols), dtype=np.uint8)
    scales = rng.permutation(np.delete(np.arange(256, dtype=np.uint8), [127, 255]))[:ROWS * cols // 16].reshape(ROWS, -1)
    return codes[:, 0::2] | codes[:, 1::2] << 4, scales, E2M1[codes] * e4m3_values()[scales].repeat(16, 1)


def mxfp8_case(rng, cols=288):
    codes = rng.integers(0, 256, (ROWS, cols), dtype=np.uint8)
    codes[(codes & 127) == 127] = 0x7E
    scales = rng.integers(0, 255, (ROWS, cols // 32), dtype=np.uint8)
    scales[:, :4] = [0, 1, 127, 254]
    with np.errstate(over="ignore"):
        return codes, scales, np.ldexp(e4m3_values()[codes], scales.astype(np.int32).repeat(32, 1) - 127).astype(np.float32)


def dequantize_mlx_floats(out, rng):
    for name, group, case in (("nvfp4_split", 16, nvfp4_case), ("mxfp8_split", 32, mxfp8_case)):
        codes, scales, w = case(rng)
        write(out / f"dequantize_{name}.bin", name, group, "", *w.shape, [codes.tobytes(), scales.tobytes()], w)


def e4m3_values():
    """The 256 numbers of e4m3 (fn) by their definition."""
    v = np.arange(256)
    exponent, mantissa = v >> 3 & 15, v & 7
    size = np.where(exponent == 0, mantissa * 2.0**-9, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    size[(v & 127) == 127] = np.nan
    return np.copysign(size, np.where(v >= 128, -1.0, 1.0)).astype(np.float32)


def dequantize_small_floats(out, rng):
    codes, scales, w = mxfp4_case(rng)
    write(out / "dequantize_mxfp4_split.bin", "mxfp4_split", 32, "", *w.shape, [codes.tobytes(), scales.tobytes()], w)
    for side, rows, cols in (("BF16", 130, 133), ("F32", ROWS, 300)):
        codes = rng.integers(0, 256, (rows, cols), dtype=np.uint8)
        codes[(codes & 127) == 127] = 0x7E
        scale_bytes, scale = side_values(rng, (-(-rows // 128), -(-cols // 128)), side)
        w = e4m3_values()[codes] * scale.repeat(128, 0)[:rows].repeat(128, 1)[:, :cols]
        write(out / f"dequantize_fp8_{side}.bin", "fp8", 128, side, rows, cols, [codes.tobytes(), scale_bytes], w)


def quantize_blocks(out, rng, names):
    for name in names:
        cols = 320
        x = (rng.standard_normal((ROWS, cols)) * 10.0 ** rng.integers(-3, 4, (ROWS, cols // 32)).repeat(32, 1)).astype("<f4")
        x[0, :32] = 0
        x[1, 32:64] = 1.5
        x[2, :8] *= 1e-7
        data = np.ascontiguousarray(quantize(x, T[name]))
        write(out / f"quantize_{name}.bin", name, 0, "", ROWS, cols, [data.tobytes()], x)


SIDES = ("F16", "BF16", "F32")
AFFINE = [(bits, group, side) for bits in (4, 8) for group in (32, 64, 128) for side in SIDES]
AFFINE_2 = [(bits, group, side) for bits in (2, 3, 5, 6) for group, side in ((32, "F16"), (64, "BF16"), (64, "F16"), (128, "F32"))]


def make(out, seed):
    out.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    with np.errstate(over="ignore", invalid="ignore"):
        dequantize_blocks(out, rng, BLOCKS)
        dequantize_floats(out, rng)
        dequantize_affine(out, rng, AFFINE)
        quantize_blocks(out, rng, ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "BF16", "F16"))
        dequantize_blocks(out, rng, BLOCKS_2)
        dequantize_affine(out, rng, AFFINE_2)
        dequantize_small_floats(out, rng)
        quantize_blocks(out, rng, ("MXFP4",))
        dequantize_mlx_floats(out, rng)


def main():
    root = Path(__file__).resolve().parent.parent.parent
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else root / "tests" / "golden" / "quant"
    make(out, int(sys.argv[2]) if len(sys.argv) > 2 else SEED)
    print(f"{len(list(out.glob('*.bin')))} files, {sum(p.stat().st_size for p in out.glob('*.bin'))} bytes in {out}")


if __name__ == "__main__":
    main()
