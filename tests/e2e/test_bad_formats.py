"""Quantised checkpoints whose metadata and tensors do not go together: one clear line that names file, tensor or field."""

import json
import shutil
import struct

import pytest


@pytest.fixture
def refused(run):
    """refused(model, words): info and run both fail with one line that has all the words."""

    def call(model, *words):
        for args in (["info", model], ["run", model, "hello", "--raw", "-n", "2"]):
            done = run(*args, check=False)
            said = f"status {done.returncode}\nstdout: {done.stdout}\nstderr: {done.stderr}"
            assert done.returncode == 1 and done.stdout == "" and done.stderr.count("\n") == 1, said
            for word in words:
                assert word in done.stderr, f"{word!r} is not in: {done.stderr}"

    return call


@pytest.fixture
def mlx(run, tmp_path):
    run("synth", "tiny-qwen3-moe", tmp_path / "mlx", "--format", "mlx3")
    return tmp_path / "mlx"


@pytest.fixture
def mxfp4(run, tmp_path):
    run("synth", "tiny-qwen3-moe", tmp_path / "mxfp4", "--format", "mlx-mxfp4")
    return tmp_path / "mxfp4"


def edit_config(model, change):
    path = model / "config.json"
    doc = json.loads(path.read_text())
    change(doc)
    path.write_text(json.dumps(doc))


def edit_header(model, change):
    path = model / "model.safetensors"
    raw = path.read_bytes()
    (n,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8:8 + n])
    change(header)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + n:])


ROUTED = "model.layers.1.mlp.switch_mlp.up_proj"


@pytest.mark.parametrize("change, words", [
    (lambda q: q.clear(), ["config.json", "quantization.bits is missing"]),
    (lambda q: q.update(mode="nvfp5"), ["config.json", 'quantization.mode is "nvfp5", expected "affine", "mxfp4", "nvfp4" or "mxfp8"']),
    (lambda q: q.update(mode="mxfp4"), ["quantization.bits is 3, expected 4 in mode mxfp4"]),
    (lambda q: q.update(bits=7), ["quantization.bits is 7, expected 2, 3, 4, 5, 6 or 8"]),
    (lambda q: q.update(bits=6), ["model.safetensors", "words of 6-bit codes are"]),
    (lambda q: q.update(group_size=16), ["quantization.group_size is 16, expected 32, 64 or 128"]),
    (lambda q: q.update(group_size=32), ["model.safetensors", "scales for groups of 32 are"]),
    (lambda q: q.update({ROUTED: {"bits": 4}}), [f'tensor "{ROUTED}.weight"', "words of 4-bit codes are"]),
    (lambda q: q.update({ROUTED: {"mode": "fp9"}}), [f'quantization.{ROUTED}.mode is "fp9"']),
    (lambda q: q.update({ROUTED: False}), [f"quantization.{ROUTED} is not an object", "is quantised"]),
], ids=range(10))
def test_mlx_parameters(refused, mlx, change, words):
    edit_config(mlx, lambda c: change(c["quantization"]))
    refused(mlx, *words)


def test_mlx_without_parameters(refused, mlx):
    edit_config(mlx, lambda c: c.pop("quantization"))
    refused(mlx, "config.json", 'no "quantization", but tensor', "has U32 codes and scales")


@pytest.mark.parametrize("part", ["scales", "biases"])
def test_mlx_part_is_missing(refused, mlx, part):
    edit_header(mlx, lambda h: h.update({"model.extra": h.pop(f"{ROUTED}.{part}")}))
    refused(mlx, "model.safetensors", f'tensor "{ROUTED}.weight"', f"quantised, but its .{part} are missing")


def test_mxfp4_with_scales_of_another_type(refused, mxfp4):
    edit_header(mxfp4, lambda h: h[f"{ROUTED}.scales"].update(dtype="I8"))
    refused(mxfp4, "model.safetensors", f'tensor "{ROUTED}.weight"', "scales are I8, expected U8 in mode mxfp4")


def to_fp8(model, config=None):
    """Its bf16 vectors' names are kept; one matrix says that it is FP8, which its length allows: two bytes become two codes."""
    method = {"quant_method": "fp8", "weight_block_size": [128, 128]} | (config or {})
    edit_config(model, lambda c: c.update(quantization_config=method))
    name = "model.layers.0.mlp.gate.weight"

    def change(header):
        rows, cols = header[name]["shape"]
        header[name].update(dtype="F8_E4M3", shape=[rows, 2 * cols])

    edit_header(model, change)
    return name


@pytest.fixture
def plain(repo, tmp_path):
    shutil.copytree(repo / "tests/golden/arch/qwen2_moe", tmp_path / "plain")
    return tmp_path / "plain"


def test_fp8_without_scales(refused, plain):
    name = to_fp8(plain)
    refused(plain, "model.safetensors", f'tensor "{name}": dtype F8_E4M3, but "{name}_scale_inv" is missing')


def test_fp8_with_other_blocks(refused, plain):
    to_fp8(plain, {"weight_block_size": [1, 64]})
    refused(plain, "config.json", "quantization_config.weight_block_size is [1,64], expected [128,128]")


def test_unknown_method(refused, plain):
    name = to_fp8(plain, {"quant_method": "bitsandbytes"})
    refused(plain, f'tensor "{name}"', "F8_E4M3")
