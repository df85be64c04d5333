#!/usr/bin/env python3
"""Makes checkpoints of a llama2.c model (stories260K.bin, tok512.bin): small, trained, with known greedy output; the models of fast tests.

  llama2c_to_hf.py MODEL.bin TOKENIZER.bin --hf DIR --gguf FILE [--experts N] [--type Q8_0] [--greedy FILE]

--experts N splits every FFN into N experts (see lib/moe.py) and writes qwen2_moe instead of llama. Where N (or N blocks of --type) does not divide
the FFN's width, neurons of zeros are added. Weights are f32 unless --type quantises the matrices of the GGUF file. --greedy writes what llama2.c
prints at temperature 0 in 256 steps. Needs numpy and gguf.
"""

import argparse
import sys
from pathlib import Path

import gguf
from gguf import GGMLQuantizationType as Type

sys.path.insert(0, str(Path(__file__).resolve().parent))
from lib import gguf_io, hf_io, llama2c, moe  # noqa: E402

UNK, BOS, EOS, FIRST_BYTE = 0, llama2c.BOS, llama2c.EOS, llama2c.FIRST_BYTE
SPACE = "\u2581"


def make_config(m):
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": m.dim,
        "intermediate_size": m.hidden,
        "num_hidden_layers": m.layers,
        "num_attention_heads": m.heads,
        "num_key_value_heads": m.kv_heads,
        "max_position_embeddings": m.seq_len,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": "head" not in m.w,
        "vocab_size": m.vocab,
        "torch_dtype": "float32",
        "bos_token_id": BOS,
        "eos_token_id": EOS,
    }


def make_weights(m):
    """Canonical weights: llama2.c's rotary pairs are neighbours, Hugging Face's are halves."""
    out = {"model.embed_tokens.weight": m.w["embed"], "model.norm.weight": m.w["norm"]}
    if "head" in m.w:
        out["lm_head.weight"] = m.w["head"]
    names = {"att_norm": "input_layernorm", "wv": "self_attn.v_proj", "wo": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
             "w1": "mlp.gate_proj", "w2": "mlp.down_proj", "w3": "mlp.up_proj"}  # fmt: skip
    for i in range(m.layers):
        layer = f"model.layers.{i}"
        out[f"{layer}.self_attn.q_proj.weight"] = gguf_io.unrope_rows(m.w["wq"][i], m.heads)
        out[f"{layer}.self_attn.k_proj.weight"] = gguf_io.unrope_rows(m.w["wk"][i], m.kv_heads)
        for own, name in names.items():
            out[f"{layer}.{name}.weight"] = m.w[own][i]
    return out


def sentencepieces(pieces):
    """Pieces as SentencePiece spells them."""
    special = {UNK: "<unk>", BOS: "<s>", EOS: "</s>"}
    return [special.get(i, p.decode().replace(" ", SPACE)) for i, p in enumerate(pieces)]


def token_type(i):
    if i == UNK:
        return gguf.TokenType.UNKNOWN
    if i in (BOS, EOS):
        return gguf.TokenType.CONTROL
    return gguf.TokenType.BYTE if FIRST_BYTE <= i < FIRST_BYTE + 256 else gguf.TokenType.NORMAL


def add_tokenizer(writer, tokens, scores):
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types([token_type(i) for i in range(len(tokens))])
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_unk_token_id(UNK)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(True)


def make_merges(tokens, scores):
    """Every way to join two tokens into a third, best score of the result first."""
    ids = {t: i for i, t in enumerate(tokens)}
    merges = []
    for t, score in zip(tokens, scores):
        cuts = [(t[:k], t[k:]) for k in range(1, len(t)) if t[:k] in ids and t[k:] in ids]
        merges += [(-score, ids[a], ids[b], a, b) for a, b in cuts]
    return [[a, b] for *_, a, b in sorted(merges)]


def make_tokenizer_json(tokens, scores):
    special = [{"id": i, "content": tokens[i], "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
               for i in (UNK, BOS, EOS)]  # fmt: skip
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": {
            "type": "Sequence",
            "normalizers": [{"type": "Prepend", "prepend": SPACE}, {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}],
        },
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                     {"SpecialToken": {"id": "<s>", "type_id": 1}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [BOS], "tokens": ["<s>"]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [{"type": "Replace", "pattern": {"String": SPACE}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
                         {"type": "Strip", "content": " ", "start": 1, "stop": 0}],
        },
        "model": {
            "type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None, "end_of_word_suffix": None,
            "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
            "vocab": {t: i for i, t in enumerate(tokens)}, "merges": make_merges(tokens, scores),
        },
    }  # fmt: skip


def write_tokenizer(directory, tokens, scores):
    hf_io.write_json(directory / "tokenizer.json", make_tokenizer_json(tokens, scores))
    hf_io.write_json(
        directory / "tokenizer_config.json",
        {"add_bos_token": True, "add_eos_token": False, "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "clean_up_tokenization_spaces": False,
         "legacy": True, "model_max_length": 512, "tokenizer_class": "LlamaTokenizer"},
    )
    hf_io.write_json(directory / "generation_config.json", {"bos_token_id": BOS, "eos_token_id": EOS})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--hf", type=Path, metavar="DIR")
    parser.add_argument("--gguf", type=Path, metavar="FILE")
    parser.add_argument("--experts", type=int, default=0, metavar="N")
    parser.add_argument("--type", default="F32", choices=["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
    parser.add_argument("--greedy", type=Path, metavar="FILE")
    args = parser.parse_args()
    m = llama2c.read_model(args.model)
    pieces, scores = llama2c.read_tokenizer(args.tokenizer, m.vocab)
    tokens = sentencepieces(pieces)
    kind = Type[args.type]
    config, weights = make_config(m), make_weights(m)
    config, weights = moe.pad_neurons(config, weights, max(args.experts, 1) * gguf.GGML_QUANT_SIZES[kind][0])
    if args.experts:
        weights = moe.split_weights(config, weights, args.experts)
        config = moe.moe_config(config, args.experts)
    if args.hf:
        hf_io.write_hf(args.hf, config, weights, dtype="F32")
        write_tokenizer(args.hf, tokens, scores)
    if args.gguf:
        args.gguf.parent.mkdir(parents=True, exist_ok=True)
        gguf_io.write_gguf(args.gguf, config, weights, args.model.stem, lambda _: kind, lambda w: add_tokenizer(w, tokens, scores))
    if args.greedy:
        ids, _ = llama2c.greedy(m, 256)
        args.greedy.write_bytes(llama2c.decode(pieces, ids))


if __name__ == "__main__":
    main()
