"""What a set of golden checkpoints is made from."""

from dataclasses import dataclass, field
from typing import Callable

import numpy as np

from golden import tiny_tokenizer

BASE = {
    "vocab_size": tiny_tokenizer.VOCAB,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "attention_dropout": 0.0,
    "initializer_range": 0.02,
    "use_cache": True,
    "bos_token_id": tiny_tokenizer.END,
    "eos_token_id": tiny_tokenizer.IM_END,
}


def random_weight(rng, name, shape):
    """Larger than at initialisation, so that softmax, SiLU and router are far from linear."""
    if "norm" in name:
        return rng.uniform(0.5, 1.5, shape)
    if name.endswith(".bias"):
        return rng.normal(0, 0.5, shape)
    if "embed_tokens" in name:
        return rng.normal(0, 0.7, shape)
    return rng.normal(0, 1.4 / np.sqrt(shape[-1]), shape)


def mlp_shapes(prefix, hidden, inner):
    return {f"{prefix}.gate_proj.weight": (inner, hidden), f"{prefix}.up_proj.weight": (inner, hidden), f"{prefix}.down_proj.weight": (hidden, inner)}


def model_shapes(config, layer_shapes):
    """All tensors of a model, given those of a layer: layer_shapes(config, layer) -> {name: shape}."""
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], config["hidden_size"])}
    for layer in range(config["num_hidden_layers"]):
        shapes |= layer_shapes(config, layer)
    shapes["model.norm.weight"] = (config["hidden_size"],)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = shapes["model.embed_tokens.weight"]
    return shapes


@dataclass
class Family:
    """One set of random weights and the checkpoints written from it: (directory, writer(path, config, weights) -> weights it holds)."""

    config: dict
    checkpoints: list = field(default_factory=list)
    layer_shapes: Callable = None  # None: those of make_arch_goldens
    weight: Callable = random_weight
    llama_cpp: bool = True  # compare its GGUF files with llama.cpp
