"""`sluice pack`: the same bits as the model, whatever stops it; damage and misuse are named."""

import fcntl
import hashlib
import json
import os
import pty
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from conftest import preloaded, skip_loudly

ARCHITECTURES = Path(__file__).resolve().parents[1] / "golden/arch"
MOE = sorted(p.name for p in ARCHITECTURES.iterdir() if not p.name.startswith("llama") and ((p / "config.json").exists() or list(p.glob("*.gguf"))))


def golden_model(golden, name):
    directory = golden / "arch" / name
    ggufs = sorted(directory.glob("*.gguf"))
    return ggufs[0] if ggufs else directory


def contents(directory):
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(directory.iterdir())}


def reference(path, vocab, tokens):
    """A reference that brings tokens: one entry per position, that nothing is compared with."""
    n = len(tokens)
    path.write_bytes(b"SLREF1\0\0" + struct.pack(f"<4I{n}i{n}I{n}f", n, vocab, 1, 0, *tokens, *[0] * n, *[-1.0] * n))
    return path


@pytest.fixture
def logits(run, tmp_path):
    """logits(model) -> the bytes of its log probabilities over 40 fixed tokens."""

    def call(model, *options):
        info = json.loads(run("info", model, "--json").stdout)
        tokens = [(7 * i * i + 3 * i) % info["vocab"] for i in range(40)]
        asks = reference(tmp_path / "tokens.slref", info["vocab"], tokens)
        out = tmp_path / "out.slref"
        run("eval", model, "--reference", asks, "--record", out, "--ctx", 64, *options)
        return out.read_bytes()

    return call


@pytest.fixture
def smol(repo):
    return repo / "models/sluice-smol-moe"


@pytest.fixture
def tiny(golden):
    return golden_model(golden, "qwen3_moe")


# ---- the same model ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MOE)
def test_pack_has_the_models_logits_to_the_last_bit(run, golden, logits, tmp_path, name):
    model = golden_model(golden, name)
    run("pack", model, tmp_path / "p")
    assert logits(tmp_path / "p") == logits(model)
    assert logits(tmp_path / "p", "--buffered", "--max-slots", 8) == logits(model)
    assert logits(tmp_path / "p", "--numeric", "exact") == logits(model, "--numeric", "exact")
    run("pack", "--verify", tmp_path / "p")


@pytest.mark.parametrize("shape", ["tiny-qwen3-moe", "tiny-qwen2-moe", "tiny-qwen3.5-moe", "tiny-qwen3-next"])
@pytest.mark.parametrize("format", ["q4_0-gguf", "mlx4"])
def test_pack_of_a_synthetic_checkpoint_says_the_same(run, tmp_path, shape, format):
    model = tmp_path / ("m.gguf" if format.endswith("gguf") else "m")
    run("synth", shape, model, "--format", format)
    run("pack", model, tmp_path / "p")
    ask = ["hello there", "-n", 24, "--ignore-eos"]
    assert run("run", tmp_path / "p", *ask).stdout == run("run", model, *ask).stdout
    text = run("tokenize", model, "One two <|im_start|>three", "--special", "--json").stdout
    assert run("tokenize", tmp_path / "p", "One two <|im_start|>three", "--special", "--json").stdout == text


def test_pack_of_the_shipped_model_chats_as_it_does(run, smol, tmp_path):
    run("pack", smol, tmp_path / "p")
    ask = ["Once upon a time", "-n", 40, "--raw"]
    assert run("run", tmp_path / "p", *ask).stdout == run("run", smol, *ask).stdout
    info = json.loads(run("info", tmp_path / "p", "--json").stdout)
    was = json.loads(run("info", smol, "--json").stdout)
    same = ["architecture", "formats", "layers", "experts", "experts_per_token", "expert_bytes", "resident_bytes", "file_bytes", "vocab", "approximation"]
    assert {k: info[k] for k in same} == {k: was[k] for k in same}
    assert info["container"] == "pack of safetensors"
    held = sum(f.stat().st_size for f in (tmp_path / "p").glob("*"))
    assert info["file_bytes"] < info["disk_bytes"] <= held
    assert "on disk, where each begins at a multiple" in run("info", tmp_path / "p").stdout
    assert "on disk" not in run("info", smol).stdout


def test_calibration_is_of_text_and_of_no_more_than_asked_for(run, smol, tmp_path):
    (tmp_path / "text").write_text("Once upon a time there was a river. " * 40)
    (tmp_path / "binary").write_bytes(b"plain, then " + b"\xff\xfe\x00")
    refused = run("pack", smol, tmp_path / "p", "--experts", "4bit", "--calibrate", tmp_path / "binary", check=False)
    assert refused.returncode == 1 and "binary: byte 0xff at offset 12, a text in UTF-8 expected" in refused.stderr
    assert not (tmp_path / "p").exists()
    lost = run("pack", smol, tmp_path / "p", "--experts", "4bit", "--tokens", 8, check=False)
    assert lost.returncode == 2 and "--calibrate" in lost.stderr
    some = run("pack", smol, tmp_path / "p", "--experts", "4bit", "--calibrate", tmp_path / "text", "--tokens", 8)
    assert "calibrating with the first 8 tokens of the text" in some.stderr
    whole = run("pack", smol, tmp_path / "q", "--experts", "4bit", "--calibrate", tmp_path / "text")
    assert "the first" not in whole.stderr
    assert (tmp_path / "p/layer-000.bin").read_bytes() != (tmp_path / "q/layer-000.bin").read_bytes()


def test_pack_of_a_pack_is_the_same_layout(run, tiny, logits, tmp_path):
    run("pack", tiny, tmp_path / "p")
    run("pack", tmp_path / "p", tmp_path / "q")
    assert logits(tmp_path / "q") == logits(tiny)
    assert (tmp_path / "q/layer-000.bin").read_bytes() == (tmp_path / "p/layer-000.bin").read_bytes()


def test_every_expert_is_one_aligned_read(run, smol, tmp_path):
    run("pack", smol, tmp_path / "p")
    doc = json.loads((tmp_path / "p/pack.json").read_text())
    assert len(doc["layers"]) == 12
    for layer in doc["layers"]:
        parts = [part for proj in ("gate", "up", "down") for part in layer[proj]["parts"]]
        assert len(parts) == 9 and len(layer["blobs"]) == 24
        assert all(offset % 256 == 0 for offset, _ in parts)
        gaps = [b[0] - (a[0] + a[1]) for a, b in zip(parts, parts[1:])]
        assert all(0 <= gap < 256 for gap in gaps)
        assert all(offset % 16384 == 0 and length == sum(parts[-1]) for offset, length, _ in layer["blobs"])
        size = (tmp_path / "p" / layer["file"]).stat().st_size
        assert size == layer["bytes"] and size % 16384 == 0


# ---- whatever stops it ------------------------------------------------------------------------------------------------------------------------


def killed(sluice, kill_at, at, *args, count=None):
    env = os.environ | preloaded(kill_at) | {"KILL_AT": str(at), "ASAN_OPTIONS": "verify_asan_link_order=0"}
    if count:
        env["KILL_COUNT"] = str(count)
    return subprocess.run([str(a) for a in (sluice, *args)], env=env, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("more", [[], ["--experts", "4bit", "--group", "32"]], ids=["as-is", "4bit"])
def test_killed_at_every_point_it_goes_on_to_the_same_bytes(sluice, run, tiny, kill_at, tmp_path, more):
    out = tmp_path / "p"
    whole = killed(sluice, kill_at, 0, "pack", tiny, out, *more, count=tmp_path / "count")
    assert whole.returncode == 0, whole.stderr
    expected, changes = contents(out), int((tmp_path / "count").read_text())
    assert "pack.json" in expected and "pack.journal" not in expected and changes > 40
    for at in range(1, changes + 1, 1 if not more else 5):
        shutil.rmtree(out)
        done = killed(sluice, kill_at, at, "pack", tiny, out, *more)
        assert done.returncode == -signal.SIGKILL, (at, done)
        if out.exists() and not (out / "pack.json").exists() and any(out.iterdir()):
            half = run("info", out, check=False)
            assert half.returncode == 1 and "pack" in half.stderr, (at, half.stderr)
        run("pack", tiny, out, *more)
        assert contents(out) == expected, at


def test_killed_again_and_again_it_gets_there(sluice, run, tiny, kill_at, tmp_path):
    run("pack", tiny, tmp_path / "whole")
    out, runs = tmp_path / "p", 0
    while killed(sluice, kill_at, 23, "pack", tiny, out).returncode != 0:
        runs += 1
        assert runs < 60
    assert runs > 2 and contents(out) == contents(tmp_path / "whole")


def test_what_a_power_cut_left_is_written_again(run, sluice, tiny, kill_at, tmp_path):
    """Bytes of the file in the making that the journal knows but the disk lost, and a torn line of the journal."""
    run("pack", tiny, tmp_path / "whole")
    out = tmp_path / "p"
    for at in range(20, 400):
        shutil.rmtree(out, ignore_errors=True)
        killed(sluice, kill_at, at, "pack", tiny, out)
        part = out / "layer-000.bin.part"
        lines = (out / "pack.journal").read_text().splitlines() if (out / "pack.journal").exists() else []
        if part.exists() and sum(line.startswith("unit 00001") for line in lines) > 2:
            break
    data = bytearray(part.read_bytes())
    data[5] ^= 1
    part.write_bytes(data)
    with open(out / "pack.journal", "ab") as journal:
        journal.write(b"unit 00001 0000")
    run("pack", tiny, out)
    assert contents(out) == contents(tmp_path / "whole")


def slow_pack(sluice, model, out, *more):
    """A pack that takes a while: the synthetic model is larger than what is written in a moment."""
    return subprocess.Popen([str(a) for a in (sluice, "pack", model, out, *more)], stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="session")
def large(models, sluice):
    """Some 90 MB of experts."""
    return models.make("pack-large.gguf", lambda path: ["-c", f"import subprocess; subprocess.run([{str(sluice)!r}, 'synth', 'small-qwen3-moe', {str(path)!r}, '--experts', '256'], check=True)"])


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_stops_it_and_says_how_to_go_on(sluice, run, large, tmp_path, how):
    out = tmp_path / "p"
    job = slow_pack(sluice, large, out, "--experts", "2bit", "--threads", 1)
    for _ in range(600):
        if out.exists() and any(out.iterdir()):
            break
        time.sleep(0.01)
    job.send_signal(how)
    said = job.communicate(timeout=60)[1]
    assert job.returncode == 128 + how, said
    assert re.search(r"stopped; the same command goes on with it", said), said
    assert not (out / "pack.json").exists() and (out / "pack.journal").exists()
    if how == signal.SIGTERM:
        run("pack", large, out, "--experts", "2bit", timeout=300)
        run("pack", "--verify", out)


def test_a_terminal_sees_rate_and_time_left(sluice, large, tmp_path):
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 40, 120, 0, 0))
    job = subprocess.Popen([sluice, "pack", large, tmp_path / "p", "--experts", "3bit"], stderr=slave, env=os.environ | {"TERM": "xterm"})
    os.close(slave)
    said = b""
    while True:
        try:
            said += os.read(master, 4096)
        except OSError:  # the other end is closed
            break
    os.close(master)
    assert job.wait(timeout=60) == 0
    assert re.search(r"packing \[#* *\] [\d.]+ [KM]iB of [\d.]+ MiB, [\d.]+ [KMG]?i?B/s, [\d:?]+ left", said.decode()), said[-500:]
    assert said.decode().rstrip().endswith("'eval --reference' on the pack")


@pytest.mark.parametrize("format", ["q4_0-gguf", "mlx4"])
def test_synth_stopped_by_sigterm_leaves_nothing(sluice, tmp_path, format):
    out = tmp_path / ("m.gguf" if format.endswith("gguf") else "m")
    job = subprocess.Popen([sluice, "synth", "qwen3-30b-a3b", str(out), "--layers", "2", "--format", format], stderr=subprocess.PIPE, text=True)
    for _ in range(600):
        if list(tmp_path.rglob("*.part")):
            break
        time.sleep(0.01)
    job.terminate()
    job.communicate(timeout=60)
    assert job.returncode == 128 + signal.SIGTERM
    assert not list(tmp_path.rglob("*.part")) and not list(tmp_path.rglob("*.gguf")) and not list(tmp_path.rglob("*.safetensors"))


def test_two_at_once_do_not_mix(sluice, run, large, tmp_path):
    out = tmp_path / "p"
    job = slow_pack(sluice, large, out, "--experts", "2bit", "--threads", 1)
    for _ in range(600):
        if (out / "pack.journal").exists():
            break
        time.sleep(0.01)
    second = run("pack", large, out, "--experts", "2bit", check=False)
    job.terminate()
    job.communicate(timeout=60)
    assert second.returncode == 1 and "another process is writing this pack" in second.stderr


def test_a_whole_pack_is_done_already(run, tiny, tmp_path):
    run("pack", tiny, tmp_path / "p")
    before = contents(tmp_path / "p")
    assert "complete already" in run("pack", tiny, tmp_path / "p").stderr
    assert contents(tmp_path / "p") == before


@pytest.mark.parametrize("damage", ["remove", "cut"])
def test_a_finished_pack_that_lost_a_file_is_not_complete(run, tiny, tmp_path, damage):
    run("pack", tiny, tmp_path / "p")
    layer = tmp_path / "p/layer-000.bin"
    size = layer.stat().st_size
    layer.unlink() if damage == "remove" else os.truncate(layer, 1000)
    failed = run("pack", tiny, tmp_path / "p", check=False)
    assert failed.returncode == 1
    assert f"layer-000.bin: {0 if damage == 'remove' else 1000} bytes, {size} were written" in failed.stderr


# ---- memory and disk --------------------------------------------------------------------------------------------------------------------------


def test_the_model_is_never_in_memory(sluice, large, tmp_path):
    size = large.stat().st_size
    for more in ([], ["--experts", "8bit"]):
        command = [str(a) for a in (sluice, "pack", large, tmp_path / f"p{len(more)}", *more)]
        # A child begins with the peak of what forked it: a small program does, not this one.
        peak = "import os, sys; pid = os.spawnv(os.P_NOWAIT, sys.argv[1], sys.argv[1:]); _, status, u = os.wait4(pid, 0); print(status, u.ru_maxrss)"
        status, kib = subprocess.run([sys.executable, "-c", peak, *command], check=True, capture_output=True, text=True).stdout.split()
        assert status == "0"
        if "asan" not in str(sluice) and not os.environ.get("ASAN_OPTIONS"):
            assert int(kib) * 1024 < 64 << 20 < size, kib


def test_a_small_disk_is_refused_before_anything_is_written(run, large, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", disk], capture_output=True).returncode != 0:
        skip_loudly("no right to mount a small file system")
    try:
        done = run("pack", large, disk / "p", check=False)
        assert done.returncode == 1
        assert re.search(r"needs [\d.]+ MiB \(\d+ bytes\), the disk has [\d.]+ MiB free", done.stderr), done.stderr
        assert not (disk / "p").exists()
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_disk_that_fills_up_is_named_and_the_rest_goes_on(sluice, run, tiny, tmp_path):
    """A limit on file sizes stands for a full disk."""

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (40000, 40000))

    out = tmp_path / "p"
    done = subprocess.run([str(sluice), "pack", str(tiny), str(out)], preexec_fn=limit, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "write failed" in done.stderr and done.stderr.count("\n") == 1, done.stderr
    run("pack", tiny, out)
    run("pack", tiny, tmp_path / "whole")
    assert contents(out) == contents(tmp_path / "whole")


# ---- requantised ------------------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def text(repo):
    return repo / "docs/architecture.md"


def price(run, model, pack, text, tmp_path, tokens=200, numeric="q8"):
    ref = tmp_path / f"{numeric}.slref"
    if not ref.exists():
        run("eval", model, text, "--tokens", tokens, "--numeric", numeric, "--record", ref)
    return json.loads(run("eval", pack, text, "--reference", ref, "--numeric", numeric, "--json").stdout)


def test_fewer_bits_cost_more_and_are_named(run, smol, text, tmp_path):
    kl = {}
    for bits in (2, 3, 4, 8):
        run("pack", smol, tmp_path / f"p{bits}", "--experts", f"{bits}bit", "--group", 32)
        # Without the rounding of activations, which costs more than 8 bits of weights do.
        kl[bits] = price(run, smol, tmp_path / f"p{bits}", text, tmp_path, 60, "exact")["kl_mean"]
    assert kl[8] < kl[4] < kl[3] < kl[2], kl
    assert kl[8] < 0.0005 and kl[2] > 0.02, kl
    info = json.loads(run("info", tmp_path / "p2", "--json").stdout)
    assert info["approximation"] == "experts requantised to 2 bits in groups of 32" and "affine2" in info["formats"]
    assert info["expert_bytes"] < json.loads(run("info", smol, "--json").stdout)["expert_bytes"]
    assert "sluice eval" in run("pack", smol, tmp_path / "again", "--experts", "8bit").stderr


def test_calibrated_experts_are_nearer_on_their_kind_of_text(run, smol, text, tmp_path):
    run("pack", smol, tmp_path / "plain", "--experts", "2bit")
    run("pack", smol, tmp_path / "calibrated", "--experts", "2bit", "--calibrate", text)
    plain, calibrated = (price(run, smol, tmp_path / p, text, tmp_path)["kl_mean"] for p in ("plain", "calibrated"))
    assert calibrated < plain
    assert not (tmp_path / "calibrated/importance.part").exists()
    assert "calibrated" in json.loads(run("info", tmp_path / "calibrated", "--json").stdout)["approximation"]


def test_a_calibrated_pack_goes_on_without_calibrating_again(sluice, run, smol, text, kill_at, tmp_path):
    options = ["--experts", "3bit", "--calibrate", text]
    run("pack", smol, tmp_path / "whole", *options)
    out = tmp_path / "p"
    assert killed(sluice, kill_at, 60, "pack", smol, out, *options).returncode == -signal.SIGKILL
    assert (out / "importance.part").exists()
    run("pack", smol, out, *options)
    assert contents(out) == contents(tmp_path / "whole")


@pytest.mark.parametrize("model", ["qwen3_moe-gguf", "qwen3_next-gguf-q8", "qwen3_moe-mlx8", "gpt_oss"])
def test_requantised_from_every_container(run, golden, logits, tmp_path, model):
    run("pack", golden_model(golden, model), tmp_path / "p", "--experts", "8bit", "--group", 32)
    run("pack", "--verify", tmp_path / "p")
    assert len(logits(tmp_path / "p")) == len(logits(golden_model(golden, model)))


# ---- misuse and damage ------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def refused(run):
    def call(*args, words=(), status=1):
        done = run(*args, check=False)
        assert done.returncode == status, done
        assert done.stderr.count("\n") == 1 and all(w in done.stderr for w in words), done.stderr
        return done.stderr

    return call


def test_what_is_no_pack_is_not_written_over(refused, run, tiny, tmp_path, golden):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/letter.txt").write_text("dear")
    (tmp_path / "file").write_text("dear")
    refused("pack", tiny, tmp_path / "full", words=["full", "no pack"])
    refused("pack", tiny, tmp_path / "file", words=["no directory"])
    refused("pack", tiny, tmp_path / "none/p", words=["No such file"])
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/pack.journal").write_text("what I packed for the journey: socks, a towel, a book\n")
    refused("pack", tiny, tmp_path / "notes", words=["no journal of a pack"])
    assert (tmp_path / "notes/pack.journal").read_text().startswith("what I packed")
    run("pack", tiny, tmp_path / "p")
    before = contents(tmp_path / "p")
    refused("pack", golden_model(golden, "qwen3_moe-mlx4"), tmp_path / "p", words=["a pack of another model"])
    refused("pack", tiny, tmp_path / "p", "--experts", "4bit", "--group", 32, words=["other options"])
    assert contents(tmp_path / "p") == before


def test_source_and_target_are_kept_apart(refused, tiny, tmp_path):
    model = tmp_path / "m"
    shutil.copytree(tiny, model)
    before = contents(model)
    refused("pack", model, model, words=["is the model itself"])
    refused("pack", model, model / "p", words=["inside the model"])
    (tmp_path / "link").symlink_to(model)
    refused("pack", model, tmp_path / "link/p", words=["inside the model"])
    refused("pack", model, tmp_path, words=["the model lies in it"])
    assert contents(model) == before


def test_an_unfinished_pack_of_something_else(refused, sluice, tiny, golden, kill_at, tmp_path):
    out = tmp_path / "p"
    killed(sluice, kill_at, 30, "pack", tiny, out)
    refused("pack", golden_model(golden, "qwen3_moe-mlx4"), out, words=["unfinished pack of another model"])
    refused("run", out, "hello", words=["unfinished pack", "sluice pack"])


def test_a_model_with_a_file_called_pack_json_is_still_one(run, tiny, tmp_path):
    shutil.copytree(tiny, tmp_path / "m")
    (tmp_path / "m/pack.json").write_text("{}")
    assert json.loads(run("info", tmp_path / "m", "--json").stdout)["container"] == "safetensors"


def test_options_that_make_no_sense(refused, tiny, shared_data, stories_hf, tmp_path):
    refused("pack", tiny, words=["OUT"], status=2)
    refused("pack", tiny, tmp_path / "p", "--group", 64, words=["--experts"], status=2)
    refused("pack", tiny, tmp_path / "p", "--experts", "4bit", "--group", 48, words=["32, 64 or 128"], status=2)
    refused("pack", tiny, tmp_path / "p", "--experts", "5bit", words=["2bit|3bit|4bit|8bit"], status=2)
    refused("pack", stories_hf, tmp_path / "p", words=["no routed experts"])
    refused("pack", "--verify", tiny, words=["no pack"])
    assert not (tmp_path / "p").exists()


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


def test_damage_is_named_by_layer_and_expert(refused, run, tiny, tmp_path):
    out = tmp_path / "p"
    run("pack", tiny, out)
    doc = json.loads((out / "pack.json").read_text())
    layer = doc["layers"][1]
    flip(out / layer["file"], layer["blobs"][3][0] + 7)
    refused("pack", "--verify", out, words=["layer-001.bin", f"layer {layer['layer']} expert 3", "checksum"])
    flip(out / "resident.bin", doc["resident"]["tensors"][2]["parts"][0][0])
    said = run("pack", "--verify", out, check=False)
    assert said.returncode == 1 and "2 of its checksums" in said.stderr and doc["resident"]["tensors"][2]["name"] in said.stderr


def test_damaged_experts_are_found_while_running(refused, run, tiny, tmp_path):
    out = tmp_path / "p"
    run("pack", tiny, out)
    args = ["run", out, "once upon a time there was", "--raw", "-n", 24, "--ignore-eos"]
    clean = run(*args).stdout
    for reader in (["--reader", "pread"], ["--reader", "pread", "--buffered"], ["--reader", "uring"]):
        assert run(*args, "--verify-reads", *reader).stdout == clean
    doc = json.loads((out / "pack.json").read_text())
    layer = doc["layers"][1]
    for blob in layer["blobs"]:  # some are chosen: all are damaged, each in its last byte
        flip(out / layer["file"], blob[0] + blob[1] - 1)
    said = refused(*args, "--verify-reads", words=["layer-001.bin", "layer 1 expert", "checksum", "expected"])
    expert = int(re.search(r"expert (\d+)", said).group(1))
    offset, size, sum_ = layer["blobs"][expert]
    assert f"the {size} bytes at offset {offset}" in said and sum_ in said
    assert run(*args, check=False).returncode == 0, "without the option nobody looks"


def test_reads_cannot_be_verified_without_checksums(refused, tiny):
    refused("run", tiny, "x", "--raw", "-n", 1, "--verify-reads", words=["no checksums", "only packs"])


def test_files_that_are_missing_or_of_another_size(refused, run, tiny, tmp_path):
    run("pack", tiny, tmp_path / "p")
    for name in ("layer-001.bin", "resident.bin", "config.json"):
        out = tmp_path / f"without-{name}"
        shutil.copytree(tmp_path / "p", out)
        (out / name).unlink()
        refused("info", out, words=[name, "missing"])
        out = tmp_path / f"short-{name}"
        shutil.copytree(tmp_path / "p", out)
        os.truncate(out / name, (out / name).stat().st_size - 1)
        refused("info", out, words=[name, "bytes, expected"])


@pytest.mark.parametrize("change,words", [
    (lambda t: t.replace('"sluice_pack": 1', '"sluice_pack": 2'), ["format version 2, expected 1"]),
    (lambda t: t.replace('"sluice_pack": 1, ', ""), ["sluice_pack", "no pack"]),
    (lambda t: t.replace('"layer": 1', '"layer": 3'), ["checksum", "damaged or changed"]),
    (lambda t: t[: len(t) // 2], ["pack.json"]),
    (lambda t: "", ["pack.json"]),
    (lambda t: "[]", ["pack.json"]),
], ids=["version", "no-version", "changed", "cut", "empty", "list"])  # fmt: skip
def test_damaged_pack_json(refused, run, tiny, tmp_path, change, words):
    out = tmp_path / "p"
    run("pack", tiny, out)
    path = out / "pack.json"
    path.write_text(change(path.read_text()))
    refused("info", out, words=["pack.json", *words])
    refused("pack", "--verify", out, words=words)


def test_pack_json_of_another_model(refused, run, tiny, golden, tmp_path):
    """Files of one pack beside the description of another."""
    run("pack", tiny, tmp_path / "p")
    run("pack", golden_model(golden, "qwen3_moe-mlx8"), tmp_path / "q")
    shutil.copy(tmp_path / "q/pack.json", tmp_path / "p/pack.json")
    refused("info", tmp_path / "p", words=["bytes, expected"])
