"""Splitting dense FFNs into experts: what split_experts and llama2c_to_hf share.

Expert e takes the e-th range of neurons. The router is zero and all N experts are active, so each weighs exactly 1/N; down carries the factor N,
which is exact too because N is a power of two. transformers' qwen2_moe always has a shared expert, so there is one of zeros, which adds exactly
nothing.
"""

import numpy as np

SHARED = 32  # neurons of the zero shared expert: one block of the common formats
SHARED_GATE = 2.0**-6  # its gate's weights; not zero, because llama.cpp computes sigmoid(x) as silu(x) / x


def check_experts(experts):
    if experts < 1 or experts & (experts - 1):
        raise SystemExit(f"--experts {experts}: 1/N and N are exact only for powers of two")


def moe_config(config, experts):
    return {
        **config,
        "architectures": ["Qwen2MoeForCausalLM"],
        "model_type": "qwen2_moe",
        "num_experts": experts,
        "num_experts_per_tok": experts,
        "moe_intermediate_size": config["intermediate_size"] // experts,
        "shared_expert_intermediate_size": SHARED,
        "norm_topk_prob": False,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "qkv_bias": False,
        "use_sliding_window": False,
    }


def split_weights(config, weights, experts):
    """Canonical weights of llama -> of qwen2_moe, both as in hf_io."""
    check_experts(experts)
    hidden, share, out = config["hidden_size"], config["intermediate_size"] // experts, {}
    for name, w in weights.items():
        if ".mlp." not in name:
            out[name] = w
            continue
        mlp, projection = name.split(".mlp.")
        for e in range(experts):
            own = slice(e * share, (e + 1) * share)
            out[f"{mlp}.mlp.experts.{e}.{projection}"] = w[:, own] * np.float32(experts) if "down_proj" in projection else w[own]
        shape = (hidden, SHARED) if "down_proj" in projection else (SHARED, hidden)
        out[f"{mlp}.mlp.shared_expert.{projection}"] = np.zeros(shape, np.float32)
        out[f"{mlp}.mlp.gate.weight"] = np.zeros((experts, hidden), np.float32)
        out[f"{mlp}.mlp.shared_expert_gate.weight"] = np.full((1, hidden), SHARED_GATE, np.float32)
    return out


def pad_neurons(config, weights, unit):
    """Widens the FFN to a multiple of `unit` with neurons of zeros, which change nothing."""
    width = -(-config["intermediate_size"] // unit) * unit
    extra = width - config["intermediate_size"]
    pad = {"gate_proj": ((0, extra), (0, 0)), "up_proj": ((0, extra), (0, 0)), "down_proj": ((0, 0), (0, extra))}
    padded = {n: np.pad(w, pad[n.split(".")[-2]]) if ".mlp." in n else w for n, w in weights.items()}
    return {**config, "intermediate_size": width}, padded
