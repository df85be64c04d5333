"""Families whose routers, attention or experts differ from Qwen's, as they are published: see lib/moe_layouts.py."""

from gguf import GGMLQuantizationType as Type

from golden import tiny_tokenizer
from golden.family import BASE, Family, mlp_shapes, random_weight
from lib import moe_layouts

TYPES = tuple(moe_layouts.GGUF_ARCH)
PLAIN = {"rope_theta": 10000.0, "rope_type": "default"}
SMALL = {**BASE, "torch_dtype": "bfloat16", "hidden_size": 32, "num_hidden_layers": 2, "tie_word_embeddings": False, "output_router_logits": False, "router_aux_loss_coef": 0.001}


def experts_of(config):
    return next(config[k] for k in ("num_experts", "n_routed_experts", "num_local_experts") if k in config)


def attention_shapes(config, p):
    hidden, heads, d = config["hidden_size"], config["num_attention_heads"], config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    rows = {"q": heads * d, "k": config["num_key_value_heads"] * d, "v": config["num_key_value_heads"] * d}
    shapes = {f"{p}.{n}_proj.weight": (r, hidden) for n, r in rows.items()} | {f"{p}.o_proj.weight": (hidden, heads * d)}
    if config.get("attention_bias"):
        shapes |= {f"{p}.{n}_proj.bias": (r,) for n, r in rows.items()}
        if config["model_type"] != "glm4_moe":
            shapes[f"{p}.o_proj.bias"] = (hidden,)
    if config["model_type"] in ("olmoe", "minimax_m2"):
        shapes |= {f"{p}.q_norm.weight": (rows["q"],), f"{p}.k_norm.weight": (rows["k"],)}
    if config.get("use_qk_norm") and config["model_type"] == "glm4_moe":
        shapes |= {f"{p}.q_norm.weight": (d,), f"{p}.k_norm.weight": (d,)}
    if config["model_type"] == "gpt_oss":
        shapes[f"{p}.sinks"] = (heads,)
    return shapes


def latent_shapes(config, p):
    hidden, heads, latent, rope = config["hidden_size"], config["num_attention_heads"], config["kv_lora_rank"], config["qk_rope_head_dim"]
    q, narrow = heads * (config["qk_nope_head_dim"] + rope), config["q_lora_rank"]
    shapes = {f"{p}.q_a_proj.weight": (narrow, hidden), f"{p}.q_a_layernorm.weight": (narrow,), f"{p}.q_b_proj.weight": (q, narrow)} if narrow else {
        f"{p}.q_proj.weight": (q, hidden)}
    return shapes | {f"{p}.kv_a_proj_with_mqa.weight": (latent + rope, hidden), f"{p}.kv_a_layernorm.weight": (latent,),
                     f"{p}.kv_b_proj.weight": (heads * (config["qk_nope_head_dim"] + config["v_head_dim"]), latent),
                     f"{p}.o_proj.weight": (hidden, heads * config["v_head_dim"])}


def layer_shapes(config, layer):
    hidden, kind, p = config["hidden_size"], config["model_type"], f"model.layers.{layer}"
    shapes = {f"{p}.input_layernorm.weight": (hidden,), f"{p}.post_attention_layernorm.weight": (hidden,)}
    shapes |= (latent_shapes if "kv_lora_rank" in config else attention_shapes)(config, f"{p}.self_attn")
    if layer < config.get("first_k_dense_replace", 0):
        return shapes | mlp_shapes(f"{p}.mlp", hidden, config["intermediate_size"])
    router, width = "router" if kind == "gpt_oss" else "gate", config.get("moe_intermediate_size", config["intermediate_size"])
    shapes[f"{p}.mlp.{router}.weight"] = (experts_of(config), hidden)
    if kind == "gpt_oss":
        shapes[f"{p}.mlp.router.bias"] = (experts_of(config),)
    if kind in ("glm4_moe", "deepseek_v3", "minimax_m2"):
        shapes[f"{p}.mlp.{'' if kind == 'minimax_m2' else 'gate.'}e_score_correction_bias"] = (experts_of(config),)
    for e in range(experts_of(config)):
        expert = mlp_shapes(f"{p}.mlp.experts.{e}", hidden, width)
        shapes |= expert
        if kind == "gpt_oss":
            shapes |= {n.replace(".weight", ".bias"): s[:1] for n, s in expert.items()}
    if config.get("n_shared_experts"):
        shapes |= mlp_shapes(f"{p}.mlp.shared_experts", hidden, config["n_shared_experts"] * width)
    return shapes


def weight(rng, name, shape):
    if name.endswith("e_score_correction_bias"):
        return rng.normal(0, 0.3, shape)
    if name.endswith("sinks"):
        return rng.normal(0, 2, shape)
    return random_weight(rng, name, shape)


def hf(path, config, weights):
    return moe_layouts.write_hf(path, config, weights)


def gguf_of(default, **by_part):
    def type_of(tensor):
        return next((t for part, t in by_part.items() if f"{part}." in tensor), default)

    def write(path, config, weights):
        path.mkdir(parents=True, exist_ok=True)
        return moe_layouts.write_gguf(path / "model.gguf", config, weights, path.name, type_of, tiny_tokenizer.add_to_gguf)

    return write


MIXTRAL = {**SMALL, "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "intermediate_size": 32, "num_local_experts": 6, "num_experts_per_tok": 2,
           "sliding_window": None, "rope_parameters": {**PLAIN, "rope_theta": 1e6}}
OLMOE = {**SMALL, "architectures": ["OlmoeForCausalLM"], "model_type": "olmoe", "num_key_value_heads": 4, "intermediate_size": 32, "num_experts": 8,
         "num_experts_per_tok": 3, "norm_topk_prob": False, "attention_bias": False, "clip_qkv": None, "rope_parameters": PLAIN}
GLM = {**SMALL, "architectures": ["Glm4MoeForCausalLM"], "model_type": "glm4_moe", "head_dim": 16, "intermediate_size": 64, "moe_intermediate_size": 32,
       "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 3, "routed_scaling_factor": 2.5, "n_group": 1, "topk_group": 1, "norm_topk_prob": True,
       "first_k_dense_replace": 1, "attention_bias": True, "use_qk_norm": True, "rope_parameters": {**PLAIN, "partial_rotary_factor": 0.5}}
DEEPSEEK = {**SMALL, "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "num_key_value_heads": 4, "intermediate_size": 64,
            "moe_intermediate_size": 32, "n_routed_experts": 8, "n_shared_experts": 2, "num_experts_per_tok": 3, "routed_scaling_factor": 2.5, "n_group": 4,
            "topk_group": 2, "norm_topk_prob": True, "first_k_dense_replace": 1, "attention_bias": False, "q_lora_rank": 32, "kv_lora_rank": 32,
            "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 24, "rope_interleave": True,
            "rope_parameters": {**PLAIN, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "beta_fast": 32, "beta_slow": 1,
                                "mscale": 1.0, "mscale_all_dim": 1.0}}
MINIMAX = {**SMALL, "architectures": ["MiniMaxM2ForCausalLM"], "model_type": "minimax_m2", "head_dim": 16, "intermediate_size": 32, "num_local_experts": 5,
           "num_experts_per_tok": 2, "use_qk_norm": True, "use_routing_bias": True, "scoring_func": "sigmoid", "rotary_dim": 8,
           "rope_parameters": {**PLAIN, "rope_theta": 5e6, "partial_rotary_factor": 0.5}}
GPT_OSS = {**SMALL, "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "head_dim": 16, "intermediate_size": 32, "num_local_experts": 6,
           "num_experts_per_tok": 3, "attention_bias": True, "sliding_window": 24, "layer_types": ["sliding_attention", "full_attention"],
           "swiglu_limit": 7.0, "rms_norm_eps": 1e-5,
           "rope_parameters": {"rope_theta": 150000.0, "rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 64, "beta_fast": 32.0,
                               "beta_slow": 1.0, "truncate": False}}

FAMILIES = [
    Family(MIXTRAL, [("mixtral", hf), ("mixtral-gguf", gguf_of(Type.Q8_0, ffn_down_exps=Type.Q5_0))], layer_shapes, weight),
    Family(OLMOE, [("olmoe", hf), ("olmoe-gguf", gguf_of(Type.Q8_0, ffn_up_exps=Type.Q4_0))], layer_shapes, weight),
    Family(GLM, [("glm4_moe", hf), ("glm4_moe-gguf", gguf_of(Type.Q8_0, ffn_gate_exps=Type.Q4_1))], layer_shapes, weight),
    Family(DEEPSEEK, [("deepseek_v3", hf), ("deepseek_v3-gguf", gguf_of(Type.F16, ffn_gate_exps=Type.Q8_0))], layer_shapes, weight),
    # Queries in one step, no groups, rotation of halves.
    Family({**DEEPSEEK, "q_lora_rank": None, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 0, "rope_interleave": False, "rope_parameters": PLAIN},
           [("deepseek_v3-plain", hf)], layer_shapes, weight),
    Family(MINIMAX, [("minimax_m2", hf), ("minimax_m2-gguf", gguf_of(Type.Q8_0))], layer_shapes, weight),
    Family(GPT_OSS, [("gpt_oss", moe_layouts.write_gpt_oss), ("gpt_oss-gguf", gguf_of(Type.Q8_0, ffn_gate_exps=Type.MXFP4, ffn_up_exps=Type.MXFP4, ffn_down_exps=Type.MXFP4))],
           layer_shapes, weight, llama_cpp=False),  # which rounds yarn's dimensions to whole ones; with "truncate": True both agree to 2e-6
]
