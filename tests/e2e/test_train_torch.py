"""The scripts that made the shipped model, where torch is installed: the writer against plain forward passes, the file against what training computed with."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from lib import affine  # noqa: E402
from train import export, moefy, nets, quantise, writer  # noqa: E402

DENSE = nets.Shape(97, 3, 192, 3, 1, 512)
SPARSE = DENSE.replaced(layers=2, experts=8, top_k=2, width=64, shared=128)


@pytest.fixture(scope="module")
def dense():
    return {k: v * (1 if k == "embed" else 3) for k, v in nets.random_teacher(DENSE).items()}


@pytest.fixture(scope="module")
def sparse(dense):
    rows = torch.randint(0, 97, (2, 64), generator=torch.Generator().manual_seed(0))
    return moefy.student_from(DENSE, dense, [0, 2], SPARSE, rows)


def test_written_documents_are_the_likeliest_continuations_of_their_prompts(dense):
    rng, n = np.random.default_rng(0), 40
    lengths, one = rng.integers(1, 10, n), np.ones(n, np.float32)
    prompts = rng.integers(3, 97, (n, 10)), lengths, np.ones(n, int), one, one, one  # least relative probability 1: greedy
    w = writer.Writer(DENSE, dense, prompts, rows=5, longest=30, steps=200, device="cpu", dtype=torch.float32)
    w.run(seconds=60, log=lambda text: None)
    ids, offsets, numbers, whole = w.documents()
    assert len(numbers) > 20 and whole.any() and not whole.all()
    net = nets.Net(DENSE)
    for d, number in enumerate(numbers):
        doc, given = torch.from_numpy(ids[offsets[d] : offsets[d + 1]].astype(np.int64)), lengths[number]
        assert doc[:given].tolist() == prompts[0][number, :given].tolist()
        logits = net.logits(dense, doc[None])[0, given - 1 : -1]
        behind = logits.max(-1).values - logits.gather(-1, doc[given:, None])[:, 0]
        assert len(behind) == 0 or behind.max() < 1e-3
        assert (doc[given:-1] != writer.TURN_END).all() and (doc[given:-1] != writer.TEXT_END).all()


@pytest.mark.parametrize("bits", [4, 8])
def test_codes_in_training_and_in_the_file_are_the_same(bits):
    w = torch.randn(7, 192, generator=torch.Generator().manual_seed(bits))
    w[0, :64], w[1, 64:128] = 0.25, w[1, 64:128].abs()  # a group of one value, a group of one sign
    words, scale, bias = export.packed(w, bits, 64)
    again = affine.dequantise(words, scale, bias, bits, 64)
    assert np.array_equal(again, quantise.dequantised(w, bits, 64).numpy())
    assert np.abs(again - w.numpy()).max() < 8 / 2**bits


def test_gradient_passes_the_quantisation(sparse):
    w = sparse["q"].clone().requires_grad_()
    quantise.fake(w, 4, 64).sum().backward()
    assert (w.grad == 1).all()


def test_shipped_file_gives_back_what_training_computed_with(tmp_path, sparse):
    export.write(tmp_path, SPARSE, sparse)
    back, want = export.read_parameters(tmp_path, SPARSE), quantise.through_file(sparse)
    assert back.keys() == want.keys()
    for name in want:
        assert torch.equal(back[name], want[name]), name


def test_first_student_uses_every_neuron_once_or_twice(dense, sparse):
    for layer, source in enumerate((0, 2)):
        rows = torch.cat([sparse["shared_gate"][layer], sparse["gate"][layer]])
        homes = (rows[:, None] == dense["gate"][source][None]).all(-1).sum(0)
        assert homes.min() >= 1 and homes.max() <= 2 and homes.sum() == len(rows)
