"""Checkpoints whose routing repeats itself: what a benchmark of caches needs and random weights do not give."""

import json

import pytest

LAYERS, EXPERTS = 3, 64


def hit_rate(run, model, share):
    slots = int(LAYERS * EXPERTS * share)
    done = run("bench", model, "--ids", f"{model}.ids.json", "--prefill", 0, "--warmup", 256, "--tokens", 64, "--repeat", 1, "--no-replay", "--max-slots", slots, "--prefetch", "off",
               "--ctx", 512, "--json")
    return json.loads(done.stdout)["decode"]["hit_rate"]


@pytest.fixture(scope="module")
def skewed(run, tmp_path_factory):
    """One checkpoint per profile and container; uniform gets the ids of local."""
    there = tmp_path_factory.mktemp("skew")

    def make(name, skew, *options):
        path = there / name
        run("synth", "small-qwen3-moe", path, "--layers", LAYERS, "--experts", EXPERTS, "--skew", skew, *options)
        return path

    models = {"flat": make("flat.gguf", "flat"), "local": make("local.gguf", "local"), "mlx": make("mlx", "local", "--format", "mlx4")}
    models["uniform"] = make("uniform.gguf", "uniform")
    assert not (there / "uniform.gguf.ids.json").exists()
    (there / "uniform.gguf.ids.json").write_bytes((there / "local.gguf.ids.json").read_bytes())
    return models


def test_skewed_routing_hits_more_than_the_share_in_memory(run, skewed):
    share = 0.22
    rates = {name: hit_rate(run, model, share) for name, model in skewed.items()}
    print(rates)
    assert rates["local"] > rates["flat"] + 0.1
    assert rates["flat"] > rates["uniform"] + 0.1
    assert abs(rates["mlx"] - rates["local"]) < 0.1


def test_ids_stay_in_their_range_and_are_the_same_again(run, skewed, tmp_path):
    ids = json.loads((skewed["local"].parent / "local.gguf.ids.json").read_text())
    assert len(ids) == 4096 and min(ids) >= 256 and max(ids) < 512
    again = tmp_path / "again.gguf"
    run("synth", "small-qwen3-moe", again, "--layers", LAYERS, "--experts", EXPERTS, "--skew", "local")
    assert again.read_bytes() == skewed["local"].read_bytes()
    assert json.loads((tmp_path / "again.gguf.ids.json").read_text()) == ids


def test_a_vocabulary_too_small_for_topics_is_refused(run, tmp_path):
    done = run("synth", "tiny-qwen3-moe", tmp_path / "x.gguf", "--skew", "flat", check=False)
    assert done.returncode == 2 and "vocabulary of 320" in done.stderr and "512" in done.stderr
    assert not (tmp_path / "x.gguf").exists()


def test_ids_of_another_model_are_not_overwritten(run, tmp_path):
    ids = tmp_path / "x.gguf.ids.json"
    ids.write_text("mine")
    done = run("synth", "small-qwen3-moe", tmp_path / "x.gguf", "--skew", "flat", check=False)
    assert done.returncode == 2 and str(ids) in done.stderr and "--force" in done.stderr
    assert ids.read_text() == "mine"
