"""The references: Hugging Face transformers in float32 with eager attention, and llama.cpp."""

import json
from dataclasses import dataclass

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.utils import logging

from lib import hf_io, moe_layouts

logging.disable_progress_bar()
EAGER = {"dtype": torch.float32, "attn_implementation": "eager", "experts_implementation": "eager"}


@dataclass
class Result:
    tokens: list
    logits: np.ndarray  # [rows][vocab]
    router_margin: float  # inf without routers
    greedy_margin: float


def load(path, config, held):
    """transformers' model of the checkpoint at path, which holds the canonical weights `held`.

    A plain Hugging Face directory is opened by transformers itself, so that names and config are checked too; of a GGUF or MLX file only the
    dequantised weights are used."""
    quantised = (path / "config.json").exists() and "quantization_config" in json.loads((path / "config.json").read_text())
    if (path / "config.json").exists() and not quantised:
        multimodal = "text_config" in json.loads((path / "config.json").read_text())
        auto = AutoModelForImageTextToText if multimodal else AutoModelForCausalLM
        model, info = auto.from_pretrained(path, **EAGER, output_loading_info=True)
        assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
    else:
        model = from_weights(config, held)
    check_weights(model, held)
    return model.eval()


def state_of(model_type, held):
    """As the modules of transformers hold canonical weights."""
    return moe_layouts.gpt_oss_state(held) if model_type == "gpt_oss" else hf_io.fused_experts(held)


def from_weights(config, held):
    options = {k: v for k, v in config.items() if k not in ("model_type", "torch_dtype", "dtype")}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(config["model_type"], **options), **EAGER)
    state = {n: torch.from_numpy(np.array(w)) for n, w in state_of(config["model_type"], held).items()}
    if config["tie_word_embeddings"]:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, strict=True)
    return model


def check_weights(model, held):
    """The model's parameters are exactly the weights that were written."""
    state = {name.replace("model.language_model.", "model."): w for name, w in model.state_dict().items()}
    for name, w in state_of(model.config.model_type, held).items():
        assert np.array_equal(state[name].numpy(), w), name


def forward(model, tokens):
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0].numpy()


class RouterMargin:
    """Watches every router: the least gap between the logits of ranks k and k + 1."""

    def __init__(self, model):
        self.least = np.inf
        self.hooks = [m.register_forward_hook(self._see) for m in model.modules() if hasattr(m, "top_k") and hasattr(m, "num_experts")]

    def _see(self, module, args, output):
        keys = output[0].reshape(-1, module.num_experts)
        bias = getattr(module, "e_score_correction_bias", args[1] if len(args) > 1 else None)
        if bias is not None:
            keys = self._grouped(module, keys.sigmoid() + bias)
        if module.top_k < module.num_experts:
            self._gap(keys, module.top_k)

    def _gap(self, keys, k):
        ordered = keys.sort(-1, descending=True).values
        gaps = ordered[..., k - 1] - ordered[..., k]
        self.least = min(self.least, float(gaps[gaps.isfinite()].min()))

    def _grouped(self, module, keys):
        """Scores with those of groups that are not chosen from out of the way."""
        groups = getattr(module, "num_group", 1)
        if groups == 1 or groups == module.topk_group:
            return keys
        by_group = keys.reshape(len(keys), groups, -1)
        score = by_group.topk(2, -1).values.sum(-1)
        self._gap(score, module.topk_group)
        least = score.topk(module.topk_group, -1).values[:, -1:]
        return torch.where(score >= least, 0.0, -np.inf).repeat_interleave(by_group.shape[-1], -1) + keys

    def close(self):
        for h in self.hooks:
            h.remove()


def run(model, prompt, decode):
    """Prefill of the prompt, then `decode` greedy tokens, each fed alone through the KV cache."""
    margin, greedy_margin = RouterMargin(model), np.inf
    tokens = list(prompt)
    with torch.no_grad():
        out = model(torch.tensor([tokens]), use_cache=True)
        rows = [out.logits[0].numpy()]
        for _ in range(decode):
            first, second = np.sort(rows[-1][-1])[-1:-3:-1]
            greedy_margin = min(greedy_margin, float(first - second))
            tokens.append(int(rows[-1][-1].argmax()))
            out = model(torch.tensor([tokens[-1:]]), cache=out.cache, use_cache=True)
            rows.append(out.logits[0].numpy())
    margin.close()
    return Result(tokens, np.concatenate(rows), margin.least, greedy_margin)


def llama_cpp_logits(path, tokens):
    from llama_cpp import Llama

    # type_k, type_v 0: a float32 cache, so that what differs is the arithmetic alone.
    llama = Llama(str(path), n_ctx=512, n_batch=512, n_threads=1, logits_all=True, type_k=0, type_v=0, verbose=False)
    llama.eval(tokens)
    logits = np.array(llama.scores[: len(tokens)], np.float32)
    llama.close()
    return logits
