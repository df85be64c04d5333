"""A disk that fails: what did not need it is the same to the last token, what did says layer, expert, file and offset, and nothing hangs."""

import json
import os
import re
import shutil
import signal
import subprocess
import time

import pytest

from conftest import preloaded, skip_loudly

READERS = {f"{reader}-{how}": ["--reader", reader, "--direct", {"direct": "on", "buffered": "off"}[how]] for reader in ("uring", "pread") for how in ("direct", "buffered")}
SHORT_OF_SLOTS = ["--max-slots", 12, "--memory", "64M"]
FAILED = re.compile(r"^sluice: layer (\d+) expert (\d+): .*m\.gguf: .*(?:offset|at) \d+.*$", re.M)


@pytest.fixture(scope="module")
def model(run, tmp_path_factory):
    path = tmp_path_factory.mktemp("faults") / "m.gguf"
    run("synth", "small-qwen3-moe", path, "--skew", "local")
    return path


@pytest.fixture(params=READERS)
def reader(request, run, model):
    options = READERS[request.param]
    done = run("run", model, "x", "--raw", "-n", 1, "--ignore-eos", *options, check=False)
    if done.returncode and "io_uring" in done.stderr:
        skip_loudly(done.stderr.strip())
    return options


def answer(run, model, reader, faults, *more, n=12, prompt="h", check=False):
    """One token of prompt and n of answer, as bytes."""
    env = os.environ | {"SLUICE_FAULTS": faults}
    return run("run", model, prompt, "--raw", "-n", n, "--ignore-eos", *SHORT_OF_SLOTS, *reader, *more, check=check, text=False, stdin=b"", env=env)


# ---- injected ---------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("faults", ["short=1", "late=0.1,delay=3", "short=0.5,late=0.05,delay=2,seed=3"])
def test_what_only_takes_longer_changes_nothing(run, model, reader, tmp_path, faults):
    expected = answer(run, model, reader, "", n=40, prompt="There was once", check=True).stdout
    for prefetch in ("off", "router"):
        assert answer(run, model, reader, faults, "--prefetch", prefetch, n=40, prompt="There was once", check=True).stdout == expected
    text = tmp_path / "text"
    text.write_text("Once upon a time there was a model that was larger than memory. " * 4)
    records = []
    for f in ("", faults):
        out = tmp_path / f"{len(records)}.slref"
        run("eval", model, text, "--record", out, *SHORT_OF_SLOTS, *reader, env=os.environ | {"SLUICE_FAULTS": f})
        records.append(out.read_bytes())
    assert records[0] == records[1]
    done = run("bench", model, "--sequences", 4, "--ctx", 64, "--prefill", 16, "--warmup", 4, "--tokens", 4, "--repeat", 1, "--no-replay", *SHORT_OF_SLOTS, *reader, env=os.environ | {"SLUICE_FAULTS": faults})
    assert "faults are injected into reads of experts: " + faults in done.stderr


@pytest.mark.parametrize("kind, why", [("eio", "Input/output error"), ("never", "Connection timed out")])
def test_whoever_needs_a_bad_expert_fails_with_its_name_and_nobody_else(run, model, reader, kind, why):
    """Every expert of a layer in turn: some are wanted by the prompt, some by the answer, some not at all."""
    expected = answer(run, model, reader, "", check=True).stdout
    before, within, whole = 0, 0, 0
    for expert in range(0, 32, 1 if kind == "eio" else 4):
        started = time.monotonic()
        done = answer(run, model, reader, f"{kind}@3:{expert}", "--read-timeout", 0.2)
        assert time.monotonic() - started < 20
        said = done.stderr.decode()
        if done.returncode == 0:
            assert done.stdout == expected
            whole += 1
            continue
        assert done.returncode == 1
        assert [m.groups() for m in FAILED.finditer(said)] == [("3", str(expert))] and why in said, said
        text = done.stdout.removesuffix(b"\n")
        assert expected.startswith(text) and len(text) < len(expected)
        before += not text
        within += bool(text)
    assert within and (before and whole or kind == "never"), (before, within, whole)


@pytest.mark.parametrize("after", [0, 3, 40, 150])
def test_a_disk_that_is_gone_ends_the_answer_where_it_was(run, model, reader, after):
    expected = answer(run, model, reader, "", n=30, check=True).stdout
    done = answer(run, model, reader, f"gone={after}", n=30)
    assert done.returncode == 1
    assert FAILED.search(done.stderr.decode()) and "No such device" in done.stderr.decode()
    assert expected.startswith(done.stdout.removesuffix(b"\n")) and len(done.stdout) < len(expected)
    assert (after < 3) <= (done.stdout == b"")


@pytest.mark.parametrize("faults", ["eio=0.05", "never=0.01", "gone=50"])
@pytest.mark.parametrize("command", ["bench", "eval"])
def test_measuring_ends_with_the_reads_error(run, model, reader, tmp_path, faults, command):
    text = tmp_path / "text"
    text.write_text("Once upon a time there was a model that was larger than memory. " * 4)
    rest = {
        "bench": ["--sequences", 3, "--ctx", 64, "--prefill", 16, "--warmup", 4, "--tokens", 20, "--repeat", 1, "--no-replay"],
        "eval": [text, "--record", tmp_path / "out.slref"],
    }[command]
    done = run(command, model, *rest, "--read-timeout", 0.2, *SHORT_OF_SLOTS, *reader, check=False, env=os.environ | {"SLUICE_FAULTS": faults})
    assert done.returncode == 1 and FAILED.search(done.stderr), done.stderr
    assert not (tmp_path / "out.slref").exists()


def test_a_conversation_goes_on_after_a_turn_that_failed(run, model, models, reader):
    """What the first turn failed of is there the next time; the second answer is that of a conversation that began with it."""
    options = ["-n", 8, "--ignore-eos", "-q", *SHORT_OF_SLOTS, *reader]
    expected = run("chat", model, *options, stdin="And you?\n").stdout
    for expert in range(32):
        done = run("chat", model, *options, stdin="Hello.\nAnd you?\n", check=False, env=os.environ | {"SLUICE_FAULTS": f"eio@0:{expert}*1"})
        if done.returncode and done.stdout == expected:  # it failed in the prompt
            break
    else:
        pytest.fail("no expert of the first layer was wanted by the prompt")
    assert FAILED.search(done.stderr)


def test_a_slow_prefill_does_not_fill_a_log_with_what_it_waits_for(run, model):
    # what is outstanding changes ten times a second, and in a file no line is written over
    env = os.environ | {"SLUICE_FAULTS": "pace=1"}
    done = run("run", model, "--raw", "a b c d e f", "-n", 1, "--ctx", 128, *SHORT_OF_SLOTS, env=env)
    said = [line for line in done.stderr.splitlines() if "waiting for" in line]
    assert 1 <= len(said) <= 4, done.stderr
    assert all("reading experts" in line for line in said)


@pytest.mark.parametrize(
    "faults, why",
    [
        ("eoi=1", "eio, short, late, never, gone, delay, seed"),
        ("eio=2", "a share of all reads"),
        ("eio@9:1", "no such layer"),
        ("never@n.gguf:1", "no such file"),
        ("late@0:1*x", "number of reads"),
    ],
)
def test_a_list_that_makes_no_sense_is_one_line(run, model, faults, why):
    done = run("run", model, "x", "--raw", "-n", 1, check=False, env=os.environ | {"SLUICE_FAULTS": faults})
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr == done.stderr.splitlines(True)[0] and f'faults: "{faults}": ' in done.stderr and why in done.stderr, done.stderr


# ---- reads that never return ------------------------------------------------------------------------------------------------------------------


def start(sluice, model, reader, *more, faults="", n=2000, **options):
    args = [sluice, "run", model, "h", "--raw", "-n", n, "--ignore-eos", *SHORT_OF_SLOTS, *reader, *more]
    env = os.environ | {"SLUICE_FAULTS": faults} | options.pop("env", {})
    return subprocess.Popen([str(a) for a in args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, bufsize=0, **options)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_program_that_waits_for_a_read(sluice, model, reader, number):
    p = start(sluice, model, reader, "--read-timeout", 600, faults="never@3:5,never@3:6,never@3:7,never@3:8,never@3:9,never@2:1,never@2:2,never@2:3")
    seen = b""
    deadline = time.monotonic() + 30
    os.set_blocking(p.stdout.fileno(), False)
    while time.monotonic() < deadline:  # until nothing comes any more
        time.sleep(0.3)
        more = p.stdout.read() or b""
        if seen and not more or not more and time.monotonic() > deadline - 28:
            break
        seen += more
    assert p.poll() is None
    p.send_signal(number)
    said = p.communicate(timeout=10)[1].decode()
    assert p.returncode == (-signal.SIGTERM if number == signal.SIGTERM else 130), said


@pytest.mark.parametrize("command", ["bench", "eval"])
def test_the_first_signal_ends_a_measurement_that_waits_for_a_read(sluice, model, reader, tmp_path, command):
    text, record = tmp_path / "text", tmp_path / "r.slref"
    text.write_text("Once upon a time there was a model that was larger than memory. " * 4)
    what = {"bench": ["bench", model, "--ctx", 128, "--prefill", 64], "eval": ["eval", model, text, "--record", record]}[command]
    args = [sluice, *what, *SHORT_OF_SLOTS, *reader, "--read-timeout", 600]
    p = subprocess.Popen([str(a) for a in args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | {"SLUICE_FAULTS": "never=1"})
    time.sleep(1.5)
    assert p.poll() is None
    p.send_signal(signal.SIGINT)
    out, said = p.communicate(timeout=10)
    assert p.returncode == 130 and out == b"" and b"sluice: interrupted" in said, said
    assert not record.exists()


@pytest.fixture(scope="session")
def hang_read(repo, tmp_path_factory):
    out = tmp_path_factory.mktemp("hang") / "hang_read.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", out, repo / "tests/e2e/support/hang_read.c", "-ldl"], check=True)
    return out


def test_a_kernel_that_does_not_answer_does_not_keep_the_program_from_ending(sluice, model, hang_read):
    env = preloaded(hang_read) | {"HANG_AT": "400", "ASAN_OPTIONS": "verify_asan_link_order=0"}
    expected = start(sluice, model, READERS["pread-buffered"], n=60)
    whole = expected.communicate(timeout=60)[0]
    p = start(sluice, model, READERS["pread-buffered"], "--read-timeout", 0.3, n=60, env=env)
    out, said = p.communicate(timeout=30)
    assert p.returncode == 1
    assert FAILED.search(said.decode()) and "Connection timed out" in said.decode()
    assert said.decode().endswith("sluice: a read of the model's files does not return: ended without it\n"), said
    assert whole.startswith(out.removesuffix(b"\n"))


# ---- files that change under a program --------------------------------------------------------------------------------------------------------


def change_while_running(sluice, model, reader, change, n=60):
    """Changes the file when the answer has begun. Returns what an undisturbed run says, and this one's output, errors and status."""
    undisturbed = start(sluice, model, reader, n=n)
    expected = undisturbed.communicate(timeout=60)[0]
    assert undisturbed.returncode == 0
    p = start(sluice, model, reader, faults="late=1,delay=4", n=n)  # so that there is time
    first = p.stdout.read(1)
    change()
    rest, said = p.communicate(timeout=60)
    return expected, first + rest, said.decode(), p.returncode


@pytest.fixture
def copy(model, tmp_path):
    there = tmp_path / "m.gguf"
    shutil.copyfile(model, there)
    return there


def junk(path, n):
    path.write_bytes(bytes(n))
    return path


@pytest.mark.parametrize("how", ["replaced", "deleted"])
def test_a_file_that_is_replaced_or_deleted_is_read_on_as_it_was(sluice, reader, copy, tmp_path, how):
    other = junk(tmp_path / "other", copy.stat().st_size)
    expected, out, said, status = change_while_running(sluice, copy, reader, (lambda: other.rename(copy)) if how == "replaced" else copy.unlink)
    assert status == 0, said
    assert out == expected


@pytest.mark.parametrize("how", ["truncated", "emptied", "overwritten", "one byte"])
def test_a_file_that_is_written_to_gives_an_error_and_no_other_bytes(sluice, reader, copy, how):
    size = copy.stat().st_size

    def change():
        if how == "truncated":
            os.truncate(copy, size // 3)
        elif how == "emptied":
            os.truncate(copy, 0)
        else:
            with open(copy, "r+b") as f:
                f.seek(size // 3)
                f.write(bytes(1 if how == "one byte" else size - size // 3))

    expected, out, said, status = change_while_running(sluice, copy, reader, change)
    assert status == 1
    named = FAILED.search(said) or re.search(r"^sluice: layer \d+ expert \d+: .*m\.gguf: changed since it was opened", said, re.M)
    assert named and re.search("changed since it was opened|file ends at", said), said
    assert expected.startswith(out.removesuffix(b"\n")) and len(out) < len(expected)


def mounted(*command):
    if os.geteuid() != 0:
        skip_loudly("mounting needs root")
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode:
        skip_loudly(f"{command[0]}: {done.stderr.strip()}")


def test_a_directory_that_is_unmounted_is_read_on(sluice, reader, model, tmp_path):
    if "on" in reader:
        skip_loudly("a file system in memory has no O_DIRECT")
    mounted("mount", "-t", "tmpfs", "-o", "size=64m", "faults", tmp_path)
    there, lazily = tmp_path / "m.gguf", ["umount", "-l", str(tmp_path)]
    try:
        shutil.copyfile(model, there)
        expected, out, said, status = change_while_running(sluice, there, reader, lambda: subprocess.run(lazily, check=True))
        assert not there.exists()
        assert status == 0, said
        assert out == expected
    finally:
        if there.exists():
            subprocess.run(lazily, check=False)


def test_a_disk_that_is_taken_out_is_an_error(sluice, run, reader, model, tmp_path):
    """A file system on a loop device, whose own file is cut off: from there on the kernel says EIO."""
    image, there = tmp_path / "image", tmp_path / "mnt"
    there.mkdir()
    image.write_bytes(b"")
    os.truncate(image, 40 << 20)
    mounted("mkfs.ext4", "-q", image)
    mounted("mount", "-o", "loop", image, there)
    try:
        copy = there / "m.gguf"
        shutil.copyfile(model, copy)
        subprocess.run(["sync", "-f", str(there)], check=True)

        def take_out():
            os.truncate(image, 0)
            with open("/proc/sys/vm/drop_caches", "w") as f:  # what the page cache holds of it, the disk need not give
                f.write("1")

        expected, out, said, status = change_while_running(sluice, copy, reader, take_out)
        assert status == 1, said
        assert FAILED.search(said) and "Input/output error" in said, said
        assert expected.startswith(out.removesuffix(b"\n")) and len(out) < len(expected)
    finally:
        subprocess.run(["umount", "-l", str(there)], check=False)


# ---- memory of a pack that lies ---------------------------------------------------------------------------------------------------------------


def test_verified_reads_find_what_short_and_late_reads_would_hide(run, model, reader, tmp_path):
    pack = tmp_path / "p"
    run("pack", model, pack)
    expected = answer(run, model, reader, "", n=30, check=True).stdout
    got = answer(run, pack, reader, "short=1,late=0.05,delay=2", "--verify-reads", n=30, check=True).stdout
    assert got == expected
    done = answer(run, pack, reader, "eio@2:4,eio@2:5,eio@2:6,eio@2:7,eio@2:8", "--verify-reads", n=30)
    assert done.returncode == 1 and re.search(r"layer 2 expert [4-8]: .*/p/.+: read of", done.stderr.decode()), done.stderr
