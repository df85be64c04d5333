"""The shipped directory in transformers: Qwen2MoeForCausalLM with the dequantised weights in float32."""

import numpy as np
import torch
from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM

from .export import read


def load(directory):
    config, weights = read(directory)
    plain = {k: v for k, v in config.items() if not k.startswith("quantization") and k != "torch_dtype"}
    model = Qwen2MoeForCausalLM(Qwen2MoeConfig(**plain, attn_implementation="eager")).float().eval()
    own = {k: v for k, v in model.state_dict().items() if not k.startswith("lm_head")}
    state = {}
    for name in own:
        if name in weights:
            state[name] = weights[name]
        elif name.endswith(".experts.gate_up_proj"):
            state[name] = stack(weights, name, own[name].shape[0], "gate_proj", "up_proj")
        elif name.endswith(".experts.down_proj"):
            state[name] = stack(weights, name, own[name].shape[0], "down_proj")
    model.load_state_dict({k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in state.items()}, strict=False)
    missing = own.keys() - state.keys()
    if missing:
        raise SystemExit(f"no weights for {sorted(missing)}")
    model.tie_weights()
    return model


def stack(weights, name, experts, *projections):
    """transformers keeps a layer's experts in one tensor [experts, out, in], gate and up one after the other."""
    prefix = name.rsplit(".", 1)[0]
    return np.stack([np.concatenate([weights[f"{prefix}.{e}.{p}.weight"] for p in projections]) for e in range(experts)])
