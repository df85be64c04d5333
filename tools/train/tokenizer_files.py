"""The tokenizer's files of the shipped directory: the cut vocabulary, a ChatML template without a system turn of its own, the ids of the end."""

from pathlib import Path

import gguf

from lib import hf_io, smollm2, tokenizers_io

from .vocab import Cut

TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def write(directory, vocabulary):
    directory = Path(directory)
    tokenizer = Cut(tokenizers_io.tokenizer_json(gguf.GGUFReader(smollm2.find())), vocabulary).tokenizer()
    hf_io.write_json(directory / "tokenizer.json", tokenizer)
    hf_io.write_json(
        directory / "tokenizer_config.json",
        {"add_prefix_space": False, "bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>", "unk_token": "<|endoftext|>",
         "chat_template": TEMPLATE, "clean_up_tokenization_spaces": False, "model_max_length": 1024, "tokenizer_class": "GPT2Tokenizer"},
    )  # fmt: skip
    hf_io.write_json(directory / "generation_config.json", {"bos_token_id": 1, "eos_token_id": [2, 0], "pad_token_id": 2, "do_sample": True, "temperature": 0.7, "min_p": 0.1, "repetition_penalty": 1.2})
