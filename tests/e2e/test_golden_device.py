"""Every golden checkpoint with the kernels on the software device, as a user runs it, beside the CPU's exact mode."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

REPO = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO / "tools/eval"))
import slref  # noqa: E402

ARCH = REPO / "tests/golden/arch"
CHECKPOINTS = sorted(p.parent.name for p in ARCH.glob("*/golden.json"))
TOKENS, VOCAB = 72, 272
# Rows evaluated at once, what a row's log probabilities may differ by, and the mean of KL. With half tiles two experts that are nearly
# equal may change places, which is seen in every row behind: most rows must be near. KV is half here and float in the exact mode.
FEW, MANY = {"chunk": 12, "row": 0.1, "near": 0.03, "kl": 5e-5}, {"chunk": TOKENS, "row": 1.0, "near": 0.05, "kl": 1e-3}
agreed = {12: [], TOKENS: []}  # shares of rows with the same likeliest token, by checkpoint


@pytest.fixture(scope="module", params=CHECKPOINTS)
def case(request, run, tmp_path_factory):
    """evaluate(name, *options, reference="exact") -> log probabilities [TOKENS][VOCAB] and the JSON document."""
    golden, folder = ARCH / request.param, tmp_path_factory.mktemp(request.param)
    about = json.loads((golden / "golden.json").read_text())
    nothing = np.zeros((TOKENS, 1))
    slref.write_top(folder / "tokens", about["tokens"][:TOKENS], VOCAB, nothing.astype("<u4"), nothing.astype("<f4"))

    def evaluate(name, *options, reference="exact", **more):
        command = ("eval", golden / about["model"], "--reference", folder / reference, "--record", folder / name, "--json", *options)
        done = run(*command, timeout=600, **more)
        return np.array(slref.read(folder / name)[3]), json.loads(done.stdout)

    evaluate.exact, _ = evaluate("exact", "--numeric", "exact", reference="tokens")
    return evaluate


def compare(case, limits):
    got, said = case("soft", "--device", "soft", "--chunk", limits["chunk"])
    rows = np.abs(got - case.exact).max(-1)
    agreed[limits["chunk"]].append(said["top1_agreement"])
    print(f"top-1 {said['top1_agreement']:.4f}, KL {said['kl_mean']:.1e}, worst row {rows.max():.1e}, median {np.median(rows):.1e}")
    assert said["figures"]["isa"].startswith("soft ")
    assert rows.max() < limits["row"] and np.median(rows) < limits["near"]
    assert said["kl_mean"] < limits["kl"] and said["top1_agreement"] >= 70 / TOKENS
    return got


def test_few_rows_give_the_cpus_answers_on_soft_and_on_metal(case, build):
    """In float; on the stand-in for Apple's library the same bits."""
    got = compare(case, FEW)
    env = {**os.environ, "SLUICE_METAL_LIBRARY": str(build / "libmetal_standin.so"), "SLUICE_STANDIN_KEPT": str(build / "cache/standin")}
    metal, said = case("metal", "--device", "metal", "--chunk", FEW["chunk"], env=env)
    assert said["figures"]["isa"].startswith("metal ")
    assert metal.tobytes() == got.tobytes()


def test_a_prompt_at_once_gives_the_cpus_answers(case):
    """Through the matrix units."""
    compare(case, MANY)


def test_of_all_rows_99_5_percent_have_the_same_likeliest_token():
    assert {"deepseek_v3", "gpt_oss", "qwen3_5_moe-odd", "qwen3_next-mtp"} <= set(CHECKPOINTS)
    for chunk, shares in agreed.items():
        if len(shares) < len(CHECKPOINTS):
            pytest.skip("not all checkpoints were run")
        print(f"chunk {chunk}: {np.mean(shares):.5f}")
        assert np.mean(shares) >= 0.995
