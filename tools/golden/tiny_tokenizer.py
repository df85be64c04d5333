"""A byte-level BPE tokenizer of 272 entries with a ChatML template: 256 bytes, 13 merges, 3 control tokens, in Qwen's arrangement."""

import json
from pathlib import Path

from lib import gguf_io, hf_io

VOCAB = 272
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
END, IM_START, IM_END = range(VOCAB - len(CONTROL), VOCAB)
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEXT = [
    "A sluice is a gate in a stream: the water that is wanted now goes through, and the rest waits behind it.",
    "The router names the experts, the experts are read, and the answer is written one token after another.",
    "user and assistant take turns; the system speaks first.",
]
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def build():
    """-> parsed tokenizer.json. Training is deterministic."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(SPLIT), "isolated", invert=False)
    t.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    t.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=VOCAB - len(CONTROL), initial_alphabet=alphabet, show_progress=False))
    t.add_special_tokens([AddedToken(c, special=True, normalized=False) for c in CONTROL])
    assert t.get_vocab_size() == VOCAB and t.token_to_id("<|im_end|>") == IM_END
    return json.loads(t.to_str())


def write_hf(directory):
    directory = Path(directory)
    hf_io.write_json(directory / "tokenizer.json", build())
    added = {str(END + i): {"content": c, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
             for i, c in enumerate(CONTROL)}
    hf_io.write_json(
        directory / "tokenizer_config.json",
        {"add_bos_token": False, "add_prefix_space": False, "added_tokens_decoder": added, "bos_token": None, "chat_template": TEMPLATE,
         "clean_up_tokenization_spaces": False, "eos_token": "<|im_end|>", "model_max_length": 512, "pad_token": "<|endoftext|>",
         "tokenizer_class": "Qwen2Tokenizer", "unk_token": None},
    )
    hf_io.write_json(directory / "generation_config.json", {"bos_token_id": END, "eos_token_id": [IM_END, END], "pad_token_id": END})


def add_to_gguf(writer):
    gguf_io.add_bpe_tokenizer(writer, build(), "qwen2", END, IM_END, TEMPLATE)
