"""The tools keep what they promise: splits are exact, golden files are whole, the stories text is what the model says. numpy and gguf only."""

import json

import gguf
import numpy as np
import pytest
import split_experts
from gguf import GGMLQuantizationType as Type
from lib import affine, floats, gguf_io, hf_io, llama2c, moe, safetensors_io

HIDDEN, WIDTH, EXPERTS = 64, 256, 4


def ffn(x, gate, up, down):
    g = gate @ x
    return down @ (g / (1 + np.exp(-g)) * (up @ x))


def quantised(rng, rows, columns, kind):
    return gguf.quants.quantize(rng.normal(0, 0.3, (rows, columns)).astype(np.float32), kind).view(np.uint8)


def values(data, kind):
    data = data.view(split_experts.FLOATS[kind]) if kind in split_experts.FLOATS else data
    return gguf.quants.dequantize(np.ascontiguousarray(data), kind).astype(np.float64)


@pytest.mark.parametrize("kind", [*split_experts.SCALES, *split_experts.FLOATS], ids=lambda k: k.name)
def test_quantised_ffn_split_into_experts_is_the_dense_ffn(kind):
    rng = np.random.default_rng(1)
    names = {"gate": (WIDTH, HIDDEN), "up": (WIDTH, HIDDEN), "down": (HIDDEN, WIDTH)}
    dense = {f"blk.0.ffn_{n}.weight": (kind, quantised(rng, *shape, kind)) for n, shape in names.items()}
    out = split_experts.split({"hidden_size": HIDDEN, "intermediate_size": WIDTH}, dense, EXPERTS)
    d = {n: values(dense[f"blk.0.ffn_{n}.weight"][1], kind) for n in names}
    e = {n: values(out[f"blk.0.ffn_{n}_exps.weight"][1], kind) for n in names}
    x = rng.normal(size=HIDDEN)
    total = sum(ffn(x, e["gate"][i], e["up"][i], e["down"][i]) / EXPERTS for i in range(EXPERTS))
    np.testing.assert_allclose(total, ffn(x, **d), rtol=1e-12, atol=1e-12)
    shared = [values(out[f"blk.0.ffn_{n}_shexp.weight"][1], kind) for n in names]
    assert not any(w.any() for w in shared)


def test_scale_that_overflows_f16_is_an_error():
    data = gguf.quants.quantize(np.full((1, 32), 6e6, np.float32), Type.Q8_0)
    with pytest.raises(SystemExit, match="does not fit"):
        split_experts.scale_rows(data, Type.Q8_0, 16, "blk.0.ffn_down.weight")


def test_cut_through_a_block_is_an_error():
    tensors = {"blk.0.ffn_down.weight": (Type.Q8_0, np.zeros((HIDDEN, 2 * 34), np.uint8))}
    with pytest.raises(SystemExit, match="keep blocks of 32 whole"):
        split_experts.split({"hidden_size": HIDDEN, "intermediate_size": 64}, tensors, 4)


def test_float_split_with_padding_is_the_dense_ffn():
    rng = np.random.default_rng(2)
    shapes = {"gate": (43, 8), "up": (43, 8), "down": (8, 43)}
    dense = {f"model.layers.0.mlp.{n}_proj.weight": rng.normal(size=s).astype(np.float32) for n, s in shapes.items()}
    config, padded = moe.pad_neurons({"hidden_size": 8, "intermediate_size": 43}, dense, EXPERTS)
    assert config["intermediate_size"] == 44
    out = moe.split_weights(config, padded, EXPERTS)
    x = rng.normal(size=8)
    parts = [[out[f"model.layers.0.mlp.experts.{i}.{n}_proj.weight"].astype(float) for n in shapes] for i in range(EXPERTS)]
    want = ffn(x, *(w.astype(float) for w in dense.values()))
    np.testing.assert_allclose(sum(ffn(x, *p) / EXPERTS for p in parts), want, rtol=1e-12)


def test_rope_rows_are_undone():
    w = np.arange(6 * 8).reshape(24, 2)
    assert not np.array_equal(gguf_io.rope_rows(w, 3), w)
    np.testing.assert_array_equal(gguf_io.unrope_rows(gguf_io.rope_rows(w, 3), 3), w)
    # Of a head of 8 rows: (0, 4), (1, 5), ... become neighbours.
    np.testing.assert_array_equal(gguf_io.rope_rows(np.arange(8), 1), [0, 4, 1, 5, 2, 6, 3, 7])


@pytest.mark.parametrize("bits,group", [(4, 32), (4, 64), (8, 64)])
def test_affine_codes_are_within_half_a_step(bits, group):
    w = np.random.default_rng(3).normal(size=(5, 128)).astype(np.float32)
    packed, scale, bias = affine.quantise(w, bits, group)
    step = np.repeat(np.abs(scale), group, -1)
    # The bias is rounded to bfloat16, which may clip an edge by that much more.
    assert (np.abs(affine.dequantise(packed, scale, bias, bits, group) - w) <= step * 0.51 + np.abs(w).max() / 128).all()
    assert (scale > 0).any() and (scale < 0).any()


def test_bf16_rounds_to_nearest_even():
    x = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0xBF807FFF], np.uint32).view(np.float32)
    np.testing.assert_array_equal(floats.to_bf16_bits(x), [0x3F80, 0x3F82, 0x3F81, 0xBF80])


def test_stories_text_is_what_the_model_says(shared_data, stories_text):
    m = llama2c.read_model(shared_data / "stories260K.bin")
    pieces, _ = llama2c.read_tokenizer(shared_data / "tok512.bin", m.vocab)
    ids, margin = llama2c.greedy(m, 256)
    assert margin > 1e-3, "too close to call"
    assert llama2c.decode(pieces, ids).decode() == stories_text
    assert len(stories_text) == 565 and stories_text.startswith("Once upon a time, there was a little girl named Lily.")


def stored_weights(directory):
    weights = {}
    for path in sorted(directory.glob("*.safetensors")):
        weights |= safetensors_io.load(path)
    return weights


def test_split_stories_hold_the_dense_weights(stories_hf, stories_moe_hf):
    dense, split = stored_weights(stories_hf), stored_weights(stories_moe_hf)
    for name, w in dense.items():
        if ".mlp." not in name:
            np.testing.assert_array_equal(split[name], w)
            continue
        mlp, projection = name.split(".mlp.")
        parts = [split[f"{mlp}.mlp.experts.{e}.{projection}"] for e in range(4)]
        whole = np.concatenate(parts, 1) / 4 if "down" in projection else np.concatenate(parts)
        np.testing.assert_array_equal(whole, w)


def test_stories_gguf_holds_the_hf_weights(stories_hf, stories_gguf):
    reader = gguf.GGUFReader(stories_gguf)
    weights = gguf_io.canonical_weights(gguf_io.read_config(reader), {t.name: t.data for t in reader.tensors})
    stored = stored_weights(stories_hf)
    assert weights.keys() == stored.keys()
    for name, w in stored.items():
        np.testing.assert_array_equal(weights[name], w)


def test_demo_model_is_complete(demo_model):
    reader = gguf.GGUFReader(demo_model)
    assert gguf_io.field(reader, "general.architecture") == "qwen2moe"
    assert gguf_io.field(reader, "qwen2moe.expert_count") == gguf_io.field(reader, "qwen2moe.expert_used_count") == 16
    shapes = {t.name: tuple(int(n) for n in reversed(t.shape)) for t in reader.tensors}
    assert shapes["blk.29.ffn_down_exps.weight"] == (16, 576, 96)
    assert len(gguf_io.field(reader, "tokenizer.ggml.tokens")) == 49152


def test_golden_files_are_whole(golden):
    cases = sorted((golden / "arch").glob("*/golden.json"))
    assert len(cases) >= 12
    for path in cases:
        g = json.loads(path.read_text())
        logits = np.fromfile(path.parent / g["logits"], "<f4")
        assert logits.size == len(g["rows"]) * g["vocab"] and np.isfinite(logits).all(), path
        assert (path.parent / g["model"]).exists(), path
        # The decoded tokens are the greedy ones.
        rows = dict(zip(g["rows"], logits.reshape(-1, g["vocab"])))
        for p in range(g["prefill"] - 1, len(g["tokens"]) - 1):
            assert rows[p].argmax() == g["tokens"][p + 1], path


def test_mlx_directories_hold_experts_stacked(golden):
    w = safetensors_io.load(golden / "arch/qwen3_moe-mlx4/model.safetensors")
    config = json.loads((golden / "arch/qwen3_moe-mlx4/config.json").read_text())
    module = "model.layers.0.mlp.switch_mlp.gate_proj"
    experts, rows = config["num_experts"], config["moe_intermediate_size"]
    assert w[f"{module}.weight"].shape == (experts, rows, config["hidden_size"] * 4 // 32)
    assert w[f"{module}.scales"].shape == (experts, rows, config["hidden_size"] // 32)
    assert w["model.layers.0.mlp.gate.weight"].shape[1] == config["hidden_size"] * 8 // 32


def test_fused_experts_are_gate_then_up():
    w = {f"model.layers.0.mlp.experts.{e}.{p}_proj.weight": np.full((2, 3), 10 * e + i) for e in range(2) for i, p in enumerate(("gate", "up"))}
    w |= {f"model.layers.0.mlp.experts.{e}.down_proj.weight": np.zeros((3, 2)) for e in range(2)}
    fused = hf_io.fused_experts(w)["model.layers.0.mlp.experts.gate_up_proj"]
    np.testing.assert_array_equal(fused[:, :, 0], [[0, 0, 1, 1], [10, 10, 11, 11]])
