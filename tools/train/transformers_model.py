"""The shipped directory in transformers: Qwen2MoeForCausalLM with the dequantised weights in float32."""

import json
from pathlib import Path

import numpy as np
import torch
from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM

from lib import affine, safetensors_io


def dequantised(directory):
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


def load(directory):
    config, weights = dequantised(directory)
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
