"""The student as an MLX-quantised Hugging Face directory, config.json and model.safetensors: written, and read back."""

import json
from pathlib import Path

import numpy as np
import torch

from lib import affine, hf_io, safetensors_io

from . import quantise

PLAIN = {"ln1": "input_layernorm.weight", "ln2": "post_attention_layernorm.weight", "qb": "self_attn.q_proj.bias", "kb": "self_attn.k_proj.bias",
         "vb": "self_attn.v_proj.bias", "shared_sigmoid": "mlp.shared_expert_gate.weight"}  # fmt: skip
MATRICES = {"q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj", "router": "mlp.gate",
            "shared_gate": "mlp.shared_expert.gate_proj", "shared_up": "mlp.shared_expert.up_proj", "shared_down": "mlp.shared_expert.down_proj",
            "gate": "mlp.switch_mlp.gate_proj", "up": "mlp.switch_mlp.up_proj", "down": "mlp.switch_mlp.down_proj"}  # fmt: skip


def config(shape, quantization):
    return {
        "architectures": ["Qwen2MoeForCausalLM"],
        "model_type": "qwen2_moe",
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "intermediate_size": shape.shared,
        "moe_intermediate_size": shape.width,
        "shared_expert_intermediate_size": shape.shared,
        "num_experts": shape.experts,
        "num_experts_per_tok": shape.top_k,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "qkv_bias": True,
        "hidden_act": "silu",
        "rms_norm_eps": shape.eps,
        "rope_theta": shape.theta,
        "max_position_embeddings": 1024,
        "use_sliding_window": False,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 2,
        "torch_dtype": "float16",
        "quantization": quantization,
        "quantization_config": quantization,
    }


def packed(w, bits, group):
    """torch [..., columns] -> codes as u32 words, low bits first, scales, biases."""
    groups = w.float().unflatten(-1, (-1, group))
    scale, bias = quantise.sides(groups, bits)
    codes = quantise.codes(groups, scale, bias, bits).flatten(-2).numpy().astype(np.uint32)
    words = codes.reshape(*codes.shape[:-1], -1, 32 // bits)
    shifts = np.arange(32 // bits, dtype=np.uint32) * np.uint32(bits)
    return (words << shifts).sum(-1, dtype=np.uint32), scale.squeeze(-1).numpy(), bias.squeeze(-1).numpy()


def per_layer(name, w, shape):
    """One layer's matrix as the file has it: routed experts stacked [experts, out, in]."""
    if name in ("gate", "up"):
        return w.unflatten(0, (shape.experts, shape.width))
    if name == "down":
        return w.unflatten(1, (shape.experts, shape.width)).transpose(0, 1)
    return w


def write(directory, shape, p):
    """p: float32 parameters on the CPU, not quantised yet."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    quantization = {"group_size": 64, "bits": 4, "mode": "affine"}
    tensors = {}

    def add(module, name, w):
        bits, group = quantise.FORMATS[name]
        words, scale, bias = packed(w, bits, group)
        tensors.update({f"{module}.weight": ("U32", words), f"{module}.scales": ("F16", scale), f"{module}.biases": ("F16", bias)})
        if (bits, group) != (quantization["bits"], quantization["group_size"]):
            quantization[module] = {"group_size": group, "bits": bits}

    def half(w):
        return "F16", w.half().float().numpy()

    add("model.embed_tokens", "embed", p["embed"])
    for i in range(shape.layers):
        prefix = f"model.layers.{i}."
        for name, tail in PLAIN.items():
            w = p[name][i]
            tensors[prefix + tail] = half(w[None] if name == "shared_sigmoid" else w)
        for name, tail in MATRICES.items():
            add(prefix + tail, name, per_layer(name, p[name][i], shape))
    tensors["model.norm.weight"] = half(p["norm"])
    hf_io.write_json(directory / "config.json", config(shape, quantization))
    safetensors_io.save(directory / "model.safetensors", tensors, {"format": "mlx"})


def read(directory):
    """-> config, {canonical per-expert name: float32 array}: what a reader of the file computes with."""
    directory = Path(directory)
    config = json.loads((directory / "config.json").read_text())
    stored, out = safetensors_io.load(directory / "model.safetensors"), {}
    for name, w in stored.items():
        module = name.removesuffix(".weight")
        if name.endswith((".scales", ".biases")):
            continue
        if f"{module}.scales" in stored:
            own = config["quantization"].get(module, config["quantization"])
            sides = (stored[f"{module}.{k}"].astype(np.float32) for k in ("scales", "biases"))
            w = affine.dequantise(w, *sides, own["bits"], own["group_size"])
        if ".switch_mlp." in name:
            out |= {name.replace(".switch_mlp.", f".experts.{e}."): w[e] for e in range(len(w))}
        else:
            out[name] = w.astype(np.float32)
    return config, out


def read_parameters(directory, shape):
    """The stacked parameters of a shipped directory, to train on from."""
    _, weights = read(directory)

    def one(layer, tail):
        if ".switch_mlp." not in tail:
            return weights[f"model.layers.{layer}.{tail}"]
        experts = [weights[f"model.layers.{layer}.{tail.replace('.switch_mlp.', f'.experts.{e}.')}"] for e in range(shape.experts)]
        return np.concatenate(experts, axis=1 if "down_proj" in tail else 0)

    tails = PLAIN | {name: f"{module}.weight" for name, module in MATRICES.items()}
    p = {name: torch.from_numpy(np.stack([one(i, tail) for i in range(shape.layers)])) for name, tail in tails.items()}
    p["shared_sigmoid"] = p["shared_sigmoid"].flatten(1)
    return p | {"embed": torch.from_numpy(weights["model.embed_tokens.weight"]), "norm": torch.from_numpy(weights["model.norm.weight"])}
