"""Families with Gated DeltaNet layers, in every layout in which they are published: see lib/delta_net.py.

Value heads outnumber key heads by 3, so that neither order of theirs looks like the other; layers of both kinds alternate."""

import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from transformers import AutoConfig, AutoModelForImageTextToText

from golden import tiny_tokenizer
from golden.family import BASE, Family, mlp_shapes, random_weight
from lib import delta_net, floats

TYPES = delta_net.TYPES
VISION = {"model_type": "qwen3_5_moe_vision", "depth": 1, "hidden_size": 8, "intermediate_size": 16, "num_heads": 2, "in_channels": 3, "patch_size": 2,
          "spatial_merge_size": 1, "temporal_patch_size": 1, "num_position_embeddings": 4, "out_hidden_size": 32}

SMALL = {**BASE, "torch_dtype": "bfloat16", "hidden_size": 32, "num_hidden_layers": 3, "full_attention_interval": 2, "head_dim": 16,
         "linear_conv_kernel_dim": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 6,
         "intermediate_size": 64, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2,
         "attention_bias": False, "tie_word_embeddings": False, "output_router_logits": False, "router_aux_loss_coef": 0.001}


def layer_shapes(config, layer):
    kh, vh, kd, vd = delta_net.sizes(config)
    hidden, d, p = config["hidden_size"], config["head_dim"], f"model.layers.{layer}"
    q, kv, channels = config["num_attention_heads"] * d, config["num_key_value_heads"] * d, 2 * kh * kd + vh * vd
    shapes = {f"{p}.input_layernorm.weight": (hidden,), f"{p}.post_attention_layernorm.weight": (hidden,)}
    if delta_net.is_linear(config, layer):
        rows = {"in_proj_qkv": channels, "in_proj_z": vh * vd, "in_proj_b": vh, "in_proj_a": vh}
        if config["model_type"] == "qwen3_next":
            rows = {"in_proj_qkvz": channels + vh * vd, "in_proj_ba": 2 * vh}
        shapes |= {f"{p}.linear_attn.{name}.weight": (n, hidden) for name, n in rows.items()}
        shapes |= {f"{p}.linear_attn.conv1d.weight": (channels, 1, config["linear_conv_kernel_dim"]), f"{p}.linear_attn.A_log": (vh,),
                   f"{p}.linear_attn.dt_bias": (vh,), f"{p}.linear_attn.norm.weight": (vd,), f"{p}.linear_attn.out_proj.weight": (hidden, vh * vd)}
    else:
        for name, n in (("q", 2 * q), ("k", kv), ("v", kv)):
            shapes[f"{p}.self_attn.{name}_proj.weight"] = (n, hidden)
            if config["attention_bias"]:
                shapes[f"{p}.self_attn.{name}_proj.bias"] = (n,)
        shapes |= {f"{p}.self_attn.o_proj.weight": (hidden, q), f"{p}.self_attn.q_norm.weight": (d,), f"{p}.self_attn.k_norm.weight": (d,)}
        if config["attention_bias"]:
            shapes[f"{p}.self_attn.o_proj.bias"] = (hidden,)
    shapes[f"{p}.mlp.gate.weight"] = (config["num_experts"], hidden)
    for e in range(config["num_experts"]):
        shapes |= mlp_shapes(f"{p}.mlp.experts.{e}", hidden, config["moe_intermediate_size"])
    shapes |= mlp_shapes(f"{p}.mlp.shared_expert", hidden, config["shared_expert_intermediate_size"])
    return shapes | {f"{p}.mlp.shared_expert_gate.weight": (1, hidden)}


def weight(rng, name, shape):
    if delta_net.ZERO_CENTRED.search(name):
        return rng.integers(-64, 64, shape) / 128  # 1 + w is a bfloat16 too, so that folding is exact
    if name.endswith("A_log"):
        return np.log(rng.uniform(0.02, 4, shape))
    if name.endswith("dt_bias"):
        return rng.normal(-1, 1.5, shape)
    if name.endswith("mlp.gate.weight"):
        return rng.normal(0, 6 / np.sqrt(shape[-1]), shape)  # far from ties: a gated norm makes small outputs, and their rounding, large
    if name.endswith("conv1d.weight"):
        return rng.normal(0, 5, shape)
    return random_weight(rng, name, shape)


def hf(**options):
    return lambda path, config, weights: delta_net.write_hf(path, config, weights, **options)


def mlx(**options):
    return lambda path, config, weights: delta_net.write_mlx(path, config, weights, **options)


def gguf_of(default, split=True, next_token=False, **by_part):
    def type_of(tensor):
        return next((t for part, t in by_part.items() if f"{part}." in tensor), default)

    def write(path, config, weights):
        path.mkdir(parents=True, exist_ok=True)
        return delta_net.write_gguf(path / "model.gguf", config, weights, path.name, type_of, tiny_tokenizer.add_to_gguf, split, next_token)

    return write


def multimodal(path, config, weights):
    """As transformers writes the whole model, a small vision encoder included, and the next-token head as published ones have it."""
    top = delta_net.nested(config) | {"vision_config": VISION}
    torch.manual_seed(7)
    model = AutoModelForImageTextToText.from_config(AutoConfig.for_model(top["model_type"], **{k: v for k, v in top.items() if k != "model_type"}))
    extra = {n: floats.portable(w.numpy()) for n, w in model.state_dict().items() if n.startswith("model.visual.")}
    return delta_net.write_hf(path, config, weights, fused=True, mtp=True, extra=extra, prefix=delta_net.TEXT_PREFIX["hf"], config_json=top)


ROPE = {"rope_theta": 10000.0, "rope_type": "default", "partial_rotary_factor": 0.25}
NEXT = {**SMALL, "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
        "rope_parameters": ROPE}
MOE35 = {**SMALL, "architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text", "attn_output_gate": True, "mtp_num_hidden_layers": 1,
         "mamba_ssm_dtype": "float32", "rope_parameters": {**ROPE, "rope_theta": 1e7, "mrope_interleaved": True, "mrope_section": [1, 1, 0]}}
# Nothing here is a power of two; key and value heads differ in width too; layer_types as it comes.
ODD = {**MOE35, "hidden_size": 40, "num_hidden_layers": 5, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 24, "linear_conv_kernel_dim": 3,
       "linear_key_head_dim": 12, "linear_value_head_dim": 20, "linear_num_key_heads": 3, "linear_num_value_heads": 9, "moe_intermediate_size": 24,
       "shared_expert_intermediate_size": 40, "num_experts": 5, "num_experts_per_tok": 3, "attention_bias": True, "tie_word_embeddings": True,
       "layer_types": ["full_attention", "linear_attention", "linear_attention", "full_attention", "linear_attention"],
       "rope_parameters": {**MOE35["rope_parameters"], "partial_rotary_factor": 0.5}}
del ODD["full_attention_interval"]

FAMILIES = [
    Family(NEXT,
           [("qwen3_next", hf()), ("qwen3_next-mtp", hf(fused=True, mtp=True)), ("qwen3_next-mlx4", mlx(bits=4, group=32, sidecar=True)),
            ("qwen3_next-gguf", gguf_of(Type.F16)),
            ("qwen3_next-gguf-q8", gguf_of(Type.Q8_0, split=False, ffn_gate_exps=Type.Q4_0))],
           layer_shapes, weight),
    Family(MOE35,
           [("qwen3_5_moe", multimodal), ("qwen3_5_moe-mlx", mlx(sidecar=True)), ("qwen3_5_moe-mlx8", mlx(bits=8, group=32)),
            ("qwen3_5_moe-gguf", gguf_of(Type.F16, next_token=True)), ("qwen3_5_moe-gguf-q8", gguf_of(Type.Q8_0, ffn_down_exps=Type.Q5_1))],
           layer_shapes, weight),
    Family(ODD, [("qwen3_5_moe-odd", hf())], layer_shapes, weight),
]
