"""Rotation frequencies as transformers computes them, as the C table of tests/unit/model/rope_table.h.

    python tools/golden/make_rope_table.py > tests/unit/model/rope_table.h

Needs transformers and torch (see requirements in tools/README.md); run once, its output is checked in."""
import json

import torch
import transformers
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

# name, head_dim, max_position_embeddings, theta, rope_scaling, top-level fields
CASES = [
    ("default", 64, 2048, 10000.0, None, {}),
    ("default with another theta", 128, 32768, 1000000.0, None, {}),
    ("linear", 64, 8192, 10000.0, {"rope_type": "linear", "factor": 4.0}, {}),
    ("linear under its old name", 96, 8192, 10000.0, {"type": "linear", "factor": 2.5}, {}),
    ("llama 3.1", 128, 131072, 500000.0,
     {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
      "original_max_position_embeddings": 8192}, {}),
    ("llama 3.2", 64, 131072, 500000.0,
     {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
      "original_max_position_embeddings": 8192}, {}),
    ("llama3 with the context outside", 64, 131072, 500000.0,
     {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 2.0, "high_freq_factor": 8.0},
     {"original_max_position_embeddings": 4096}),
    ("yarn as qwen3 has it", 128, 131072, 1000000.0,
     {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, {}),
    ("yarn with other betas and an attention factor", 64, 65536, 10000.0,
     {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 4096, "beta_fast": 24, "beta_slow": 2,
      "attention_factor": 0.75}, {}),
    ("yarn with mscale", 64, 163840, 10000.0,
     {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "mscale": 1.0,
      "mscale_all_dim": 0.707}, {}),
    ("yarn with only one mscale", 64, 163840, 10000.0,
     {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "mscale": 0.707}, {}),
    ("yarn not truncated", 64, 131072, 150000.0,
     {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "beta_fast": 32.0,
      "beta_slow": 1.0, "truncate": False}, {}),
    ("yarn without a factor", 64, 131072, 10000.0,
     {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 4096}, {}),
    ("yarn of a short context: both ends meet", 32, 512, 10000.0,
     {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 8}, {}),
    ("parameters as transformers 5 writes them", 64, 65536, 10000.0,
     ("rope_parameters", {"rope_type": "yarn", "rope_theta": 250000.0, "factor": 8.0,
                          "original_max_position_embeddings": 8192}), {}),
]


def fields(head_dim, context, theta, scaling, top):
    """config.json's fields that differ from case to case."""
    name, value = scaling if isinstance(scaling, tuple) else ("rope_scaling", scaling)
    out = {"head_dim": head_dim, "max_position_embeddings": context, "rope_theta": theta, **top}
    return out if value is None else {**out, name: value}


def main():
    print(f"/* Made by tools/golden/make_rope_table.py with transformers {transformers.__version__}. Frequencies 0, 1/8, 2/8 .. "
          "7/8 of the\n * dimensions and the last. */")
    print("static const struct {\n    const char *name, *fields;\n    int32_t dims;\n    double scale, inv_freq[9];\n} rope_table[] = {")
    for name, head_dim, context, theta, scaling, top in CASES:
        f = fields(head_dim, context, theta, scaling, top)
        config = LlamaConfig(hidden_size=head_dim * 2, num_attention_heads=2, num_key_value_heads=2, **json.loads(json.dumps(f)))
        rope = LlamaRotaryEmbedding(config)
        freq = rope.inv_freq.to(torch.float64).tolist()
        assert len(freq) == head_dim // 2
        shown = [freq[len(freq) * i // 8] for i in range(8)] + [freq[-1]]
        print(f"    {{{json.dumps(name)},\n     {json.dumps(json.dumps(f))},\n     {head_dim},\n     {rope.attention_scaling!r},\n     "
              f"{{{', '.join(repr(x) for x in shown)}}}}},")
    print("};")


main()
