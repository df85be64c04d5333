"""Checkpoints of models with Gated DeltaNet layers (qwen3_next, qwen3_5_moe) in every layout in which they are published.

Canonical weights are Hugging Face's as trained, one tensor per expert, names beginning with "model.": norms multiply by 1 + w (but not
linear_attn.norm), conv1d is [channels][1][kernel], value heads are grouped by key head. qwen3_next has in_proj_qkvz and in_proj_ba, the four and
two inputs of each key head one after the other; qwen3_5_moe has in_proj_qkv, in_proj_z, in_proj_b, in_proj_a.
"""

import re

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

from . import affine, gguf_io, hf_io, safetensors_io

TYPES = ("qwen3_next", "qwen3_5_moe", "qwen3_5_moe_text")
GGUF_ARCH = {"qwen3_next": "qwen3next", "qwen3_5_moe": "qwen35moe", "qwen3_5_moe_text": "qwen35moe"}
ZERO_CENTRED = re.compile(r"(input_layernorm|post_attention_layernorm|q_norm|k_norm|model\.norm|language_model\.norm)\.weight$")
TEXT_PREFIX = {"hf": "model.language_model.", "mlx": "language_model.model."}


def sizes(config):
    """-> key heads, value heads, key dim, value dim."""
    return tuple(config[f"linear_{name}"] for name in ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim"))


def is_linear(config, layer):
    if "layer_types" in config:
        return config["layer_types"][layer] == "linear_attention"
    return (layer + 1) % config["full_attention_interval"] != 0


# ---- rows ---------------------------------------------------------------------------------------------------------------------------


def split_fused(config, qkvz, ba):
    """Rows of qwen3_next's fused inputs -> in_proj_qkv, z, b, a as qwen3_5 has them."""
    kh, vh, kd, vd = sizes(config)
    r = vh // kh
    q, k, v, z = np.split(qkvz.reshape(kh, 2 * kd + 2 * r * vd, -1), np.cumsum([kd, kd, r * vd]), axis=1)
    b, a = np.split(ba.reshape(kh, 2 * r, -1), 2, axis=1)
    flat = [x.reshape(-1, qkvz.shape[1]) for x in (q, k, v, z, b, a)]
    return np.concatenate(flat[:3]), *flat[3:]


def fuse_qkvz(config, qkv, z):
    kh, vh, kd, vd = sizes(config)
    q, k, v = np.split(qkv, np.cumsum([kh * kd, kh * kd]))
    return np.concatenate([x.reshape(kh, -1, qkv.shape[1]) for x in (q, k, v, z)], axis=1).reshape(-1, qkv.shape[1])


def tile(config, x, unit, axis=0, back=False):
    """Value heads of `unit` elements along an axis: from grouped by key head to order h % key_heads, or back."""
    kh, vh, _, _ = sizes(config)
    x = np.moveaxis(x, axis, 0)
    shape = (vh // kh, kh, unit) if back else (kh, vh // kh, unit)
    return np.moveaxis(x.reshape(*shape, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape), 0, axis)


def tile_layer_tensor(config, tail, x, back=False):
    """A tensor of a delta layer by the end of its qwen3_5 name."""
    kh, vh, kd, vd = sizes(config)
    if tail in ("linear_attn.in_proj_qkv.weight", "linear_attn.conv1d.weight"):
        return np.concatenate([x[: 2 * kh * kd], tile(config, x[2 * kh * kd :], vd, 0, back)])
    if tail == "linear_attn.in_proj_z.weight":
        return tile(config, x, vd, 0, back)
    if tail in ("linear_attn.in_proj_b.weight", "linear_attn.in_proj_a.weight", "linear_attn.A_log", "linear_attn.dt_bias"):
        return tile(config, x, 1, 0, back)
    if tail == "linear_attn.out_proj.weight":
        return tile(config, x, vd, 1, back)
    return x


# ---- Hugging Face and MLX -----------------------------------------------------------------------------------------------------------


def rename(weights, prefix):
    return {re.sub(r"^model\.", prefix, name): w for name, w in weights.items()}


def predicted_token_weights(config, weights, raw):
    """mtp.* tensors as a converter may leave them beside the model: the last attention layer's, norms as in the checkpoint or as trained."""
    layer = max(i for i in range(config["num_hidden_layers"]) if not is_linear(config, i))
    hidden, out = config["hidden_size"], {}
    for name, w in weights.items():
        if f"layers.{layer}." in name:
            out["mtp." + name[name.index(f"layers.{layer}.") :].replace(f"layers.{layer}.", "layers.0.")] = w
    out["mtp.fc.weight"] = np.tile(weights[next(n for n in weights if n.endswith("mlp.gate.weight"))][:1], (hidden, 2))
    for norm in ("mtp.norm.weight", "mtp.pre_fc_norm_hidden.weight", "mtp.pre_fc_norm_embedding.weight"):
        out[norm] = np.full(hidden, 0.25 if raw else 1.25, np.float32)
    return out


def fold_for_mlx(weights):
    out = {}
    for name, w in weights.items():
        if ZERO_CENTRED.search(name):
            w = w + np.float32(1)
        if name.endswith("conv1d.weight"):
            w = np.moveaxis(w, 2, 1)
        out[name] = w
    return out


def nested(config):
    """config.json of a multimodal model around this text model."""
    text = {**config, "model_type": "qwen3_5_moe_text"}
    text.pop("architectures", None)
    return {"architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe", "text_config": text,
            "tie_word_embeddings": config["tie_word_embeddings"]}


def stored_dtype(name):
    """A_log stays float32 in all published checkpoints."""
    return "F32" if name.endswith("A_log") else "BF16"


def write_hf(path, config, weights, fused=False, mtp=False, extra=None, prefix="model.", config_json=None):
    tensors = hf_io.fused_experts(weights) if fused else dict(weights)
    tensors = rename(tensors, prefix)
    if mtp:
        tensors |= predicted_token_weights(config, tensors, True)
    tensors |= extra or {}
    path.mkdir(parents=True, exist_ok=True)
    hf_io.write_json(path / "config.json", config_json or config)
    safetensors_io.save_sharded(path, {n: (stored_dtype(n), w) for n, w in tensors.items()}, 1, {"format": "pt"})
    return weights


def write_mlx(path, config, weights, bits=0, group=0, sidecar=False, router_bits=8):
    """An mlx-lm directory; bits 0: not quantised. sidecar: the next-token head in a file of its own, as trained (not folded).

    Returns the canonical weights as it stores them: dequantised."""
    multimodal = config["model_type"] != "qwen3_next"
    prefix = TEXT_PREFIX["mlx"] if multimodal else "model."
    stacked, rest = hf_io.stack_experts(fold_for_mlx(weights))
    modules = {f"{mlp}.switch_mlp.{projection}_proj.weight": w for (mlp, projection), w in stacked.items()}
    held, tensors = {}, {}
    quantization = {"group_size": group, "bits": bits, "mode": "affine"}
    for name, w in rename(rest | modules, prefix).items():
        if name == "lm_head.weight" and multimodal:
            name = "language_model.lm_head.weight"
        if bits and name.endswith(".weight") and w.ndim >= 2 and "conv1d" not in name:
            module, own = name.removesuffix(".weight"), bits
            if module.endswith(("mlp.gate", "shared_expert_gate")):
                own = router_bits
                quantization[module] = {"group_size": group, "bits": own}
            packed, scale, bias = affine.quantise(w, own, group)
            tensors |= {name: ("U32", packed), f"{module}.scales": ("BF16", scale), f"{module}.biases": ("BF16", bias)}
            held[name] = affine.dequantise(packed, scale, bias, own, group)
        else:
            tensors[name] = (stored_dtype(name), w)
    path.mkdir(parents=True, exist_ok=True)
    top = nested(config) if multimodal else dict(config)
    if bits:
        top |= {"quantization": quantization, "quantization_config": quantization}
    hf_io.write_json(path / "config.json", top)
    files = {"model.safetensors": tensors}
    if sidecar:
        extra = predicted_token_weights(config, hf_io.fused_experts(weights), True)
        files = {"model-00001-of-00001.safetensors": tensors, "mtp.safetensors": {n: ("BF16", w) for n, w in extra.items()}}
        index = {"metadata": {}, "weight_map": {n: file for file, t in files.items() for n in t}}
        hf_io.write_json(path / "model.safetensors.index.json", index)
    for file, t in files.items():
        safetensors_io.save(path / file, t, {"format": "mlx"})
    return weights | _canonical_of_mlx(held, prefix)


def _canonical_of_mlx(held, prefix):
    out = {}
    for name, w in held.items():
        name = "lm_head.weight" if name.endswith("lm_head.weight") else name.replace(prefix, "model.", 1)
        if ".switch_mlp." in name:
            for e in range(w.shape[0]):
                out[name.replace(".switch_mlp.", f".experts.{e}.")] = w[e]
        else:
            out[name] = w
    return out


# ---- GGUF ---------------------------------------------------------------------------------------------------------------------------

NAMES = {
    **gguf_io.LAYER,
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.in_proj_qkvz.weight": "ssm_in.weight",
    "linear_attn.in_proj_ba.weight": "ssm_ba.weight",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
}
FLOATS = ("ffn_gate_inp.weight", "ssm_conv1d.weight")


def split_qkvz(config, weights):
    """qwen3_next's converter splits in_proj_qkvz, but not in_proj_ba."""
    out = {}
    for name, w in weights.items():
        if name.endswith("in_proj_qkvz.weight"):
            ba = weights[name.replace("qkvz", "ba")]
            qkv, z = split_fused(config, w, ba)[:2]
            out[name.replace("qkvz", "qkv")] = qkv
            out[name.replace("qkvz", "z")] = z
        else:
            out[name] = w
    return out


def gguf_tensors(config, weights, split):
    tiled = config["model_type"] != "qwen3_next"
    stacked, rest = hf_io.stack_experts(split_qkvz(config, weights) if split else weights)
    out = {}
    for name, w in rest.items():
        if ZERO_CENTRED.search(name):
            w = w + np.float32(1)
        if name in gguf_io.TOP:
            out[gguf_io.TOP[name]] = w
            continue
        layer, tail = re.match(r"model\.layers\.(\d+)\.(.*)", name).groups()
        if tiled:
            w = tile_layer_tensor(config, tail, w)
        if tail == "linear_attn.A_log":
            w = -np.exp(w)
        if tail in ("linear_attn.conv1d.weight", "mlp.shared_expert_gate.weight"):
            w = w.squeeze()
        out[f"blk.{layer}.{NAMES[tail]}"] = w
    for (mlp, projection), w in stacked.items():
        out[f"blk.{mlp.split('.')[2]}.ffn_{projection}_exps.weight"] = w
    return out


def add_next_token_block(config, tensors):
    """One block behind the model's, as the converter writes it: the last attention block's tensors and four of its own."""
    last = max(i for i in range(config["num_hidden_layers"]) if not is_linear(config, i))
    n, hidden, out = config["num_hidden_layers"], config["hidden_size"], dict(tensors)
    for name, w in tensors.items():
        if name.startswith(f"blk.{last}."):
            out[name.replace(f"blk.{last}.", f"blk.{n}.")] = w
    out[f"blk.{n}.nextn.eh_proj.weight"] = np.zeros((hidden, 2 * hidden), np.float32)
    for norm in ("enorm", "hnorm", "shared_head_norm"):
        out[f"blk.{n}.nextn.{norm}.weight"] = np.ones(hidden, np.float32)
    return out


def add_metadata(writer, config, name, file_type, next_token_blocks):
    kh, vh, kd, vd = sizes(config)
    rope = config["rope_parameters"]
    gguf_io.add_metadata(writer, {**config, "num_hidden_layers": config["num_hidden_layers"] + next_token_blocks}, name, file_type)
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(kd)
    writer.add_ssm_group_count(kh)
    writer.add_ssm_time_step_rank(vh)
    writer.add_ssm_inner_size(vh * vd)
    writer.add_full_attention_interval(config["full_attention_interval"])
    writer.add_rope_dimension_count(int(config["head_dim"] * rope["partial_rotary_factor"]))
    if "mrope_section" in rope:
        writer.add_rope_dimension_sections([*rope["mrope_section"], 0])
    if next_token_blocks:
        writer.add_nextn_predict_layers(next_token_blocks)


def write_gguf(path, config, weights, name, type_of, add_tokenizer, split=True, next_token=False):
    """Returns the canonical weights as the file stores them: dequantised. split: of qwen3_next, in_proj_qkvz as two tensors."""
    tensors = gguf_tensors(config, weights, split)
    if next_token:
        tensors = add_next_token_block(config, tensors)
    main_type = type_of("blk.0.ffn_gate_exps.weight")
    writer = gguf.GGUFWriter(path, GGUF_ARCH[config["model_type"]])
    add_metadata(writer, config, name, gguf_io.FILE_TYPE[main_type], int(next_token))
    add_tokenizer(writer)
    held = {}
    for tensor, w in tensors.items():
        kind = Type.F32 if w.ndim == 1 or tensor.endswith(FLOATS) else type_of(tensor)
        w = np.ascontiguousarray(w, np.float32)
        data = w if kind == Type.F32 else gguf.quants.quantize(w, kind)
        writer.add_tensor(tensor, data, raw_dtype=kind)
        if kind != Type.F32:
            held[tensor] = gguf.quants.dequantize(data, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights | _canonical_of_gguf(config, held, split)


def _canonical_of_gguf(config, held, split):
    top, tails, out = {v: k for k, v in gguf_io.TOP.items()}, {v: k for k, v in NAMES.items()}, {}
    for name, w in held.items():
        if name in top:
            out[top[name]] = w
            continue
        layer, tail = re.match(r"blk\.(\d+)\.(.*)", name).groups()
        if int(layer) >= config["num_hidden_layers"]:
            continue
        stacked = re.match(r"ffn_(gate|up|down)_exps\.weight", tail)
        if stacked:
            for e in range(w.shape[0]):
                out[f"model.layers.{layer}.mlp.experts.{e}.{stacked[1]}_proj.weight"] = w[e]
            continue
        tail = tails[tail]
        if config["model_type"] != "qwen3_next":
            w = tile_layer_tensor(config, tail, w, back=True)
        elif split and tail == "linear_attn.in_proj_qkv.weight":
            w = fuse_qkvz(config, w, held[f"blk.{layer}.attn_gate.weight"])
            tail = "linear_attn.in_proj_qkvz.weight"
        elif split and tail == "linear_attn.in_proj_z.weight":
            continue
        out[f"model.layers.{layer}.{tail}"] = w
    return out
