"""What the scripts that made the shipped model rest on, as far as it needs no GPU: the cut vocabulary and the packing of texts."""

import json

import numpy as np
import pytest
from train import texts, vocab


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


def test_texts_that_loop_are_found():
    rng = np.random.default_rng(0)
    assert texts.loops(np.tile(np.arange(10), 20)) and not texts.loops(rng.integers(0, 1000, 200))
    assert not texts.loops(np.zeros(63, int))  # too short to tell


def test_clean_takes_the_fixed_system_turn_off_the_front():
    docs = texts.documents([np.r_[7, 8, 9, 1, np.arange(20, 40)], np.r_[7, 8, 1, np.arange(20, 40)]], [4, 3], [0, 0])
    kept = texts.clean(docs, np.array([7, 8, 9]))
    assert [kept[d][0] for d in range(2)] == [1, 7] and kept.prompts.tolist() == [1, 3]
