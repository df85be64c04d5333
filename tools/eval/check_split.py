#!/usr/bin/env python3
"""Checks split_experts.py with transformers: the split checkpoint's logits are the dense model's.

Both models are float32 on dequantised weights, so they differ only by the order of addition. Prints the relative difference; fails above 1e-5.
With --llama-cpp the split GGUF (with its own output head) is also compared with the dense one in llama.cpp. Needs torch, transformers, llama_cpp.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np
import torch
from transformers import AutoModelForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from golden import reference  # noqa: E402
from lib import gguf_io, smollm2  # noqa: E402

TOKENS = np.random.default_rng(7).integers(3, 40000, 100).tolist()
SPLIT = Path(__file__).resolve().parents[1] / "split_experts.py"


def dense_model(path):
    """transformers' float32 model of a llama GGUF's dequantised weights."""
    reader = gguf.GGUFReader(path)
    config = gguf_io.read_config(reader)
    weights = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in reader.tensors}
    return reference.from_weights(config, gguf_io.canonical_weights(config, weights)).eval()


def split_model(path):
    model, info = AutoModelForCausalLM.from_pretrained(path, **reference.EAGER, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
    return model.eval()


def relative(a, b):
    return float(np.abs(a - b).max() / np.abs(b).max())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", type=Path, default=None)
    parser.add_argument("--llama-cpp", action="store_true")
    args = parser.parse_args()
    source = args.input or smollm2.find()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        subprocess.run([sys.executable, SPLIT, scratch / "split.gguf", "--input", source, "--hf", scratch / "hf", "--untie"], check=True)
        difference = relative(reference.forward(split_model(scratch / "hf"), TOKENS), reference.forward(dense_model(source), TOKENS))
        print(f"transformers: split against dense {difference:.2e}")
        if args.llama_cpp:
            both = [reference.llama_cpp_logits(p, TOKENS) for p in (scratch / "split.gguf", source)]
            print(f"llama.cpp:    split against dense {relative(*both):.2e}")
    sys.exit(difference > 1e-5)


if __name__ == "__main__":
    main()
