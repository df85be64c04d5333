#!/usr/bin/env python3
"""Measures llama.cpp against R, the float32 model on SmolLM2's dequantised weights, and records R for `sluice eval --reference`.

Teacher-forced on the first 4096 tokens of a text in ONE window of 4096 (the model's context is 8192); ids as the model's own tokenizer gives them,
without BOS (the model adds none), control tokens not parsed. Row p is the distribution after tokens 0..p:
  perplexity   over the 4095 rows that have a next token
  KL, top-1    over all rows; KL(R || other) in nats, its mean; top-1: share of rows where argmax is R's

Writes:
  --out FILE     R's full log-probabilities (slref.py has the format; 800 MB, a cache, not checked in)
  --small FILE   R's most probable tokens at the first positions (checked in: enough for a test without torch)
  --digest FILE  the numbers, and hashes of what they were made from (checked in)

Needs torch, transformers, llama_cpp, tokenizers. About 4 minutes on two cores.
"""

import argparse
import hashlib
import json
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from eval import slref  # noqa: E402
from eval.check_split import dense_model  # noqa: E402
from lib import smollm2, tokenizers_io  # noqa: E402

WINDOW, CHUNK = 4096, 512
SMALL_POSITIONS, SMALL_K = 1024, 24


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def tokenize(model_path, text):
    """The first WINDOW ids. The tokenizer is rebuilt from the GGUF file; llama.cpp must agree."""
    from llama_cpp import Llama

    t = Tokenizer.from_str(json.dumps(tokenizers_io.tokenizer_json(gguf.GGUFReader(model_path))))
    ids = t.encode(text[: WINDOW * 8]).ids[:WINDOW]
    vocab_only = Llama(str(model_path), vocab_only=True, verbose=False)
    if vocab_only.tokenize(text[: WINDOW * 8].encode(), add_bos=False, special=False)[:WINDOW] != ids:
        raise SystemExit("llama.cpp and tokenizers give different ids")
    return ids


def log_softmax(logits):
    x = logits.astype(np.float64)
    x -= x.max(-1, keepdims=True)
    return (x - np.log(np.exp(x).sum(-1, keepdims=True))).astype(np.float32)


def reference_rows(model_path, ids):
    """Yields R's log-probabilities, CHUNK rows at a time."""
    model, cache = dense_model(model_path), None
    with torch.no_grad():
        for start in range(0, len(ids), CHUNK):
            out = model(torch.tensor([ids[start : start + CHUNK]]), cache=cache, use_cache=True)
            cache = out.cache
            yield log_softmax(out.logits[0].numpy())


def llama_cpp_rows(model_path, ids):
    """Yields llama.cpp's, as it comes: f16 KV cache, its own batches."""
    from llama_cpp import Llama

    llama = Llama(str(model_path), n_ctx=WINDOW, n_batch=CHUNK, n_threads=2, logits_all=True, verbose=False)
    for start in range(0, len(ids), CHUNK):
        llama.eval(ids[start : start + CHUNK])
        yield log_softmax(llama.scores[start : start + CHUNK])


class Tally:
    """Sums over rows, chunk by chunk."""

    def __init__(self, ids, positions):
        self.ids, self.positions, self.row = ids, positions, 0
        self.nll, self.kl, self.kl_top, self.same = [], [], [], []

    def add(self, r, other):
        n = min(len(r), self.positions - self.row)
        if n <= 0:
            return
        r, other = r[:n], other[:n]
        targets = self.ids[self.row + 1 : min(self.row + n + 1, self.positions)]
        self.nll += (-other[np.arange(len(targets)), targets]).tolist()
        self.kl += slref.kl(r, other).tolist()
        self.kl_top += slref.kl_top(*slref.top(r, SMALL_K), other).tolist()
        self.same += (r.argmax(-1) == other.argmax(-1)).tolist()
        self.row += n

    def numbers(self):
        return {
            "perplexity": float(np.exp(np.mean(self.nll))),
            "kl_mean": float(np.mean(self.kl)),
            "kl_top_mean": float(np.mean(self.kl_top)),
            "kl_p99": float(np.quantile(self.kl, 0.99)),
            "top1_agreement": float(np.mean(self.same)),
        }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, default=ROOT.parent / "shared/data/text/wikitext2-test.txt")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--out", type=Path, default=ROOT / "build/reference/smollm2.slref")
    parser.add_argument("--small", type=Path, default=ROOT / "tests/golden/smollm2_eval.slref")
    parser.add_argument("--digest", type=Path, default=ROOT / "tests/golden/smollm2_eval.json")
    args = parser.parse_args()
    model_path = args.model or smollm2.find()
    torch.set_num_threads(2)
    ids = tokenize(model_path, args.text.read_text())

    first, tally, small = Tally(ids, SMALL_POSITIONS), Tally(ids, WINDOW), []
    own_first, own = Tally(ids, SMALL_POSITIONS), Tally(ids, WINDOW)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    partial = args.out.with_name(args.out.name + ".partial")
    out, vocab = None, 0
    for r, other in zip(reference_rows(model_path, ids), llama_cpp_rows(model_path, ids)):
        if out is None:
            vocab = r.shape[1]
            out = slref.begin(partial, ids, vocab, vocab)
        out.write(r.tobytes())
        if tally.row < SMALL_POSITIONS:
            small.append(slref.top(r, SMALL_K))
        for t in (first, tally):
            t.add(r, other)
        for t in (own_first, own):
            t.add(r, r)
        print(f"{tally.row} rows: {tally.numbers()}", flush=True)
    out.close()
    partial.rename(args.out)
    top_ids, top_logprobs = (np.concatenate(x)[:SMALL_POSITIONS] for x in zip(*small))
    slref.write_top(args.small, ids[:SMALL_POSITIONS], vocab, top_ids, top_logprobs)

    import llama_cpp

    def section(own, other):
        return {"positions": own.positions, "R": {"perplexity": own.numbers()["perplexity"]}, "llama_cpp": other.numbers()}

    digest = {
        "model": model_path.name,
        "model_sha256": sha256(model_path.read_bytes()),
        "text": args.text.name,
        "text_sha256": sha256(args.text.read_bytes()),
        "ids_sha256": sha256(np.asarray(ids, "<i4").tobytes()),
        "window": WINDOW,
        "llama_cpp_python": llama_cpp.__version__,
        "all": section(own, tally),
        "first": {"file": args.small.name, "k": SMALL_K, **section(own_first, first)},
    }
    args.digest.write_text(json.dumps(digest, indent=2) + "\n")
    print(json.dumps(digest, indent=2))


if __name__ == "__main__":
    main()
