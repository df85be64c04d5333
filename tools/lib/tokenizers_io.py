"""tokenizer.json of a GGUF file's byte-level BPE vocabulary."""

from pathlib import Path

from . import gguf_io, hf_io

# tokenizer.ggml.pre -> pre_tokenizer, as the models' makers publish it.
PRE_TOKENIZERS = {
    "smollm": {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Digits", "individual_digits": True},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        ],
    },
}
CONTROL = 3  # token type


def tokenizer_json(reader):
    model, pre = gguf_io.field(reader, "tokenizer.ggml.model"), gguf_io.field(reader, "tokenizer.ggml.pre")
    if model != "gpt2" or pre not in PRE_TOKENIZERS:
        raise SystemExit(f"tokenizer {model}/{pre}: no tokenizer.json is known for it")
    tokens, types = gguf_io.field(reader, "tokenizer.ggml.tokens"), gguf_io.field(reader, "tokenizer.ggml.token_type")
    control = [
        {"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        for i, (t, kind) in enumerate(zip(tokens, types))
        if kind == CONTROL
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": control,
        "normalizer": None,
        "pre_tokenizer": PRE_TOKENIZERS[pre],
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
            "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": {t: i for i, t in enumerate(tokens)}, "merges": gguf_io.field(reader, "tokenizer.ggml.merges"),
        },
    }  # fmt: skip


def write_hf_from_gguf(directory, reader):
    directory = Path(directory)
    tokens = gguf_io.field(reader, "tokenizer.ggml.tokens")
    bos, eos = (gguf_io.field(reader, f"tokenizer.ggml.{k}_token_id") for k in ("bos", "eos"))
    hf_io.write_json(directory / "tokenizer.json", tokenizer_json(reader))
    hf_io.write_json(
        directory / "tokenizer_config.json",
        {"add_prefix_space": False, "bos_token": tokens[bos], "eos_token": tokens[eos], "chat_template": gguf_io.field(reader, "tokenizer.chat_template"),
         "clean_up_tokenization_spaces": False, "tokenizer_class": "GPT2Tokenizer"},
    )
    hf_io.write_json(directory / "generation_config.json", {"bos_token_id": bos, "eos_token_id": eos})
