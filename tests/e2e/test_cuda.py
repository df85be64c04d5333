"""The cuda device as a user meets it, on the library that stands in for NVIDIA's: what is missing or breaks is one line, golden
checkpoints with few slots for experts in GPU memory, and --device auto."""

import json
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu"))
import goldens  # noqa: E402

PROMPT, SIZES = "Once upon a time", ("-n", 4, "--ctx", 128, "--chunk", 32, "--memory", "64M")


@pytest.fixture(scope="module")
def model(run, build):
    path = build / "models" / "cuda-small.gguf"
    path.parent.mkdir(exist_ok=True)
    run("synth", "small-qwen3-moe", path, "--force")
    return path


@pytest.fixture
def standin(build, monkeypatch):
    """standin("memory=1000000"): how the GPU is, or breaks."""
    library = build / "libcuda_standin.so"
    if not library.exists():
        pytest.skip(f"SKIP: {library} is not built")
    monkeypatch.setenv("SLUICE_CUDA_LIBRARY", str(library))
    monkeypatch.setenv("SLUICE_NVRTC_LIBRARY", str(library))
    return lambda settings: monkeypatch.setenv("SLUICE_STANDIN_CUDA", settings)


def expect_one_line(run, model, words, *options):
    done = run("run", model, PROMPT, "--device", "cuda", *SIZES, *options, check=False, timeout=180)
    lines = [line for line in done.stderr.splitlines() if "waiting for" not in line]  # the machine may be slow
    assert done.returncode == 1 and len(lines) == 1, done.stderr
    assert words in lines[0], lines[0]


@pytest.mark.parametrize(
    "settings, words",
    [
        ("driver=11040", "the driver is made for CUDA 11.4, 12.0 or newer is needed"),
        ("nvrtc=11", "NVRTC is version 11.0, 12.0 or newer is needed"),
        ("devices=0", "an NVIDIA driver is here, but no GPU"),
        ("major=6", "this GPU is sm_60, sm_70 or newer is needed"),
        ("memory=2000000", "GPU memory of 1746416 bytes (1.67 MiB, what may be used of Stand-in 0) is too small: at least "),
        ("fail=cuDevicePrimaryCtxRetain,at=1,result=2", "Stand-in 0 has no memory left for a context"),
        ("fail=cuMemHostRegister_v2,at=2,result=2", "bytes of host memory (is ulimit -l large enough?)"),
        ("fail=cuModuleLoadData,at=3,result=209", ": loading its code: CUDA_ERROR (209)"),
        ("fail=cuLaunchKernel,at=20,result=700", "cuda: launching kernel "),
        ("fail=cuEventQuery,at=40,result=719", "CUDA_ERROR_LAUNCH_FAILED (719)"),
        ("fail=cuCtxPushCurrent_v2,at=20,result=719", "CUDA_ERROR_LAUNCH_FAILED (719)"),
    ],
)
def test_what_is_missing_or_breaks_is_one_line(run, model, standin, settings, words):
    standin(settings)
    expect_one_line(run, model, words)


def test_tokens_of_the_library_are_graphs(run, model, standin):
    """Logits go to the engine's memory: a caller's would be pinned for each token anew, and no graph outlives that."""
    standin("say=1")
    done = run("bench", model, "--device", "cuda", "--ids", "random", "--ctx", 128, "--prefill", 0, "--memory", "1G", "--warmup", 4,
               "--tokens", 8, "--repeat", 1, "--no-replay", "--quiet", timeout=180)
    counts = re.search(r"(\d+) graphs made, (\d+) launched, \d+ copies, (\d+) violations", done.stderr)
    assert counts, done.stderr
    made, launched, violations = (int(n) for n in counts.groups())
    assert made > 0 and launched >= 8 and violations == 0, done.stderr


def test_a_kernel_that_does_not_compile_is_named(run, model, standin, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # where nothing is compiled yet
    standin("fail=nvrtcCompileProgram,at=4,result=6")
    expect_one_line(run, model, ".metal: NVRTC fails with result 6")


def test_libraries_that_are_not_there(run, model, standin, monkeypatch):
    monkeypatch.setenv("SLUICE_NVRTC_LIBRARY", "/no/such/library")
    expect_one_line(run, model, "no NVRTC here, which compiles kernels")
    monkeypatch.setenv("SLUICE_CUDA_LIBRARY", "/no/such/library")
    expect_one_line(run, model, "no NVIDIA driver here")


def info(run, model, *options):
    return json.loads(run("info", model, "--json", "--ctx", 128, "--chunk", 32, *options).stdout)


def test_vram_is_a_ceiling_and_the_least_runs(run, model, standin):
    standin("x=0")
    least = info(run, model, "--device", "cuda", "--memory", "64M")["least_vram"]
    expect_one_line(run, model, f"({(least - 1) / 2**20:.2f} MiB, vram) is too small: at least {least} bytes", "--vram", least - 1)
    expect_one_line(run, model, "vram: 109951162777600 bytes, 68719472640 are free on Stand-in 0", "--vram", "100T")
    outputs = []
    for vram in (least, least + 200000, "auto"):
        said = json.loads(run("run", model, PROMPT, "--device", "cuda", *SIZES, "--vram", vram, "--json", "--logprobs", 2, timeout=180).stdout)
        figures = said["figures"]["vram"]
        assert vram == "auto" or figures["peak"] <= vram
        outputs.append((said["text"], said["logprobs"]))
        slots = figures["slots"]
    assert outputs[0] == outputs[1] == outputs[2] and slots == 192


def test_vram_is_of_a_gpu_with_memory_of_its_own(run, model):
    for device, words in (("cpu", "the CPU has no memory of its own"), ("soft", "device soft shares the host's memory")):
        done = run("run", model, PROMPT, "--device", device, *SIZES, "--vram", "1G", check=False)
        assert done.returncode == 1 and words in done.stderr and done.stderr.count("\n") == 1, done.stderr
    done = run("run", model, PROMPT, "--vram", "50%", check=False)
    assert done.returncode == 2 and "--vram: '50%': expected a size" in done.stderr


def test_auto_takes_the_gpu_and_says_so(run, model, standin):
    standin("x=0")
    said = run("run", model, PROMPT, "--device", "auto", *SIZES, "--verbose", timeout=180).stderr
    assert "device auto: cuda (Stand-in 0 is here)" in said
    about = info(run, model, "--device", "auto")
    assert about["device"] == "cuda" and about["vram_slots"] == 192


def test_auto_falls_back_to_the_cpu_and_says_why(run, model, standin):
    plain = run("run", model, PROMPT, *SIZES).stdout
    for settings, why in (("devices=0", "no GPU"), ("memory=2000000", "is too small: at least"), ("driver=11000", "12.0 or newer is needed")):
        standin(settings)
        done = run("run", model, PROMPT, "--device", "auto", *SIZES)
        assert done.stdout == plain and done.stderr == ""  # no noise unasked
        said = run("run", model, PROMPT, "--device", "auto", *SIZES, "--verbose").stderr
        (line,) = [line for line in said.splitlines() if "device auto" in line and "too small" in line or "device auto: cpu" in line]
        assert "device auto: cpu (" in line and why in line
    assert info(run, model, "--device", "auto", "--numeric", "exact")["device_why"] == "numeric exact and isa are of the CPU alone"


@pytest.mark.parametrize("name", ["gpt_oss", "qwen3_5_moe", "deepseek_v3-gguf", "qwen3_moe-mlx4"])
def test_golden_checkpoints_with_few_slots_in_gpu_memory(sluice, standin, tmp_path, name):
    """All of them: tests/gpu/goldens.py, which a GPU is checked with."""
    standin("x=0")
    case = goldens.Case(sluice, tmp_path, name, "cuda", seconds=300)
    for chunk in (12, goldens.TOKENS):
        print(goldens.check(case, chunk, case.least(chunk)))


def test_bench_says_how_much_of_the_bus_and_the_disk_was_used(run, model, standin):
    standin("x=0")
    vram = info(run, model, "--device", "cuda", "--memory", "64M")["least_vram"] + 400000
    options = ("--device", "cuda", "--vram", vram, "--max-slots", 20, "--ids", "random", "--warmup", 2, "--tokens", 6, "--repeat", 1, "--prefill", 0)
    said = json.loads(run("bench", model, *SIZES[2:6], *options, "--json", timeout=300).stdout)["decode"]["gpu_memory"]
    assert 0 <= said["hit_rate"] < 1 and 0 < said["slots"] < 192
    assert 0 < said["share_of_copy_limit"] < 1 and 0 < said["share_of_disk_limit"]
    assert said["share_of_copy_limit"] == pytest.approx(said["copied_bytes_per_second"] / said["copy_limit_bytes_per_second"])
    table = run("bench", model, *SIZES[2:6], *options, timeout=300).stdout
    assert "host tier: " in table and "disk tier: " in table and "budget" in table


