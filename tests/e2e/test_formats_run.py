"""Whole checkpoints of every element format: in mode exact a model gives the same logits, to the last bit, as the model of its weights
written out in float32; mode q8 stays close to it. So names, shapes, extents and the order of codes are right in every container.

Packages: numpy, gguf.
"""

import importlib.util
import json
import shutil

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize
from lib import safetensors_io

TEXT = "one two three four five six seven eight nine ten "
SPREAD = 0.06  # of weights: with 256 columns activations keep their size


@pytest.fixture(scope="session")
def vectors(repo):
    path = repo / "tools/golden/make_quant_vectors.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def same(run, tmp_path):
    """same(model, plain): exact mode agrees to the bit, also of the model's pack; q8 closely."""

    def check(model, plain, kl=0.02):
        (tmp_path / "text").write_text(TEXT)
        reference = tmp_path / "reference"
        run("eval", plain, tmp_path / "text", "--numeric", "exact", "--record", reference)
        run("eval", model, tmp_path / "text", "--numeric", "exact", "--record", tmp_path / "recorded")
        assert (tmp_path / "recorded").read_bytes() == reference.read_bytes()
        run("pack", model, tmp_path / "pack")
        run("eval", tmp_path / "pack", tmp_path / "text", "--numeric", "exact", "--record", tmp_path / "packed")
        assert (tmp_path / "packed").read_bytes() == reference.read_bytes()
        q8 = json.loads(run("eval", model, "--reference", reference, "--json").stdout)
        assert 0 < q8["kl_mean"] < kl, q8

    return check


# ---- GGUF -------------------------------------------------------------------------------------------------------------------------------------

TYPES = ["F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4",
         "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S", "IQ1_M", "TQ1_0", "TQ2_0"]


@pytest.fixture(scope="session")
def base(sluice, run, tmp_path_factory):
    path = tmp_path_factory.mktemp("formats") / "base.gguf"
    run("synth", "small-qwen3-moe", path, "--format", "f32-gguf", "--layers", 2, "--experts", 6)
    return gguf.GGUFReader(path)


def random_blocks(vectors, rng, name, count):
    """Blocks of random codes whose weights have mean 0 and the usual spread: each half field is scaled, the second one against the mean."""
    kind = gguf.GGMLQuantizationType[name]
    size = gguf.GGML_QUANT_SIZES[kind][1]
    blocks = rng.integers(0, 256, (count, size), dtype=np.uint8)
    if name in ("F16", "BF16"):
        x = (rng.standard_normal(count) * SPREAD).astype(np.float32)
        return gguf.quants.quantize(x, kind).view(np.uint8).reshape(count, size)
    if name == "MXFP4":
        blocks[:, 0] = rng.integers(120, 124, count)
        return blocks
    if name == "NVFP4":
        blocks[:, :4] = rng.integers(8, 24, (count, 4))
        return blocks
    if name == "IQ1_M":
        words = blocks[:, 48:].view("<u2")
        half = np.float16(0.01).view(np.uint16)
        for i in range(4):
            words[:, i] = (words[:, i] & 0x0FFF) | (half >> np.uint16(4 * i) << np.uint16(12))
        return blocks
    fields = (vectors.BLOCKS | vectors.BLOCKS_2)[name][1]

    def of(*halves):
        for at, half in zip(fields, halves):
            blocks[:, at:at + 2] = np.full(count, half, dtype="<f2").view(np.uint8).reshape(count, 2)
        return dequantize(blocks, kind)

    ratio = -of(1, 0).mean() / of(0, 1).mean() if len(fields) == 2 else 0
    spread = of(1, ratio).std()
    of(SPREAD / spread, SPREAD / spread * ratio)
    return blocks


def write_gguf(path, reader, tensors):
    """The reader's metadata, and {name: (type, bytes or floats)} where given."""
    writer = gguf.GGUFWriter(path, reader.get_field("general.architecture").contents())
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            kind = field.types[0]
            writer.add_key_value(field.name, field.contents(), kind, field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)
    for t in reader.tensors:
        kind, data = tensors.get(t.name, (gguf.GGMLQuantizationType.F32, t.data))
        writer.add_tensor(t.name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("name", TYPES)
def test_gguf(vectors, base, tmp_path, same, name):
    rng = np.random.default_rng(11)
    kind = gguf.GGMLQuantizationType[name]
    weights, size = gguf.GGML_QUANT_SIZES[kind]
    typed, plain = {}, {}
    for t in base.tensors:
        shape = t.data.shape
        if len(shape) < 2 or shape[-1] % weights or "ffn_gate_inp" in t.name:
            continue
        blocks = random_blocks(vectors, rng, name, int(np.prod(shape)) // weights)
        typed[t.name] = kind, blocks.reshape(*shape[:-1], shape[-1] // weights * size)
        floats = dequantize(blocks.view({"F16": "<f2"}.get(name, np.uint8)), kind)
        plain[t.name] = gguf.GGMLQuantizationType.F32, np.ascontiguousarray(floats, dtype=np.float32).reshape(shape)
    assert "blk.1.ffn_up_exps.weight" in typed
    write_gguf(tmp_path / "typed.gguf", base, typed)
    write_gguf(tmp_path / "plain.gguf", base, plain)
    same(tmp_path / "typed.gguf", tmp_path / "plain.gguf")


# ---- directories ------------------------------------------------------------------------------------------------------------------------------

HIDDEN, FFN, EXPERTS, LAYERS, VOCABULARY = 256, 160, 5, 2, 272


def config(golden):
    c = json.loads((golden / "arch/qwen3_moe/config.json").read_text())
    return {**c, "hidden_size": HIDDEN, "moe_intermediate_size": FFN, "num_experts": EXPERTS, "num_hidden_layers": LAYERS, "head_dim": 32,
            "num_attention_heads": 8, "num_key_value_heads": 4}


def matrices():
    """Module path -> shape."""
    out = {"model.embed_tokens": (VOCABULARY, HIDDEN), "lm_head": (VOCABULARY, HIDDEN)}
    for l in range(LAYERS):
        at = f"model.layers.{l}."
        out |= {at + "self_attn.q_proj": (256, HIDDEN), at + "self_attn.k_proj": (128, HIDDEN), at + "self_attn.v_proj": (128, HIDDEN),
                at + "self_attn.o_proj": (HIDDEN, 256), at + "mlp.gate": (EXPERTS, HIDDEN)}
        for p, shape in (("gate", (FFN, HIDDEN)), ("up", (FFN, HIDDEN)), ("down", (HIDDEN, FFN))):
            out |= {f"{at}mlp.experts.{e}.{p}_proj": shape for e in range(EXPERTS)}
    return out


def norms(rng):
    names = ["model.norm"]
    for l in range(LAYERS):
        names += [f"model.layers.{l}.{n}" for n in ("input_layernorm", "post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm")]
    return {f"{n}.weight": ("F32", (1 + 0.1 * rng.standard_normal(32 if n.endswith(("q_norm", "k_norm")) else HIDDEN)).astype(np.float32))
            for n in names}


def write_directory(path, golden, tensors, extra=None):
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config(golden) | (extra or {})))
    for f in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(golden / "arch/qwen3_moe" / f, path)
    safetensors_io.save(path / "model.safetensors", tensors)


def random_matrix(rng, shape):
    return (rng.standard_normal(shape) * SPREAD).astype(np.float32)


def as_fp8(vectors, rng, shape):
    """Codes, bf16 scales of 128 x 128 blocks, the weights."""
    rows, cols = shape
    codes = rng.integers(0, 256, shape, dtype=np.uint8)
    codes[(codes & 127) >= 0x60] ^= 0x40  # large exponents are rare in weights
    scale = (rng.uniform(0.5, 1.5, (-(-rows // 128), -(-cols // 128))) * 0.1).astype(np.float32)
    scale = (scale.view("<u4") & 0xFFFF0000).view("<f4")
    return codes, scale, vectors.e4m3_values()[codes] * scale.repeat(128, 0)[:rows].repeat(128, 1)[:, :cols]


def test_hugging_face_fp8(vectors, golden, tmp_path, same, monkeypatch):
    monkeypatch.setitem(safetensors_io.NUMPY, "F8_E4M3", np.uint8)
    rng = np.random.default_rng(12)
    typed = norms(rng)
    plain = dict(typed)
    for module, shape in matrices().items():
        if module in ("model.embed_tokens", "lm_head") or module.endswith("mlp.gate"):
            typed[f"{module}.weight"] = plain[f"{module}.weight"] = "F32", random_matrix(rng, shape)
            continue
        codes, scale, w = as_fp8(vectors, rng, shape)
        typed[f"{module}.weight"] = "F8_E4M3", codes
        typed[f"{module}.weight_scale_inv"] = "BF16", scale
        plain[f"{module}.weight"] = "F32", w
    method = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic", "modules_to_not_convert": ["lm_head"]}
    write_directory(tmp_path / "typed", golden, typed, {"quantization_config": method})
    write_directory(tmp_path / "plain", golden, plain)
    same(tmp_path / "typed", tmp_path / "plain")


def pack_codes(q, bits):
    stream = (q[..., None] >> np.arange(bits, dtype=np.uint32) & 1).astype(np.uint8).reshape(*q.shape[:-1], -1)
    return np.packbits(stream, axis=-1, bitorder="little").view("<u4")


def as_affine(rng, shape, bits, group):
    q = rng.integers(0, 1 << bits, shape, dtype=np.uint32)
    scale = (SPREAD * 3.4 / 2**bits * rng.uniform(0.7, 1.3, (*shape[:-1], shape[-1] // group))).astype(np.float16).astype(np.float32)
    bias = (-scale * (2**bits - 1) / 2).astype(np.float16).astype(np.float32)
    return {"weight": ("U32", pack_codes(q, bits)), "scales": ("F16", scale), "biases": ("F16", bias)}, \
        q.astype(np.float32) * scale.repeat(group, -1) + bias.repeat(group, -1)


def as_small_floats(vectors, rng, shape, mode):
    """mxfp4, nvfp4, mxfp8: two scales that follow each other differ by up to a factor of two."""
    bits, group = {"mxfp4": (4, 32), "nvfp4": (4, 16), "mxfp8": (8, 32)}[mode]
    q = rng.integers(0, 1 << bits, shape, dtype=np.uint32)
    if bits == 8:
        q[(q & 127) >= 0x60] ^= 0x40
    e4m3 = mode == "nvfp4"
    low = 8 if e4m3 else 120 if bits == 4 else 124
    scale = rng.integers(low, low + (8 if e4m3 else 2), (*shape[:-1], shape[-1] // group), dtype=np.uint8)
    factor = vectors.e4m3_values()[scale] if e4m3 else np.exp2(scale.astype(np.float32) - 127)
    w = (vectors.E2M1 if bits == 4 else vectors.e4m3_values())[q] * factor.repeat(group, -1)
    return {"weight": ("U32", pack_codes(q, bits)), "scales": ("U8", scale)}, w.astype(np.float32)


# How all modules are quantised, and overrides by the end of their paths.
MLX = {
    "affine2": ({"bits": 2, "group_size": 32}, {}),
    "affine3": ({"bits": 3, "group_size": 32}, {"mlp.gate": {"bits": 8, "group_size": 64}, "lm_head": False}),
    "affine4": ({"bits": 4, "group_size": 32, "mode": "affine"}, {"mlp.gate": {"bits": 8}, "q_proj": {"bits": 6, "group_size": 128}}),
    "affine5": ({"bits": 5, "group_size": 32}, {"mlp.gate": False, "o_proj": {}}),
    "affine6": ({"bits": 6, "group_size": 32}, {"k_proj": {"bits": 2, "group_size": 128}}),
    "affine8": ({"bits": 8, "group_size": 32}, {"down_proj": {"bits": 3, "group_size": 32}}),
    "mxfp4": ({"bits": 4, "group_size": 32, "mode": "mxfp4"}, {"mlp.gate": {"bits": 8, "group_size": 64}, "lm_head": {"mode": "mxfp4"}}),
    "nvfp4": ({"bits": 4, "group_size": 16, "mode": "nvfp4"}, {"mlp.gate": {"bits": 8, "group_size": 64}}),
    "mxfp8": ({"bits": 8, "group_size": 32, "mode": "mxfp8"}, {"mlp.gate": False}),
    "mixed": ({"bits": 4, "group_size": 32}, {"gate_proj": {"mode": "mxfp4"}, "up_proj": {"bits": 5, "group_size": 128}}),
}


@pytest.mark.parametrize("name", MLX)
def test_mlx(vectors, golden, tmp_path, same, name):
    rng = np.random.default_rng(13)
    everywhere, overrides = MLX[name]
    quantization = dict(everywhere)
    typed = norms(rng)
    plain = dict(typed)
    stacked = {m: s for m, s in matrices().items() if ".experts." not in m}
    for l in range(LAYERS):
        for p, shape in (("gate", (FFN, HIDDEN)), ("up", (FFN, HIDDEN)), ("down", (HIDDEN, FFN))):
            stacked[f"model.layers.{l}.mlp.switch_mlp.{p}_proj"] = (EXPERTS, *shape)
    for module, shape in stacked.items():
        how = {"mode": "affine", **everywhere}
        for end, override in overrides.items():
            if module.endswith(end):
                quantization[module] = override
                how = override if override is False else {"mode": "affine", "bits": 4, "group_size": 32 if "mode" in override else 64, **override}
        if how is False:
            w = random_matrix(rng, shape)
            typed[f"{module}.weight"] = "F32", w
        else:
            parts, w = as_affine(rng, shape, how["bits"], how["group_size"]) if how["mode"] == "affine" else \
                as_small_floats(vectors, rng, shape, how["mode"])
            typed |= {f"{module}.{part}": tensor for part, tensor in parts.items()}
        if ".switch_mlp." in module:
            plain |= {f"{module.replace('switch_mlp', f'experts.{e}')}.weight": ("F32", w[e]) for e in range(EXPERTS)}
        else:
            plain[f"{module}.weight"] = "F32", w
    write_directory(tmp_path / "typed", golden, typed, {"quantization": quantization, "quantization_config": quantization})
    write_directory(tmp_path / "plain", golden, plain)
    same(tmp_path / "typed", tmp_path / "plain")
