"""The mixture of experts in models/: real weights, in the repository, against transformers and against itself under different budgets."""

import json

import numpy as np
import pytest
from test_real_weights import exact_logits

FEW = ["--ctx", 256, "--chunk", 16, "--quiet"]
PROMPT = "Write a story about two brothers who build a boat."


@pytest.fixture(scope="module")
def model(repo):
    return repo / "models/sluice-smol-moe"


@pytest.fixture(scope="module")
def least(run, model):
    return json.loads(run("info", model, "--json", *FEW).stdout)["least_memory"]


def test_weights_are_at_most_32_MB_and_most_of_them_experts(run, model):
    info = json.loads(run("info", model, "--json").stdout)
    assert info["file_bytes"] <= 32_000_000 and info["expert_bytes"] > info["file_bytes"] / 2


def test_logits_equal_transformers(build, golden, model):
    """Float32 on both sides, on the weights as the file has them."""
    expected = json.loads((golden / "sluice-smol-moe/golden.json").read_text())
    want = np.fromfile(golden / "sluice-smol-moe" / expected["logits"], "<f4").reshape(expected["rows"], expected["vocab"])
    got = exact_logits(build, model, expected["tokens"], expected["vocab"])[-expected["rows"] :]
    assert np.abs(want).max() > 5
    assert np.abs(got - want).max() < 1e-4


def test_logits_do_not_depend_on_the_number_of_slots(build, golden, model):
    expected = json.loads((golden / "sluice-smol-moe/golden.json").read_text())
    one, other = (exact_logits(build, model, expected["tokens"], expected["vocab"], max_slots=n) for n in (7, 288))
    assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("sampling", [["--temp", 0], ["--temp", 0.7, "--min-p", 0.1, "--repeat-penalty", 1.15, "--seed", 3]])
def test_text_is_the_same_under_the_least_and_any_other_budget(run, model, least, sampling):
    texts = {run("run", model, *FEW, *sampling, "-n", 60, "--memory", m, PROMPT).stdout for m in (least, least + (6 << 20), "1G")}
    assert len(texts) == 1 and len(texts.pop()) > 100


def test_least_budget_streams(run, model, least):
    said = json.loads(run("run", model, *FEW, "-n", 30, "--memory", least, "--json", PROMPT).stdout)["figures"]
    assert said["bytes_read"] > 60_000_000  # the model's experts several times over
    assert said["memory_peak"] <= least


@pytest.mark.parametrize("name, age, city", [("Clara Smith", 34, "Rome"), ("Hugo Tanaka", 71, "Lima")])
def test_answers_in_json(run, model, name, age, city):
    """What it was trained to answer exactly: damaged weights or a wrong template would not."""
    prompt = f"Extract name, age, city as JSON: {name} is {age} years old, lives in {city} and works as a baker."
    assert json.loads(run("run", model, *FEW, "--temp", 0, prompt).stdout) == {"name": name, "age": age, "city": city}


def test_tokenizer_is_the_reference_s_and_has_every_byte(run, model):
    tokenizers = pytest.importorskip("tokenizers")
    text = "Two brothers  build a boat in 1984!\n\tÀ la carte, ñandú, 雨, 🚤 and \x01\x7f control."
    reference = tokenizers.Tokenizer.from_file(str(model / "tokenizer.json"))
    ids = reference.encode(text, add_special_tokens=False).ids
    assert json.loads(run("tokenize", model, "--json", text).stdout)["ids"] == ids
    assert reference.decode(ids, skip_special_tokens=False) == text
