"""The engine with its kernels on the software device, as a user runs it."""

import json
import os
import shutil
import struct

import numpy as np
import pytest

PROMPT = "The sea is"
SMALL = ["--ctx", 128, "--chunk", 16]


@pytest.fixture(scope="session")
def model(repo):
    path = repo / "models/sluice-smol-moe"
    assert path.is_dir(), f"{path} is part of the repository"
    return path


def generate(run, model, *options, device="soft", tokens=6, **more):
    where = ["--device", device] if device else []
    done = run("run", model, PROMPT, "--raw", "-n", tokens, "--json", "--logprobs", 3, *SMALL, *where, *options, timeout=600, **more)
    return json.loads(done.stdout)


@pytest.fixture(scope="session")
def on_soft(run, model):
    return generate(run, model)


def test_says_what_it_runs_on(on_soft):
    figures = on_soft.get("figures", on_soft)
    assert figures["numeric"] == "gpu"
    assert figures["isa"].startswith("soft ")


def test_the_text_is_that_of_the_cpus_exact_mode(run, model, on_soft):
    exact = generate(run, model, "--numeric", "exact", device=None)
    assert on_soft["text"] == exact["text"]


def test_no_bit_depends_on_the_cache_of_experts(run, model, on_soft):
    few = generate(run, model, "--max-slots", 12)
    assert few["text"] == on_soft["text"]
    assert few["logprobs"] == on_soft["logprobs"]


def test_metals_path_gives_the_same_bits(run, model, on_soft, build):
    """Through the library that stands in for Apple's, which runs kernels on the software device and counts lifetimes."""
    library = build / "libmetal_standin.so"
    assert library.is_file()
    metal = generate(run, model, device="metal", env={**os.environ, "SLUICE_METAL_LIBRARY": str(library)})
    assert metal["figures"]["isa"].startswith("metal ")
    assert metal["text"] == on_soft["text"]
    assert metal["logprobs"] == on_soft["logprobs"]


def test_decoding_is_given_to_the_device_whole(run, model, on_soft):
    """One command buffer a token; the device waits only where something is read, and that is mostly hidden."""
    few = generate(run, model, "--max-slots", 24, tokens=12)
    for document, tokens in ((on_soft, 6), (few, 12)):
        device = document["figures"]["device"]
        assert device["command_buffers"] <= tokens + 4
    # 12 layers: were every layer waited for, there would be 12 waits a token, and as many command buffers
    assert on_soft["figures"]["device"]["host_waits"] < 12 * 6 + 6
    assert few["figures"]["device"]["hidden_waits"] > 0


def test_timing_names_command_buffers_and_waits(run, model):
    said = run("run", model, PROMPT, "--raw", "-n", 2, "--timing", "--device", "soft", *SMALL, timeout=600).stderr
    assert "command buffers" in said and "host waits" in said and "router" in said


@pytest.mark.parametrize("device", ["soft", "metal"])
@pytest.mark.parametrize("slots", [None, 24])
def test_a_devices_phases_are_told_apart_when_asked_for(run, model, build, on_soft, device, slots):
    """Every phase took time, together no more than the device ran; and no bit depends on being asked."""
    env = {**os.environ, "SLUICE_METAL_LIBRARY": str(build / "libmetal_standin.so")}
    options = ["--max-slots", slots] if slots else []
    timed = generate(run, model, "--timing", *options, device=device, env=env)
    seconds, phases = timed["figures"]["device"]["seconds"], timed["figures"]["device"]["phases"]
    assert phases.pop("all") <= seconds * 1.000001
    for name in ("attention", "router", "experts", "shared", "products", "head"):
        assert phases[name] > 0, name
    if slots:
        assert phases["expert_wait"] > 0
    wait = phases.pop("expert_wait")
    assert sum(phases.values()) <= seconds * 1.000001
    assert wait < timed["figures"]["prefill_seconds"] + timed["figures"]["decode_seconds"]
    assert timed["logprobs"] == on_soft["logprobs"]


def test_phases_cost_nothing_unasked(on_soft):
    """No command buffer of its own for each, which is what telling them apart costs."""
    assert on_soft["figures"]["device"]["phases"] is None


def test_devices_that_are_not_there_are_said_so(run, model, monkeypatch):
    monkeypatch.setenv("SLUICE_CUDA_LIBRARY", "/no/such/library")
    for device, words in (("cuda", "no NVIDIA driver here"), ("toaster", "toaster"), ("soft:x", "soft:x")):
        done = run("run", model, PROMPT, "--device", device, check=False)
        assert done.returncode != 0
        assert words in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_exact_numerics_are_the_cpus(run, model):
    done = run("run", model, PROMPT, "--device", "soft", "--numeric", "exact", check=False)
    assert done.returncode != 0 and "exact" in done.stderr


def test_guesses_of_experts_are_the_cpus(run, model):
    """A device is given a token's work before anybody could guess."""
    done = run("run", model, PROMPT, "--device", "soft", "--prefetch", "router", check=False)
    assert done.returncode != 0 and "prefetch router" in done.stderr and done.stderr.count("\n") == 1


def remade(source, path, rows_of, **config):
    """The checkpoint with other values in its (text) configuration; rows_of(name, shape) -> (axis, indices) or None: what becomes of a tensor."""
    shutil.copytree(source, path)
    said = json.loads((path / "config.json").read_text())
    said.get("text_config", said).update(config)
    (path / "config.json").write_text(json.dumps(said))
    raw = (path / "model.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    header, data, out = json.loads(raw[8 : 8 + size]), raw[8 + size :], b""
    for name, t in header.items():
        if name == "__metadata__":
            continue
        bits = np.frombuffer(data[slice(*t["data_offsets"])], "<u2" if t["dtype"] == "BF16" else "<u4").reshape(t["shape"])
        taken = rows_of(name, bits.shape)
        if taken:
            bits = np.take(bits, taken[1], axis=taken[0])
        t |= {"shape": list(bits.shape), "data_offsets": [len(out), len(out) + bits.nbytes]}
        out += np.ascontiguousarray(bits).tobytes()
    text = json.dumps(header).encode()
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + out)
    return path


def heads_of(repo, path, dim):
    """A checkpoint of bf16 whose heads are cut, or repeated, to another size."""
    source = repo / "tests/golden/arch/qwen3_moe-fused"
    config = json.loads((source / "config.json").read_text())
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"], "v_proj": config["num_key_value_heads"]}
    heads |= {"o_proj": config["num_attention_heads"], "q_norm": 1, "k_norm": 1}

    def rows_of(name, shape):
        kind, axis = next((k for k in heads if k in name), None), int("o_proj" in name)
        return (axis, np.arange(heads[kind] * dim) % shape[axis]) if kind else None

    return remade(source, path, rows_of, head_dim=dim)


def keys_of(repo, path, dim):
    """A checkpoint with linear attention whose keys are repeated to another size."""
    source = repo / "tests/golden/arch/qwen3_5_moe"
    text = json.loads((source / "config.json").read_text())["text_config"]
    heads = text["linear_num_key_heads"]
    keys, values = 2 * heads * text["linear_key_head_dim"], text["linear_num_value_heads"] * text["linear_value_head_dim"]
    channels = np.concatenate([np.arange(2 * heads * dim) % keys, keys + np.arange(values)])
    return remade(source, path, lambda name, _: (0, channels) if "in_proj_qkv" in name or "conv1d" in name else None, linear_key_head_dim=dim)


@pytest.mark.parametrize("make, size, words", [
    (heads_of, 18, "attention layer 0: heads of 18, values of 18 on a GPU: multiples of 4 up to 576 expected"),
    (keys_of, 260, "delta layer 0: keys of 260 on a GPU: at most 256 expected"),
])
def test_sizes_that_kernels_are_not_made_for_are_named_before_anything_is_read(run, repo, build, tmp_path, make, size, words):
    """By every command that takes the device; where the program chooses, the CPU it is, and it says why."""
    path = make(repo, tmp_path / "odd", size)
    for side in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(repo / "tests/golden/arch/qwen3_moe" / side, path)
    for command in (["run", path, PROMPT, "--raw"], ["info", path], ["plan", path]):
        done = run(*command, "--device", "soft", check=False)
        assert done.returncode == 1 and done.stderr == f"sluice: {path}: {words}\n" and done.stdout == ""
    stand_in = str(build / "libcuda_standin.so")
    env = {**os.environ, "SLUICE_CUDA_LIBRARY": stand_in, "SLUICE_NVRTC_LIBRARY": stand_in}
    on_cpu = run("run", path, PROMPT, "--raw", "-n", 3)
    done = run("run", path, PROMPT, "--raw", "-n", 3, "--device", "auto", "--verbose", env=env)
    assert done.stdout == on_cpu.stdout
    assert any("device auto: cpu" in line and words in line for line in done.stderr.splitlines()), done.stderr
