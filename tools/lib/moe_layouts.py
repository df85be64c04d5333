"""Checkpoints of mixtral, olmoe, glm4_moe, deepseek_v3, minimax_m2 and gpt_oss as they are published.

Canonical weights have the names of transformers' own modules, one tensor per expert (model.layers.0.mlp.experts.3.up_proj.weight, for gpt_oss also
.bias). What is published differs: mixtral and minimax_m2 call the block block_sparse_moe and its projections w1, w3, w2; gpt_oss has its experts
in MXFP4, rows of gate and up in turn; GGUF has experts stacked, MLA's key and value parts apart.
"""

import re

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

from . import gguf_io, hf_io, safetensors_io

GGUF_ARCH = {"mixtral": "llama", "olmoe": "olmoe", "glm4_moe": "glm4moe", "deepseek_v3": "deepseek2", "minimax_m2": "minimax-m2", "gpt_oss": "gpt-oss"}
EXPERT = re.compile(r"(model\.layers\.\d+)\.mlp\.experts\.(\d+)\.(gate|up|down)_proj\.(weight|bias)$")
W = {"gate": "w1", "up": "w3", "down": "w2"}


def stack(weights):
    """{(layer prefix, projection, weight or bias): [experts]...} and the rest."""
    groups, rest = {}, {}
    for name, w in weights.items():
        m = EXPERT.match(name)
        if m:
            groups.setdefault((m[1], m[3], m[4]), {})[int(m[2])] = w
        else:
            rest[name] = w
    return {key: np.stack([g[i] for i in range(len(g))]) for key, g in groups.items()}, rest


def in_turn(gate, up):
    """Rows 0, 2, .. of gate and 1, 3, .. of up; both [experts][rows]..."""
    return np.stack([gate, up], axis=2).reshape(gate.shape[0], 2 * gate.shape[1], *gate.shape[2:])


def gpt_oss_state(weights):
    """As transformers' GptOssExperts holds them: [experts][in][out], gate and up in turn."""
    stacked, out = stack(weights)
    for p in {key[0] for key in stacked}:
        experts = f"{p}.mlp.experts"
        for kind, swap in (("weight", True), ("bias", False)):
            tail = "" if swap else "_bias"
            both, down = in_turn(stacked[p, "gate", kind], stacked[p, "up", kind]), stacked[p, "down", kind]
            out[f"{experts}.gate_up_proj{tail}"] = np.ascontiguousarray(both.swapaxes(1, 2)) if swap else both
            out[f"{experts}.down_proj{tail}"] = np.ascontiguousarray(down.swapaxes(1, 2)) if swap else down
    return out


# ---- Hugging Face -------------------------------------------------------------------------------------------------------------------


def hub_name(kind, name):
    if kind in ("mixtral", "minimax_m2"):
        m = EXPERT.match(name)
        if m:
            return f"{m[1]}.block_sparse_moe.experts.{m[2]}.{W[m[3]]}.weight"
        if name.endswith("mlp.gate.weight"):
            return name.replace(".mlp.", ".block_sparse_moe.")
        return name.replace(".mlp.e_score_correction_bias", ".block_sparse_moe.e_score_correction_bias")
    return name


def write_hf(path, config, weights, dtype="BF16"):
    path.mkdir(parents=True, exist_ok=True)
    hf_io.write_json(path / "config.json", config)
    f32 = ("e_score_correction_bias",)
    tensors = {hub_name(config["model_type"], n): ("F32" if n.endswith(f32) else dtype, w) for n, w in weights.items()}
    safetensors_io.save(path / "model.safetensors", tensors, {"format": "pt"})
    return weights


def mxfp4(w):
    """-> blocks (U8: .., groups, 16 bytes, the first weight in the low bits), scales (U8), and what they mean."""
    ggml = gguf.quants.quantize(np.ascontiguousarray(w, np.float32), Type.MXFP4)
    values = gguf.quants.dequantize(ggml, Type.MXFP4).astype(np.float32)
    ggml = ggml.reshape(*w.shape[:-1], w.shape[-1] // 32, 17)
    low, high = ggml[..., 1:] & 15, ggml[..., 1:] >> 4  # weights 0..15 and 16..31
    codes = np.concatenate([low, high], axis=-1)
    return (codes[..., 0::2] | codes[..., 1::2] << 4).astype(np.uint8), ggml[..., 0].copy(), values


def write_gpt_oss(path, config, weights):
    """Experts in MXFP4, everything else bfloat16."""
    path.mkdir(parents=True, exist_ok=True)
    quantization = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}
    hf_io.write_json(path / "config.json", {**config, "quantization_config": quantization})
    stacked, rest = stack(weights)
    tensors, held = {n: ("BF16", w) for n, w in rest.items()}, dict(rest)
    for p in sorted({key[0] for key in stacked}):
        experts = f"{p}.mlp.experts"
        both = in_turn(stacked[p, "gate", "weight"], stacked[p, "up", "weight"])
        for name, w in (("gate_up_proj", both), ("down_proj", stacked[p, "down", "weight"])):
            blocks, scales, values = mxfp4(w)
            tensors[f"{experts}.{name}_blocks"], tensors[f"{experts}.{name}_scales"] = ("U8", blocks), ("U8", scales)
            parts = {"gate": values[:, 0::2], "up": values[:, 1::2]} if name == "gate_up_proj" else {"down": values}
            held |= {f"{experts}.{e}.{k}_proj.weight": v[e] for k, v in parts.items() for e in range(len(v))}
        tensors[f"{experts}.gate_up_proj_bias"] = ("BF16", in_turn(stacked[p, "gate", "bias"], stacked[p, "up", "bias"]))
        tensors[f"{experts}.down_proj_bias"] = ("BF16", stacked[p, "down", "bias"])
        held |= {f"{experts}.{e}.{k}_proj.bias": stacked[p, k, "bias"][e] for k in W for e in range(len(both))}
    safetensors_io.save(path / "model.safetensors", tensors, {"format": "pt"})
    return held


# ---- GGUF ---------------------------------------------------------------------------------------------------------------------------

LAYER = {
    **gguf_io.LAYER,
    "self_attn.o_proj.bias": "attn_output.bias",
    "self_attn.sinks": "attn_sinks.weight",
    "self_attn.q_a_proj.weight": "attn_q_a.weight",
    "self_attn.q_a_layernorm.weight": "attn_q_a_norm.weight",
    "self_attn.q_b_proj.weight": "attn_q_b.weight",
    "self_attn.kv_a_proj_with_mqa.weight": "attn_kv_a_mqa.weight",
    "self_attn.kv_a_layernorm.weight": "attn_kv_a_norm.weight",
    "mlp.router.weight": "ffn_gate_inp.weight",
    "mlp.router.bias": "ffn_gate_inp.bias",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.shared_experts.gate_proj.weight": "ffn_gate_shexp.weight",
    "mlp.shared_experts.up_proj.weight": "ffn_up_shexp.weight",
    "mlp.shared_experts.down_proj.weight": "ffn_down_shexp.weight",
}


def layer_name(config, tail):
    if tail == "post_attention_layernorm.weight" and config["model_type"] in ("glm4_moe", "gpt_oss"):
        return "post_attention_norm.weight"
    return LAYER[tail]


def latent_parts(config, w):
    """kv_b_proj -> key part [heads][latent][nope], value part [heads][value][latent]."""
    per_head = w.reshape(config["num_attention_heads"], -1, w.shape[1])
    k, v = np.split(per_head, [config["qk_nope_head_dim"]], axis=1)
    return np.ascontiguousarray(k.swapaxes(1, 2)), v


def gguf_tensors(config, weights):
    """{GGUF name: (float32 array, function from what the file holds to canonical weights)}."""
    stacked, rest = stack(weights)
    out = {}
    for name, w in rest.items():
        back = lambda x, name=name: {name: x}  # noqa: E731
        if name in gguf_io.TOP:
            out[gguf_io.TOP[name]] = (w, back)
            continue
        layer, tail = re.match(r"model\.layers\.(\d+)\.(.*)", name).groups()
        if tail == "self_attn.kv_b_proj.weight":
            k, v = latent_parts(config, w)
            out[f"blk.{layer}.attn_k_b.weight"], out[f"blk.{layer}.attn_v_b.weight"] = (k, back), (v, back)
            continue
        if config["model_type"] == "mixtral" and tail in ("self_attn.q_proj.weight", "self_attn.k_proj.weight"):
            heads = config["num_attention_heads" if "q_proj" in tail else "num_key_value_heads"]
            w, back = gguf_io.rope_rows(w, heads), lambda x, name=name, heads=heads: {name: gguf_io.unrope_rows(x, heads)}
        out[f"blk.{layer}.{layer_name(config, tail)}"] = (w, back)
    for (p, projection, kind), w in stacked.items():
        names = [f"{p}.mlp.experts.{e}.{projection}_proj.{kind}" for e in range(len(w))]
        out[f"blk.{p.split('.')[2]}.ffn_{projection}_exps.{kind}"] = (w, lambda x, names=names: dict(zip(names, x)))
    return out


def add_mla(writer, config):
    writer.add_key_length(config["kv_lora_rank"] + config["qk_rope_head_dim"])
    writer.add_value_length(config["kv_lora_rank"])
    writer.add_key_length_mla(config["qk_nope_head_dim"] + config["qk_rope_head_dim"])
    writer.add_value_length_mla(config["v_head_dim"])
    writer.add_kv_lora_rank(config["kv_lora_rank"])
    if config["q_lora_rank"]:
        writer.add_q_lora_rank(config["q_lora_rank"])
    writer.add_rope_dimension_count(config["qk_rope_head_dim"])


def add_yarn(writer, rope):
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(rope["factor"])
    writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if rope.get("mscale_all_dim"):
        writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])


def add_metadata(writer, config, name):
    mla = "kv_lora_rank" in config
    rope = config["rope_parameters"]
    writer.add_type("model")
    writer.add_name(name)
    writer.add_quantization_version(2)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(1 if mla else config["num_key_value_heads"])
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    experts = next(config[k] for k in ("num_experts", "n_routed_experts", "num_local_experts") if k in config)
    writer.add_expert_count(experts)
    writer.add_expert_used_count(config["num_experts_per_tok"])
    if mla:
        add_mla(writer, config)
    elif "head_dim" in config:
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
        writer.add_rope_dimension_count(int(config["head_dim"] * rope.get("partial_rotary_factor", 1)))
    if rope["rope_type"] == "yarn":
        add_yarn(writer, rope)
    if config["model_type"] != "mixtral":
        writer.add_expert_feed_forward_length(config.get("moe_intermediate_size", config["intermediate_size"]))
    if "n_shared_experts" in config:
        writer.add_expert_shared_count(config["n_shared_experts"])
        writer.add_leading_dense_block_count(config["first_k_dense_replace"])
        writer.add_expert_weights_scale(config["routed_scaling_factor"])
        writer.add_expert_weights_norm(config["norm_topk_prob"])
        writer.add_expert_group_count(config["n_group"])
        writer.add_expert_group_used_count(config["topk_group"])
    if config["model_type"] in ("glm4_moe", "deepseek_v3", "minimax_m2"):
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])


def write_gguf(path, config, weights, name, type_of, add_tokenizer):
    """type_of(GGUF tensor name) -> Type for matrices. Returns the canonical weights as the file stores them: dequantised."""
    tensors = gguf_tensors(config, weights)
    writer = gguf.GGUFWriter(path, GGUF_ARCH[config["model_type"]])
    add_metadata(writer, config, name)
    add_tokenizer(writer)
    held = {}
    for tensor, (w, back) in tensors.items():
        plain = w.ndim == 1 or tensor.endswith((".bias", "ffn_gate_inp.weight"))
        latent = "attn_k_b" in tensor or "attn_v_b" in tensor  # kept whole, so that the canonical matrix stays the same
        kind = Type.F32 if plain or latent else type_of(tensor)
        data = np.ascontiguousarray(w, np.float32) if kind == Type.F32 else gguf.quants.quantize(np.ascontiguousarray(w, np.float32), kind)
        held |= {n: weights[n] for n in back(w)} if latent else back(gguf.quants.dequantize(data, kind) if kind != Type.F32 else data)
        writer.add_tensor(tensor, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return held
