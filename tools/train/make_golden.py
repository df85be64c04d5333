#!/usr/bin/env python3
"""Logits that transformers gives on the shipped model's weights in float32, for tests/e2e/test_shipped_model.py: `python -m train.make_golden` in tools/."""

import json
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from . import transformers_model

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "models/sluice-smol-moe"
GOLDEN = ROOT / "tests/golden/sluice-smol-moe"
TEXT = "<|im_start|>user\nName three colours of the rainbow and say something about each.<|im_end|>\n<|im_start|>assistant\n"
ROWS = 3  # the last positions


def main():
    torch.set_num_threads(1)
    ids = Tokenizer.from_file(str(MODEL / "tokenizer.json")).encode(TEXT).ids
    with torch.no_grad():
        logits = transformers_model.load(MODEL)(torch.tensor([ids])).logits[0].numpy()
    GOLDEN.mkdir(parents=True, exist_ok=True)
    logits[-ROWS:].astype("<f4").tofile(GOLDEN / "logits.f32")
    (GOLDEN / "golden.json").write_text(json.dumps({"text": TEXT, "tokens": ids, "rows": ROWS, "vocab": logits.shape[1], "logits": "logits.f32"}) + "\n")
    print(f"{len(ids)} tokens, likeliest next {np.argsort(-logits[-1])[:5]}, logits up to {np.abs(logits).max():.2f}")


if __name__ == "__main__":
    main()
