#!/usr/bin/env python3
"""Writes tests/golden/arch/: tiny random checkpoints of every architecture, with the logits that Hugging Face transformers computes for them.

Each directory holds one checkpoint and golden.json:
  model      the checkpoint: "." (a Hugging Face or MLX directory) or a .gguf file
  tokens     token ids; the logits at position p are those after tokens[0..p]
  prefill    positions 0 .. prefill-1 were computed in one forward pass, the others one token at a time through the KV cache; they continue
             greedily: tokens[p+1] = argmax(logits at p) for p >= prefill-1
  rows       the positions whose logits are recorded
  logits     file of float32 little-endian [rows][vocab]; in another directory where the weights are the same
  noise      max |f32 - f64| / max |f64| over the rows: how far float32 rounding alone moves the logits
  router_margin  least gap between the last chosen and the first refused router logit (null: no router)
  llama_cpp  GGUF only: max |llama.cpp - f32| / max |f32|; "f32" with the same (dequantised) weights written as f32, "file" with the file itself,
             where llama.cpp also rounds activations to 8 bits (and a router may then choose otherwise)

Needs numpy, gguf, torch, transformers, tokenizers; llama_cpp for the GGUF check. Everything is derived from fixed seeds.
"""

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as Type

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from golden import delta_families, moe_families, reference, tiny_tokenizer  # noqa: E402
from golden.family import BASE, Family, mlp_shapes, model_shapes  # noqa: E402
from lib import floats, gguf_io, hf_io  # noqa: E402

OUT = Path(__file__).resolve().parents[2] / "tests/golden/arch"
PREFILL, DECODE = 150, 10
# The start, around position 64 (a page of KV), the end of the prompt, the decoded ones.
ROWS = [0, 3, 7, 60, 63, 64, 68, PREFILL - 10, PREFILL - 7, PREFILL - 4, *range(PREFILL - 1, PREFILL + DECODE)]
MOST_NOISE = 5e-6  # tests compare within 1e-5
LEAST_MARGIN = 0.002  # of router logits and of the greedy choice: wider than any rounding, so that every engine takes the same branch

def hf(**options):
    def write(path, config, weights):
        hf_io.write_hf(path, config, weights, **options)
        return weights

    return write


def mlx(bits, group):
    return lambda path, config, weights: hf_io.write_mlx(path, config, weights, bits, group)


def gguf_of(default, **by_part):
    """Quantised by tensor: gguf_of(Type.Q8_0, ffn_gate_exps=Type.Q4_0)."""

    def type_of(tensor):
        return next((t for part, t in by_part.items() if f"{part}." in tensor), default)

    def write(path, config, weights):
        path.mkdir(parents=True, exist_ok=True)
        return gguf_io.write_gguf(path / "model.gguf", config, weights, path.name, type_of, tiny_tokenizer.add_to_gguf)

    return write


FAMILIES = [
    Family(
        {**BASE, "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", "num_hidden_layers": 2,
         "intermediate_size": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False},
        [("llama", hf()), ("llama-gguf", gguf_of(Type.F16))],
    ),
    # One kv head, head_dim other than hidden/heads, tied embeddings, two shards.
    Family(
        {**BASE, "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float16", "num_hidden_layers": 2, "num_key_value_heads": 1,
         "head_dim": 32, "intermediate_size": 64, "rope_theta": 500000.0, "tie_word_embeddings": True, "attention_bias": False, "mlp_bias": False},
        [("llama-tied", hf(dtype="F16", shards=2)), ("llama-tied-gguf", gguf_of(Type.Q8_0, attn_q=Type.Q4_1, ffn_up=Type.Q5_0, ffn_down=Type.BF16))],
    ),
    Family(
        {**BASE, "architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "torch_dtype": "bfloat16", "num_hidden_layers": 2,
         "intermediate_size": 80, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2,
         "norm_topk_prob": False, "decoder_sparse_step": 1, "mlp_only_layers": [], "rope_theta": 1000000.0, "tie_word_embeddings": False,
         "use_sliding_window": False, "sliding_window": 512, "max_window_layers": 2, "output_router_logits": False, "router_aux_loss_coef": 0.001},
        [("qwen2_moe", hf()), ("qwen2_moe-gguf", gguf_of(Type.Q8_0, ffn_gate_exps=Type.Q4_1, ffn_up_exps=Type.Q5_0, ffn_down_exps=Type.Q5_1))],
    ),
    # Normalised weights, a dense layer by mlp_only_layers, an expert width that is no multiple of 32.
    Family(
        {**BASE, "architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "torch_dtype": "bfloat16", "num_hidden_layers": 2,
         "intermediate_size": 40, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40, "num_experts": 9, "num_experts_per_tok": 4,
         "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [0], "rope_theta": 10000.0, "tie_word_embeddings": True,
         "use_sliding_window": False, "sliding_window": 512, "max_window_layers": 2, "output_router_logits": False, "router_aux_loss_coef": 0.001},
        [("qwen2_moe-mixed", hf())],
    ),
    Family(
        {**BASE, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "torch_dtype": "bfloat16", "num_hidden_layers": 2,
         "head_dim": 32, "intermediate_size": 96, "moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 3, "norm_topk_prob": True,
         "decoder_sparse_step": 1, "mlp_only_layers": [], "attention_bias": False, "rope_theta": 1000000.0, "rope_scaling": None,
         "tie_word_embeddings": False, "use_sliding_window": False, "sliding_window": None, "max_window_layers": 2,
         "output_router_logits": False, "router_aux_loss_coef": 0.001},
        [("qwen3_moe", hf(shards=3)), ("qwen3_moe-gguf", gguf_of(Type.Q8_0, ffn_gate_exps=Type.Q4_0, ffn_up_exps=Type.Q4_0, ffn_down_exps=Type.Q4_0)),
         ("qwen3_moe-mlx4", mlx(4, 32))],
    ),
    # transformers 5's own style: fused gate_up_proj, rope_parameters, dtype; a MoE layer only every second.
    Family(
        {**BASE, "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "dtype": "bfloat16", "num_hidden_layers": 2, "head_dim": 16,
         "intermediate_size": 64, "moe_intermediate_size": 64, "num_experts": 8, "num_local_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": False,
         "decoder_sparse_step": 2, "mlp_only_layers": [], "attention_bias": False, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
         "tie_word_embeddings": True, "use_sliding_window": False, "sliding_window": None, "output_router_logits": False, "router_aux_loss_coef": 0.001},
        [("qwen3_moe-fused", hf(fused=True)), ("qwen3_moe-mlx8", mlx(8, 64))],
    ),
]


def is_moe_layer(config, layer):
    return "num_experts" in config and layer not in config["mlp_only_layers"] and (layer + 1) % config["decoder_sparse_step"] == 0


def layer_shapes(config, layer):
    hidden, d = config["hidden_size"], gguf_io.head_dim(config)
    q, kv = config["num_attention_heads"] * d, config["num_key_value_heads"] * d
    p = f"model.layers.{layer}"
    shapes = {f"{p}.input_layernorm.weight": (hidden,)}
    for name, rows in (("q", q), ("k", kv), ("v", kv)):
        shapes[f"{p}.self_attn.{name}_proj.weight"] = (rows, hidden)
        if config["model_type"] == "qwen2_moe":
            shapes[f"{p}.self_attn.{name}_proj.bias"] = (rows,)
    if config["model_type"] == "qwen3_moe":
        shapes[f"{p}.self_attn.q_norm.weight"] = (d,)
        shapes[f"{p}.self_attn.k_norm.weight"] = (d,)
    shapes[f"{p}.self_attn.o_proj.weight"] = (hidden, q)
    shapes[f"{p}.post_attention_layernorm.weight"] = (hidden,)
    if not is_moe_layer(config, layer):
        return shapes | mlp_shapes(f"{p}.mlp", hidden, config["intermediate_size"])
    shapes[f"{p}.mlp.gate.weight"] = (config["num_experts"], hidden)
    for e in range(config["num_experts"]):
        shapes |= mlp_shapes(f"{p}.mlp.experts.{e}", hidden, config["moe_intermediate_size"])
    if config["model_type"] == "qwen2_moe":
        shapes |= mlp_shapes(f"{p}.mlp.shared_expert", hidden, config["shared_expert_intermediate_size"])
        shapes[f"{p}.mlp.shared_expert_gate.weight"] = (1, hidden)
    return shapes


def random_weights(family, seed):
    rng = np.random.default_rng(seed)
    shapes = model_shapes(family.config, family.layer_shapes or layer_shapes)
    return {name: floats.portable(family.weight(rng, name, shape)) for name, shape in shapes.items()}


def relative(a, b):
    return float(np.abs(a - b).max() / np.abs(b).max())


def compare_llama_cpp(path, config, held, result):
    """Agreement of llama.cpp on the file and on an f32 twin of it. The twin proves names, metadata and the order of rope rows."""
    with tempfile.TemporaryDirectory() as scratch:
        twin = Path(scratch) / "twin"
        write = next((f.gguf_of for f in (delta_families, moe_families) if config["model_type"] in f.TYPES), gguf_of)
        write(Type.F32)(twin, config, held)
        agreement = {"f32": relative(reference.llama_cpp_logits(twin / "model.gguf", result.tokens), result.logits),
                     "file": relative(reference.llama_cpp_logits(path / "model.gguf", result.tokens), result.logits)}
    if agreement["f32"] > 1e-2:
        raise SystemExit(f"{path.name}: llama.cpp disagrees with transformers by {agreement['f32']}")
    return agreement


def record(path, family, held, prompt):
    """Runs the references on the checkpoint at path; held are the weights it should hold. None if some choice is too close to call, or if
    float32's own rounding would hide an error."""
    config = family.config
    model = reference.load(path, config, held)
    result = reference.run(model, prompt, DECODE)
    if min(result.router_margin, result.greedy_margin) < LEAST_MARGIN:
        return None
    double = reference.forward(model.double(), result.tokens)[ROWS]
    logits = result.logits[ROWS]
    if relative(logits, double) > MOST_NOISE:
        return None
    golden = {"model": "model.gguf" if (path / "model.gguf").exists() else ".", "architecture": config["model_type"], "tokens": result.tokens,
              "prefill": PREFILL, "rows": ROWS, "vocab": config["vocab_size"], "noise": relative(logits, double),
              "router_margin": result.router_margin if np.isfinite(result.router_margin) else None}
    if golden["model"] != "." and family.llama_cpp:
        golden["llama_cpp"] = compare_llama_cpp(path, config, held, result)
    return golden, logits


def make_family(family, index, out):
    """Tries seeds until every checkpoint of the family has clear choices; moves the files into place."""
    for attempt in range(1000):
        seed = index * 1000 + attempt
        weights = random_weights(family, seed)
        prompt = np.random.default_rng(seed + 500000).integers(0, 256, PREFILL).tolist()
        with tempfile.TemporaryDirectory() as scratch:
            goldens = []
            for name, write in family.checkpoints:
                path = Path(scratch) / name
                held = write(path, family.config, weights)
                same = all(np.array_equal(held[n], weights[n]) for n in weights)
                recorded = record(path, family, held, prompt)
                if recorded is None:
                    break
                goldens.append((path, same, *recorded))
            else:
                first = goldens[0][0].name
                for path, same, golden, logits in goldens:
                    own = path.name == first or not same
                    golden = {**golden, "seed": seed, "logits": "logits.bin" if own else f"../{first}/logits.bin"}
                    if own:
                        logits.astype("<f4").tofile(path / "logits.bin")
                    (path / "golden.json").write_text(json.dumps(golden) + "\n")
                    shutil.rmtree(out / path.name, ignore_errors=True)
                    shutil.move(path, out / path.name)
                    print(f"{path.name:18} seed {seed} noise {golden['noise']:.1e} margin {golden['router_margin']} llama.cpp {golden.get('llama_cpp')}")
                return
    raise SystemExit(f"no seed gives clear choices for {family.checkpoints[0][0]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--only", help="families one of whose checkpoints' names begins so")
    args = parser.parse_args()
    out = args.out
    out.mkdir(parents=True, exist_ok=True)
    for index, family in enumerate(FAMILIES + delta_families.FAMILIES + moe_families.FAMILIES):
        if not args.only or any(name.startswith(args.only) for name, _ in family.checkpoints):
            make_family(family, index, out)
    for name in ("qwen3_moe", "qwen2_moe"):
        if (out / name).exists():
            tiny_tokenizer.write_hf(out / name)
    total = sum(f.stat().st_size for f in out.rglob("*") if f.is_file())
    print(f"{total / 1e6:.2f} MB in {out}")


if __name__ == "__main__":
    main()
