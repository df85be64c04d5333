"""GGUF files from canonical weights (see hf_io), named and shaped as llama.cpp's conversion does.

What differs from Hugging Face: names; experts stacked; for `llama` the rows of q and k reordered within a head, since that architecture's
rotary embedding pairs neighbours there instead of halves; vectors and the router always f32.
"""

import re

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

from . import hf_io

ARCH = {"llama": "llama", "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe"}

TOP = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight", "lm_head.weight": "output.weight"}
LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.q_proj.bias": "attn_q.bias",
    "self_attn.k_proj.bias": "attn_k.bias",
    "self_attn.v_proj.bias": "attn_v.bias",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.shared_expert.gate_proj.weight": "ffn_gate_shexp.weight",
    "mlp.shared_expert.up_proj.weight": "ffn_up_shexp.weight",
    "mlp.shared_expert.down_proj.weight": "ffn_down_shexp.weight",
    "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
}
FILE_TYPE = {Type.F32: 0, Type.F16: 1, Type.Q4_0: 2, Type.Q4_1: 3, Type.Q8_0: 7, Type.Q5_0: 8, Type.Q5_1: 9, Type.BF16: 32}


def rope_rows(w, heads):
    """Rows of q or k from halves (i, i + d/2) to neighbours (2i, 2i + 1), within each head. Works on weights and on whole quantised rows."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def unrope_rows(w, heads):
    """The inverse of rope_rows."""
    return w.reshape(heads, w.shape[0] // heads // 2, 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def gguf_tensors(config, weights):
    """{GGUF name: float32 array} of canonical weights."""
    stacked, rest = hf_io.stack_experts(weights)
    out = {}
    for name, w in rest.items():
        if name in TOP:
            out[TOP[name]] = w
            continue
        layer, tail = re.match(r"model\.layers\.(\d+)\.(.*)", name).groups()
        if config["model_type"] == "llama" and tail == "self_attn.q_proj.weight":
            w = rope_rows(w, config["num_attention_heads"])
        if config["model_type"] == "llama" and tail == "self_attn.k_proj.weight":
            w = rope_rows(w, config["num_key_value_heads"])
        if tail == "mlp.shared_expert_gate.weight":
            w = w.reshape(-1)
        out[f"blk.{layer}.{LAYER[tail]}"] = w
    for (mlp, projection), w in stacked.items():
        out[f"blk.{mlp.split('.')[2]}.ffn_{projection}_exps.weight"] = w
    return out


def canonical_weights(config, tensors):
    """The inverse of gguf_tensors: {GGUF name: float32 array} -> canonical weights."""
    top = {v: k for k, v in TOP.items()}
    layer_names = {v: k for k, v in LAYER.items()}
    out = {}
    for name, w in tensors.items():
        if name in top:
            out[top[name]] = w
            continue
        layer, tail = re.match(r"blk\.(\d+)\.(.*)", name).groups()
        stacked = re.match(r"ffn_(gate|up|down)_exps\.weight", tail)
        if stacked:
            for e in range(w.shape[0]):
                out[f"model.layers.{layer}.mlp.experts.{e}.{stacked[1]}_proj.weight"] = w[e]
            continue
        if config["model_type"] == "llama" and tail == "attn_q.weight":
            w = unrope_rows(w, config["num_attention_heads"])
        if config["model_type"] == "llama" and tail == "attn_k.weight":
            w = unrope_rows(w, config["num_key_value_heads"])
        if tail == "ffn_gate_inp_shexp.weight":
            w = w.reshape(1, -1)
        out[f"model.layers.{layer}.{layer_names[tail]}"] = w
    return out


def head_dim(config):
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def rope_theta(config):
    return config["rope_parameters"]["rope_theta"] if "rope_parameters" in config else config["rope_theta"]


def add_metadata(writer, config, name, file_type):
    writer.add_type("model")
    writer.add_name(name)
    writer.add_file_type(file_type)
    writer.add_quantization_version(2)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_freq_base(rope_theta(config))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if config["model_type"] == "llama":
        writer.add_vocab_size(config["vocab_size"])
        writer.add_rope_dimension_count(head_dim(config))
    if config.get("head_dim"):
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    if "num_experts" in config:
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if "shared_expert_intermediate_size" in config:
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])


def field(reader, key, default=None):
    return reader.fields[key].contents() if key in reader.fields else default


def read_config(reader):
    """config.json of a llama GGUF."""
    arch = field(reader, "general.architecture")
    heads, hidden = field(reader, f"{arch}.attention.head_count"), field(reader, f"{arch}.embedding_length")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": arch,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": field(reader, f"{arch}.feed_forward_length"),
        "num_hidden_layers": field(reader, f"{arch}.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": field(reader, f"{arch}.attention.head_count_kv", heads),
        "max_position_embeddings": field(reader, f"{arch}.context_length"),
        "rms_norm_eps": round(field(reader, f"{arch}.attention.layer_norm_rms_epsilon"), 10),
        "rope_theta": field(reader, f"{arch}.rope.freq_base", 10000.0),
        "tie_word_embeddings": all(t.name != "output.weight" for t in reader.tensors),
        "vocab_size": len(field(reader, "tokenizer.ggml.tokens")),
        "bos_token_id": field(reader, "tokenizer.ggml.bos_token_id"),
        "eos_token_id": field(reader, "tokenizer.ggml.eos_token_id"),
    }


def add_bpe_tokenizer(writer, tokenizer, pre, bos, eos, template=None):
    """From a parsed byte-level BPE tokenizer.json."""
    vocab = dict(tokenizer["model"]["vocab"])
    special = set()
    for token in tokenizer["added_tokens"]:
        vocab[token["content"]] = token["id"]
        special.add(token["id"])
    tokens = [None] * len(vocab)
    for text, i in vocab.items():
        tokens[i] = text
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL if i in special else gguf.TokenType.NORMAL for i in range(len(tokens))])
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]])
    if bos is not None:
        writer.add_bos_token_id(bos)
    writer.add_eos_token_id(eos)
    writer.add_add_bos_token(False)
    if template:
        writer.add_chat_template(template)


def is_vector_like(name, w):
    """Tensors that the conversion keeps in f32 whatever the file's type."""
    return w.ndim == 1 or name.endswith("ffn_gate_inp.weight")


def write_gguf(path, config, weights, name, type_of, add_tokenizer):
    """type_of(GGUF tensor name) -> Type for matrices. Returns the canonical weights as the file stores them: dequantised."""
    tensors = gguf_tensors(config, weights)
    main_type = type_of("blk.0.attn_q.weight")
    writer = gguf.GGUFWriter(path, ARCH[config["model_type"]])
    add_metadata(writer, config, name, FILE_TYPE[main_type])
    add_tokenizer(writer)
    effective = {}
    for tensor, w in tensors.items():
        kind = Type.F32 if is_vector_like(tensor, w) else type_of(tensor)
        data = np.ascontiguousarray(w, np.float32) if kind == Type.F32 else gguf.quants.quantize(np.ascontiguousarray(w, np.float32), kind)
        effective[tensor] = gguf.quants.dequantize(data, kind) if kind != Type.F32 else data
        writer.add_tensor(tensor, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return canonical_weights(config, effective)
