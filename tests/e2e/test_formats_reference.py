"""Element formats against the packages that define them: the recorded vectors are what gguf gives today, random blocks of other seeds
dequantise to the same bits, and MLX (where it is installed) agrees with the formulas that stand for it.

Drives the program test_quant of the build. Packages: gguf, numpy; mlx and torch where they are.
"""

import importlib.util
import os
import subprocess

import numpy as np
import pytest


@pytest.fixture(scope="session")
def make_vectors(repo):
    return load(repo / "tools/golden/make_quant_vectors.py")


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def same_bits(a, b):
    a, b = np.ascontiguousarray(a, dtype="<f4"), np.ascontiguousarray(b, dtype="<f4")
    return np.array_equal(a.view("<u4"), b.view("<u4"))


def test_recorded_vectors_are_what_python_gives(make_vectors, golden, tmp_path):
    make_vectors.make(tmp_path / "quant", make_vectors.SEED)
    made = {p.name: p.read_bytes() for p in (tmp_path / "quant").iterdir()}
    recorded = {p.name: p.read_bytes() for p in (golden / "quant").iterdir()}
    assert sorted(made) == sorted(recorded)
    assert [name for name in made if made[name] != recorded[name]] == []


def test_grids_are_what_python_has(repo, tmp_path, monkeypatch):
    grids = load(repo / "tools/golden/make_iq_grids.py")
    monkeypatch.setattr("sys.argv", ["make_iq_grids.py", str(tmp_path / "grids.c")])
    grids.main()
    assert (tmp_path / "grids.c").read_bytes() == (repo / "src/quant/quant_grids.c").read_bytes()


@pytest.mark.parametrize("seed", [int.from_bytes(os.urandom(4)) for _ in range(3)], ids=str)
def test_random_blocks_have_the_same_bits(make_vectors, build, tmp_path, seed):
    make_vectors.make(tmp_path / "quant", seed)
    env = dict(os.environ, SL_QUANT_VECTORS=str(tmp_path / "quant"))
    done = subprocess.run([build / "test_quant"], env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"seed {seed}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("side", ["F16", "BF16", "F32"])
@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_mlx_affine(make_vectors, bits, group, side):
    """In float32 MLX's result is the formula's, bit for bit; in half precision it is the formula with each step rounded to the scales' type."""
    mx = pytest.importorskip("mlx.core")
    dtype = {"F16": mx.float16, "BF16": mx.bfloat16, "F32": mx.float32}[side]
    seed = int.from_bytes(os.urandom(4))
    print("seed", seed)
    words, (_, scale), (_, bias), w = make_vectors.affine_case(np.random.default_rng(seed), bits, group, side)
    with np.errstate(over="ignore", invalid="ignore"):
        wide = mx.dequantize(mx.array(words), mx.array(scale), mx.array(bias), group_size=group, bits=bits)
        assert same_bits(np.array(wide), w)
        narrow_scale, narrow_bias = mx.array(scale).astype(dtype), mx.array(bias).astype(dtype)
        narrow = mx.dequantize(mx.array(words), narrow_scale, narrow_bias, group_size=group, bits=bits)
        codes = mx.dequantize(mx.array(words), mx.ones(scale.shape), mx.zeros(bias.shape), group_size=group, bits=bits)
        steps = (codes * mx.repeat(mx.array(scale), group, 1)).astype(dtype) + mx.repeat(narrow_bias, group, 1)
        assert mx.array_equal(narrow, steps, equal_nan=True)


@pytest.mark.parametrize("mode, group, bits", [("mxfp4", 32, 4), ("nvfp4", 16, 4), ("mxfp8", 32, 8)])
def test_mlx_small_floats(make_vectors, mode, group, bits):
    mx = pytest.importorskip("mlx.core")
    codes, scales, w = getattr(make_vectors, f"{mode}_case")(np.random.default_rng(5))
    theirs = mx.dequantize(mx.array(codes.view("<u4")), mx.array(scales), group_size=group, bits=bits, mode=mode, dtype=mx.float32)
    assert same_bits(np.array(theirs), w)


def test_torch_e4m3(make_vectors):
    torch = pytest.importorskip("torch")
    values = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).to(torch.float32).numpy()
    ours = make_vectors.e4m3_values()
    assert np.array_equal(np.isnan(values), np.isnan(ours))
    assert same_bits(values[~np.isnan(values)], ours[~np.isnan(ours)])
