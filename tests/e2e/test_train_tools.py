"""What the scripts that made the shipped model rest on, as far as it needs no GPU: the cut vocabulary and the packing of texts."""

import json

import numpy as np
import pytest
from train import everyday, prompts, texts, vocab

inputs = pytest.importorskip("train.inputs")  # needs gguf and tokenizers


@pytest.fixture(scope="module")
def source(smollm2):
    gguf = pytest.importorskip("gguf")
    from lib import tokenizers_io

    return tokenizers_io.tokenizer_json(gguf.GGUFReader(smollm2))


def test_first_merges_are_a_vocabulary_of_their_own(source, repo):
    """Ids of the large vocabulary, spelt in the small one, are what the small one's own BPE gives."""
    tokenizers = pytest.importorskip("tokenizers")
    cut = vocab.Cut(source, 7680)
    large, small = (tokenizers.Tokenizer.from_str(json.dumps(t)) for t in (source, cut.tokenizer()))
    text = (repo / "README.md").read_text()
    ids = np.array(large.encode(text).ids)
    respelt, offsets = vocab.respell(ids, np.array([0, 10, len(ids)]), *cut.spellings())
    assert respelt.tolist() == small.encode(text).ids and len(respelt) > len(ids)
    assert respelt[: offsets[1]].tolist() == small.encode(large.decode(ids[:10], skip_special_tokens=False)).ids
    assert cut.tokenizer() == json.loads((repo / "models/sluice-smol-moe/tokenizer.json").read_text())


def test_every_byte_has_a_token(source):
    assert set(vocab.byte_alphabet()) <= vocab.Cut(source, 7680).tokenizer()["model"]["vocab"].keys()


def numbered(lengths):
    """Document d: d * 100 + 1, d * 100 + 2, ..."""
    return texts.documents([np.arange(1, n + 1) + 100 * d for d, n in enumerate(lengths)], [1] * len(lengths), [0] * len(lengths))


def test_rows_begin_with_a_document_and_separate_the_next():
    rows = texts.pack(numbered([5, 3, 9, 4]), np.array([0, 1, 2, 3]), 8, np.random.default_rng(0))
    assert rows.tolist() == [[1, 2, 3, 4, 5, 0, 101, 102], [201, 202, 203, 204, 205, 206, 207, 208]]


def test_texts_end_where_they_begin_to_loop():
    rng = np.random.default_rng(0)
    said, looping = rng.integers(0, 1000, 100), np.tile(np.arange(2000, 2010), 20)
    assert 100 <= texts.before_loop(np.r_[said, looping]) <= 112
    assert texts.before_loop(rng.integers(0, 1000, 200)) == 200
    assert texts.before_loop(np.zeros(63, int)) == 63  # too short to tell
    docs = texts.documents([np.r_[7, 8, said, looping], np.r_[7, looping], said], [2, 1, 1], [0, 0, 0])
    kept = texts.clean(docs)
    assert len(kept) == 2 and kept[1].tolist() == said.tolist()
    assert 102 <= len(kept[0]) <= 114 and kept[0][:102].tolist() == docs[0][:102].tolist()


def test_clean_leaves_out_texts_with_a_judged_prompt():
    docs = numbered([20, 20, 20])
    kept = texts.clean(docs, unwanted=[[105, 106, 107]])
    assert [kept[d][0] for d in range(len(kept))] == [1, 201]


def test_prompts_end_with_the_answer_s_head():
    docs = texts.documents([[5, 1, 2, 9, 1, 2, 3], [5, 6, 7], [4, 4, 4, 4, 4, 1, 2], [1]], [0] * 4, [0] * 4)
    ids, lengths = texts.until(docs, [1, 2], 5)
    assert ids.tolist() == [[5, 1, 2, 0, 0]] and lengths.tolist() == [3]


def test_no_prompt_is_like_a_judged_one(repo):
    judged = (repo / "tools/train/sample_prompts.txt").read_text().splitlines()
    assert all(everyday.is_like(p, judged) for p in judged)
    assert everyday.is_like("Tell me about the difference between a toad and a frog.", judged)
    assert not everyday.is_like("What is the difference between a frog and a newt?", judged)
    maker = prompts.Prompts({"noun": ["bee"], "verb": ["pack"], "adj": ["old"], "named": [("Oslo", "place", "a city")]}, [" a beginning"], 1)
    drawn = inputs.distinct(maker, 300, judged)
    requests = [text.split("<|im_start|>user\n")[1].split("<|im_end|>")[0] for kind, text, *_ in drawn if kind in inputs.ASKED]
    assert len(requests) > 50 and not any(everyday.is_like(r, judged) for r in requests)


def test_the_same_prompt_is_always_held_out_or_never():
    held = {inputs.held_out(n, "everyday", "Why is water wet?") for n in range(300)}
    assert len(held) == 1
    assert {inputs.held_out(n, "chat", "") for n in range(1000)} == {False, True}


def test_clean_takes_the_fixed_system_turn_off_the_front():
    docs = texts.documents([np.r_[7, 8, 9, 1, np.arange(20, 40)], np.r_[7, 8, 1, np.arange(20, 40)]], [4, 3], [0, 0])
    kept = texts.clean(docs, np.array([7, 8, 9]))
    assert [kept[d][0] for d in range(2)] == [1, 7] and kept.prompts.tolist() == [1, 3]
