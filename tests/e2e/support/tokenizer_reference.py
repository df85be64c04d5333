"""Reference tokenizers (Hugging Face `tokenizers`) for the vocabularies of the tests, and random text."""

import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
DEEPSEEK_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"

# tokenizer.ggml.pre -> expressions applied one after the other
PRE = {
    "gpt-2": [GPT2],
    "smollm": [r"\p{N}", GPT2],
    "deepseek-coder": [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DEEPSEEK_CJK, r"\p{N}"],
}

# User-defined by type, but no text may end a generation.
TURN_ENDS = ("<|EOT|>",)

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def byte_alphabet():
    """GPT-2's character for each byte."""
    plain = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]
    others = [b for b in range(256) if b not in plain]
    return [chr(b) if b in plain else chr(0x100 + others.index(b)) for b in range(256)]


def add_tokens(tokenizer, tokens, types, rstrip=()):
    """Control, unknown and user-defined tokens as GGUF marks them, matched in the raw text."""
    for text, kind in zip(tokens, types):
        if kind in (CONTROL, UNKNOWN, USER):
            special = kind != USER or text in TURN_ENDS
            token = AddedToken(text, normalized=False, special=special, rstrip=text in rstrip)
            (tokenizer.add_special_tokens if special else tokenizer.add_tokens)([token])


def byte_level(tokens, merges, types, pre):
    vocab = {text: i for i, text in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[tuple(m.split(" ")) for m in merges]))
    splits = [pre_tokenizers.Split(Regex(p), "isolated") for p in PRE[pre]]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        splits + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    add_tokens(tokenizer, tokens, types)
    return tokenizer


def sentencepiece(tokens, scores, types, rstrip=()):
    """Every cut of a piece into two pieces is a merge, better scores first; what the converters of transformers do."""
    vocab = {text: i for i, text in enumerate(tokens)}
    usable = {t: i for t, i in vocab.items() if types[i] not in (CONTROL, UNKNOWN, BYTE)}
    merges = []
    for text, i in usable.items():
        for cut in range(1, len(text)):
            if text[:cut] in usable and text[cut:] in usable:
                merges.append((-scores[i], i, usable[text[:cut]], usable[text[cut:]], text[:cut], text[cut:]))
    merges.sort()
    model = models.BPE(vocab=vocab, merges=[m[4:] for m in merges], unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    add_tokens(tokenizer, tokens, types, rstrip)
    return tokenizer


def from_gguf(path):
    import gguf

    fields = gguf.GGUFReader(path).fields

    def get(key):
        field = fields.get("tokenizer.ggml." + key)
        return field.contents() if field else None

    tokens, types = get("tokens"), get("token_type")
    if get("model") == "gpt2":
        return byte_level(tokens, get("merges"), types, get("pre"))
    rstrip = ()
    name = fields["general.name"].contents().lower()
    if "phi3" in name or "phi-3" in name:
        rstrip = [t for t, k in zip(tokens, types) if k in (CONTROL, UNKNOWN, USER)
                  and t not in ("<unk>", "<s>", "<|endoftext|>")]
    return sentencepiece(tokens, get("scores"), types, rstrip)


# ---- random text -------------------------------------------------------------------------------------------------------

WORDS = ("the of and to in is that it was for on are with they be at one have this from or had by not word but what some we can "
         "out other were all there when up use your how said an each she which do their time if will way about many then them "
         "don't we'll I'VE you're it's HTTPServer camelCase snake_case naïve café Ünïcödé Straße ſharp İstanbul").split()
SCRIPTS = [(0x20, 0x7e), (0xa0, 0x24f), (0x370, 0x3ff), (0x400, 0x52f), (0x590, 0x6ff), (0x900, 0x97f), (0xe00, 0xe7f),
           (0x1100, 0x11ff), (0x1e00, 0x1fff), (0x2000, 0x206f), (0x20a0, 0x20bf), (0x2190, 0x23ff), (0x2580, 0x27bf),
           (0x3000, 0x30ff), (0x4e00, 0x9fff), (0xac00, 0xd7a3), (0xf900, 0xfaff), (0xfb00, 0xfbff), (0xff00, 0xffef),
           (0x1d400, 0x1d7ff), (0x1f300, 0x1faff), (0x20000, 0x2a6df), (0x300, 0x36f)]
SPACES = [" ", "  ", "   ", "\t", "\n", "\r\n", "\n\n", "\r", " \n ", "\u00a0", "\u3000", "\u2003", "\u2028", "\u0085", "\u180e",
          "\u200b", "\v", "\f"]
EMOJI = ["👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪", "❤️‍🔥", "1️⃣", "😀", "🧑🏿‍🚀", "\u200d", "\ufe0f"]
MARKS = ["\u0301", "\u0323", "\u0308", "\u0327", "\u1ab0", "\u3099", "\u0315", "\u05b0", "\u0f71", "\u0345"]


def random_char(rng):
    low, high = rng.choice(SCRIPTS)
    return chr(rng.randint(low, high))


def any_char(rng):
    while True:
        code = rng.randint(0, 0x10ffff)
        if not 0xd800 <= code < 0xe000:
            return chr(code)


def random_part(rng, specials):
    kind = rng.randrange(13)
    if kind == 0:
        return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 6)))
    if kind == 1:
        return rng.choice(WORDS)
    if kind == 2:
        return "".join(random_char(rng) for _ in range(rng.randint(1, 8)))
    if kind == 3:
        low, high = rng.choice(SCRIPTS)
        return "".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 12)))
    if kind == 4:
        return "".join(rng.choice(SPACES) for _ in range(rng.randint(1, 4)))
    if kind == 5:
        return "".join(rng.choice(EMOJI) for _ in range(rng.randint(1, 3)))
    if kind == 6:
        return rng.choice("aeouAEOUnscÅか가ᄀक") + "".join(rng.choice(MARKS) for _ in range(rng.randint(1, 4)))
    if kind == 7:
        return str(rng.randint(0, 10 ** rng.randint(1, 14))) + rng.choice(["", ".5", "e10", "½", "²", "٣٤", "Ⅷ"])
    if kind == 8:
        return "".join(rng.choice("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") for _ in range(rng.randint(1, 6)))
    if kind == 9:
        return rng.choice(" \n\ta=-*.가한") * rng.randint(1, 40)
    if kind == 10:
        return "".join(any_char(rng) for _ in range(rng.randint(1, 4)))
    if kind == 11:
        return rng.choice(specials) if specials else ""
    return "".join(chr(rng.randint(0, 0x2ff)) for _ in range(rng.randint(1, 6)))


def random_text(rng, specials):
    return "".join(random_part(rng, specials) for _ in range(rng.randint(0, 8)))


def random_texts(seed, count, specials):
    rng = random.Random(seed)
    return [random_text(rng, specials) for _ in range(count)]


def long_texts(seed, size):
    """Texts of about `size` bytes without a space."""
    rng = random.Random(seed)
    letters = "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(size))
    chinese = "".join(chr(rng.randint(0x4e00, 0x9fff)) for _ in range(size // 3))
    return ["a" * size, letters, chinese, "=" * (size // 5), "ab" * (size // 10)]


def random_bytes(seed, count):
    """Texts that are mostly no UTF-8."""
    rng = random.Random(seed)
    out = []
    for _ in range(count):
        text = random_text(rng, []).encode()
        broken = bytearray(text)
        for _ in range(rng.randint(1, 4)):
            at = rng.randint(0, len(broken))
            if rng.random() < 0.5:
                broken[at:at] = bytes(rng.randint(0x80, 0xff) for _ in range(rng.randint(1, 3)))
            elif broken:
                del broken[min(at, len(broken) - 1)]
        out.append(bytes(broken))
    return out
