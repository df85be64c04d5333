"""Hugging Face and MLX checkpoint directories from canonical weights.

Canonical weights: {Hugging Face per-expert name: float32 array}, e.g. model.layers.0.mlp.experts.3.up_proj.weight. The writers below and
gguf_io's derive every published layout from them.
"""

import json
import re
from pathlib import Path

import numpy as np

from . import affine, safetensors_io

EXPERT = re.compile(r"(model\.layers\.\d+\.mlp)\.experts\.(\d+)\.(gate|up|down)_proj\.weight$")


def write_json(path, value):
    Path(path).write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def stack_experts(weights):
    """{(mlp prefix, projection): [experts][out][in]} and the rest of the weights."""
    groups, rest = {}, {}
    for name, w in weights.items():
        m = EXPERT.match(name)
        if m:
            groups.setdefault((m[1], m[3]), {})[int(m[2])] = w
        else:
            rest[name] = w
    return {key: np.stack([g[i] for i in range(len(g))]) for key, g in groups.items()}, rest


def fused_experts(weights):
    """The stacked layout: mlp.experts.gate_up_proj [E][2*I][H] and mlp.experts.down_proj [E][H][I], no `.weight`."""
    stacked, out = stack_experts(weights)
    for (mlp, projection), w in stacked.items():
        if projection == "gate":
            out[f"{mlp}.experts.gate_up_proj"] = np.concatenate([w, stacked[mlp, "up"]], axis=1)
        elif projection == "down":
            out[f"{mlp}.experts.down_proj"] = w
    return out


def write_hf(directory, config, weights, dtype="BF16", shards=1, fused=False):
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / "config.json", config)
    tensors = fused_experts(weights) if fused else weights
    safetensors_io.save_sharded(directory, {n: (dtype, w) for n, w in tensors.items()}, shards, {"format": "pt"})


def write_mlx(directory, config, weights, bits, group, router_bits=8):
    """An mlx-community directory. Returns the canonical weights as it stores them: dequantised.

    Matrices are quantised, vectors stay bfloat16; the router has its own bits, named in config.quantization under its module's path."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    stacked, rest = stack_experts(weights)
    modules = {f"{mlp}.switch_mlp.{projection}_proj": w for (mlp, projection), w in stacked.items()}
    quantization = {"group_size": group, "bits": bits, "mode": "affine"}
    tensors, effective = {}, {}
    for name, w in rest.items():
        if w.ndim == 1:
            tensors[name] = ("BF16", w)
            effective[name] = w
        else:
            modules[name.removesuffix(".weight")] = w
    for module, w in modules.items():
        module_bits = bits
        if module.endswith(".mlp.gate"):
            module_bits = router_bits
            quantization[module] = {"group_size": group, "bits": router_bits}
        packed, scale, bias = affine.quantise(w, module_bits, group)
        tensors[f"{module}.weight"] = ("U32", packed)
        tensors[f"{module}.scales"] = ("BF16", scale)
        tensors[f"{module}.biases"] = ("BF16", bias)
        effective[f"{module}.weight"] = affine.dequantise(packed, scale, bias, module_bits, group)
    write_json(directory / "config.json", {**config, "quantization": quantization, "quantization_config": quantization})
    safetensors_io.save(directory / "model.safetensors", tensors, {"format": "mlx"})
    return _per_expert(effective)


def _per_expert(weights):
    out = {}
    for name, w in weights.items():
        if ".switch_mlp." in name:
            for e in range(w.shape[0]):
                out[name.replace(".switch_mlp.", f".experts.{e}.")] = w[e]
        else:
            out[name] = w
    return out
