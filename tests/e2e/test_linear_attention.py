"""Models with Gated DeltaNet layers through the command line: shapes of synth, what info says of checkpoints with more in them than the text model."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from lib import safetensors_io

GOLDEN = Path(__file__).resolve().parents[1] / "golden/arch"
TINY = ["tiny-qwen3.5-moe", "tiny-qwen3-next"]


def answer(run, model, *options):
    return json.loads(run("run", model, "hello", "-n", 12, "--json", "--ignore-eos", "--temp", 0, *options).stdout)


@pytest.mark.parametrize("shape", TINY)
@pytest.mark.parametrize("kind", ["q4_0-gguf", "mlx4"])
def test_hybrid_shapes_run_the_same_however_they_are_cut(run, tmp_path, shape, kind):
    model = tmp_path / ("m.gguf" if kind.endswith("gguf") else "m")
    run("synth", "--like", shape, model, "--format", kind)
    one = answer(run, model)
    assert one["completion_tokens"] == 12
    for options in (["--chunk", 3], ["--threads", 1], ["--isa", "scalar"]):
        assert answer(run, model, *options)["text"] == one["text"]


def test_like_writes_what_the_older_form_writes(run, tmp_path):
    run("synth", "tiny-qwen3-next", tmp_path / "a.gguf")
    run("synth", "--like", "tiny-qwen3-next", tmp_path / "b.gguf")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


@pytest.mark.parametrize("args, parts", [
    (["--like", "qwen3.5-397b", "out"], ["unknown shape 'qwen3.5-397b'", "sluice synth list"]),
    (["--like", "qwen3.5-35b-a3b", "out", "--layers", 3], ["--layers 3", "every 4 layers"]),
    (["--like", "qwen3.5-35b-a3b", "out", "--experts", 7], ["--experts 7", "asks for 8"]),
    (["--like", "qwen3.5-35b-a3b"], ["synth"]),
    (["--like", "qwen3.5-35b-a3b", "a", "b"], ["--like SHAPE", "OUT"]),
])
def test_a_wish_that_cannot_be(run, args, parts):
    done = run("synth", *args, check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert all(p in done.stderr for p in parts), done.stderr


# Layers, hidden size, experts, experts per token: what the models' cards say.
PUBLISHED = {
    "qwen3.5-35b-a3b": ("qwen3_5_moe", 40, 2048, 256, 8),
    "qwen3.5-122b-a10b": ("qwen3_5_moe", 48, 3072, 256, 8),
    "qwen3.5-397b-a17b": ("qwen3_5_moe", 60, 4096, 512, 10),
    "qwen3-next-80b-a3b": ("qwen3_next", 48, 2048, 512, 10),
}


def test_published_shapes_are_listed_with_their_sizes(run):
    lines = {line.split()[0]: line for line in run("synth", "list").stdout.splitlines()}
    for name, (arch, *numbers) in PUBLISHED.items():
        assert arch in lines[name]
        assert [int(n) for n in re.findall(r"(\d+) layers, hidden +(\d+), +(\d+) experts, (\d+) per token", lines[name])[0]] == numbers


def test_fewer_experts_are_said(run, tmp_path):
    model = tmp_path / "m.gguf"
    run("synth", "--like", "tiny-qwen3.5-moe", model)
    done = run("run", model, "hello", "-n", 2, "--ignore-eos", "--experts-per-token", 1)
    assert "1 experts per token instead of 3" in done.stderr


def info(run, name):
    doc = json.loads((GOLDEN / name / "golden.json").read_text())
    return json.loads(run("info", GOLDEN / name / doc["model"], "--json").stdout)


def test_what_is_not_the_text_model_is_not_held(run):
    """A vision encoder, next-token heads and blocks beside the same model: the same layers, and not a byte more in memory."""
    plain, whole = info(run, "qwen3_5_moe-mlx"), info(run, "qwen3_5_moe")
    assert whole["architecture"] == plain["architecture"] == "qwen3_5_moe" and whole["layers"] == plain["layers"] == 3
    assert whole["resident_bytes"] == plain["resident_bytes"] and whole["expert_bytes"] == plain["expert_bytes"]
    assert whole["file_bytes"] > plain["file_bytes"]
    next_plain, next_mtp = info(run, "qwen3_next"), info(run, "qwen3_next-mtp")
    assert next_mtp["resident_bytes"] == next_plain["resident_bytes"]
    assert whole["linear_layers"] == 2 and " 3 layers (2 of linear attention)," in run("info", GOLDEN / "qwen3_5_moe").stdout
    gguf = info(run, "qwen3_5_moe-gguf")
    assert gguf["layers"] == 3 and gguf["expert_bytes"] == plain["expert_bytes"]


# ---- FP8: rows of the fused inputs are brought together with the scales of their blocks --------------------------------------------------------

HIDDEN, VOCABULARY, WIDTH = 64, 272, 128  # WIDTH: of a key head, and of the values of a key head
E4M3 = np.array([(-1) ** (c >> 7) * ((c & 7) / 8 * 2.0**-6 if c >> 3 & 15 == 0 else (1 + (c & 7) / 8) * 2.0 ** ((c >> 3 & 15) - 7)) for c in range(256)],
                np.float32)


def fp8_config(value_dim):
    return {"model_type": "qwen3_next", "hidden_size": HIDDEN, "num_hidden_layers": 2, "full_attention_interval": 2, "num_attention_heads": 2,
            "num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 512, "vocab_size": VOCABULARY, "num_experts": 2, "num_experts_per_tok": 1,
            "moe_intermediate_size": 64, "shared_expert_intermediate_size": 0, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
            "linear_key_head_dim": WIDTH, "linear_value_head_dim": value_dim, "linear_conv_kernel_dim": 4, "hidden_act": "silu",
            "rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 0.5}, "tie_word_embeddings": True, "bos_token_id": 269, "eos_token_id": 271}


def fp8_shapes(value_dim):
    values, keys, out = 4 * value_dim, 2 * WIDTH, {"model.embed_tokens.weight": (VOCABULARY, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for l, at in enumerate(("model.layers.0.", "model.layers.1.")):
        out |= {at + n: (HIDDEN,) for n in ("input_layernorm.weight", "post_attention_layernorm.weight")}
        out |= {at + "mlp.gate.weight": (2, HIDDEN)}
        out |= {f"{at}mlp.experts.{e}.{p}_proj.weight": (HIDDEN, HIDDEN) for e in range(2) for p in ("gate", "up", "down")}
    at = "model.layers.0.linear_attn."
    out |= {at + "in_proj_qkvz.weight": (2 * keys + 2 * values, HIDDEN), at + "in_proj_ba.weight": (8, HIDDEN), at + "conv1d.weight": (2 * keys + values, 1, 4),
            at + "A_log": (4,), at + "dt_bias": (4,), at + "norm.weight": (value_dim,), at + "out_proj.weight": (HIDDEN, values)}
    at = "model.layers.1.self_attn."
    return out | {at + "q_proj.weight": (128, HIDDEN), at + "k_proj.weight": (32, HIDDEN), at + "v_proj.weight": (32, HIDDEN), at + "o_proj.weight": (HIDDEN, 64),
                  at + "q_norm.weight": (32,), at + "k_norm.weight": (32,)}


def write_fp8(path, golden, value_dim):
    """A directory whose fused inputs are FP8, and the same weights in float32; both as trained, conv1d [channels][1][kernel]."""
    rng = np.random.default_rng(5)
    typed, plain = {}, {}
    for name, shape in fp8_shapes(value_dim).items():
        w = (rng.standard_normal(shape) * (0.2 if len(shape) > 1 else 0.1)).astype(np.float32)
        typed[name] = plain[name] = ("F32", w)
        if name.endswith("in_proj_qkvz.weight"):
            codes = rng.integers(0, 256, shape, dtype=np.uint8)
            codes[(codes & 127) >= 0x60] ^= 0x40
            scale = rng.integers(1, 9, (-(-shape[0] // 128), 1)).astype(np.float32) / 64
            typed[name] = ("F8_E4M3", codes)
            typed[name + "_scale_inv"] = ("F32", scale)
            plain[name] = ("F32", E4M3[codes] * scale.repeat(128, 0)[: shape[0]])
    method = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
    for name, tensors, extra in (("typed", typed, {"quantization_config": method}), ("plain", plain, {})):
        (path / name).mkdir()
        (path / name / "config.json").write_text(json.dumps(fp8_config(value_dim) | extra))
        for f in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(golden / "arch/qwen3_moe" / f, path / name)
        safetensors_io.save(path / name / "model.safetensors", tensors)


def test_fused_inputs_in_fp8(run, golden, tmp_path, monkeypatch):
    monkeypatch.setitem(safetensors_io.NUMPY, "F8_E4M3", np.uint8)
    write_fp8(tmp_path, golden, WIDTH // 2)
    (tmp_path / "text").write_text("one two three four five six seven")
    for name in ("typed", "plain"):
        run("eval", tmp_path / name, tmp_path / "text", "--numeric", "exact", "--record", tmp_path / f"{name}.bin")
    assert (tmp_path / "typed.bin").read_bytes() == (tmp_path / "plain.bin").read_bytes()


def test_fused_inputs_in_fp8_whose_scales_span_heads(run, golden, tmp_path, monkeypatch):
    monkeypatch.setitem(safetensors_io.NUMPY, "F8_E4M3", np.uint8)
    write_fp8(tmp_path, golden, 48)
    done = run("info", tmp_path / "typed", check=False)
    assert done.returncode and "in_proj_qkvz.weight: runs of 96 rows, a multiple of the scales' blocks of 128 rows expected" in done.stderr, done.stderr
