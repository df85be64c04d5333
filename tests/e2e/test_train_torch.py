"""The scripts that made the shipped model, where torch is installed: the writer against plain forward passes, the file against what training computed with."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from lib import affine  # noqa: E402
from train import export, moefy, nets, pool, quantise, writer  # noqa: E402

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
    w = writer.Writer(DENSE, dense, prompts, rows=5, longest=30, steps=200, device="cpu")
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


def test_student_writes_what_its_forward_pass_says_also_after_new_weights(sparse):
    """Greedy: every written id is the likeliest of a plain forward pass with the weights it was written with."""
    rng, n = np.random.default_rng(1), 60
    lengths, one = rng.integers(1, 10, n), np.ones(n, np.float32)
    prompts = rng.integers(3, 97, (n, 10)), lengths, np.ones(n, int), one, one, one
    other = {k: v.roll(1, 0) if k in ("gate", "q") else v for k, v in sparse.items()}  # layers' weights exchanged
    w, net = writer.Writer(SPARSE, sparse, prompts, rows=5, longest=30, steps=90, device="cpu"), nets.Net(SPARSE)
    for p in (sparse, other):
        w.restart(p)
        w.run(seconds=60, log=lambda text: None, again=True)
        ids, offsets, numbers, _ = w.documents()
        assert len(numbers) > 10
        for d, number in enumerate(numbers):
            doc, given = torch.from_numpy(ids[offsets[d] : offsets[d + 1]].astype(np.int64)), lengths[number]
            assert doc[:given].tolist() == prompts[0][number, :given].tolist()
            logits = net.logits(p, doc[None])[0, given - 1 : -1]
            behind = logits.max(-1).values - logits.gather(-1, doc[given:, None])[:, 0]
            assert len(behind) == 0 or behind.max() < 1e-3


@pytest.mark.parametrize("kept", [0, 4, 7])
def test_pool_gives_every_row_with_its_own_states(kept):
    """Rows whose states are kept, and rows whose states are not; the teacher is asked once for each of the former."""
    asked = []

    def teach(ids):
        asked.extend(ids[:, 0].tolist())
        return ids[..., None].to(torch.bfloat16).expand(-1, -1, 3)

    rows = np.arange(1, 9, dtype=np.uint16)[:, None].repeat(5, 1)
    p = pool.Pool(rows, 2, "cpu", teach, hidden=3, room=kept * 5 * 3 * 2)
    for epoch in range(3):
        seen = []
        for _ in range(4):
            ids, told = p.next()
            assert torch.equal(told.long(), ids[..., None].expand(-1, -1, 3))
            seen += ids[:, 0].tolist()
        assert sorted(seen) == list(range(1, 9)) and p.epochs == epoch + 1
    whole = kept // 2 * 2
    assert len(asked) == whole + 3 * (8 - whole) or (whole and len(asked) <= 2 * whole + 3 * (8 - whole))


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
