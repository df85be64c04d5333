"""sluice doctor: what it measures, keeps and leaves; and that engines read as it found best, or as they are told."""

import json
import os
import signal
import subprocess
import time

import pytest


@pytest.fixture
def home(build, tmp_path_factory):
    """A cache folder of its own, and a directory on the disk of the build, where models are made too."""
    base = build / "doctor"
    base.mkdir(exist_ok=True)
    name = tmp_path_factory.mktemp("doctor").name
    folder = base / f"{os.getpid()}-{name}"
    (folder / "dir").mkdir(parents=True)
    yield folder
    subprocess.run(["rm", "-r", folder], check=True)


@pytest.fixture
def doctor(run, home):
    def call(*args, **options):
        environment = {**os.environ, "XDG_CACHE_HOME": str(home / "cache"), **options.pop("env", {})}
        return run(*args, env=environment, **options)

    return call


@pytest.fixture
def model(run, home):
    path = home / "tiny.gguf"
    run("synth", "small-qwen3-moe", path, "--layers", 2, "--experts", 16)
    return path


def stored_file(home):
    files = list((home / "cache/sluice").glob("disk-*.json"))
    assert len(files) == 1, files
    return files[0]


def info(doctor, model, *args):
    return json.loads(doctor("info", model, "--json", *args).stdout)


def test_a_directory_is_measured_and_models_on_its_disk_are_read_so(doctor, home, model):
    assert "not calibrated" in info(doctor, model)["reader_why"]
    found = json.loads(doctor("doctor", home / "dir", "--json").stdout)
    assert list((home / "dir").iterdir()) == []
    disk, chosen = found["disk"], found["disk"]["chosen"]
    assert found["machine"]["memory_read"] > 0 and found["machine"]["cores"] >= 1 and found["model"] is None
    assert chosen in disk["tried"] or chosen["bytes_per_second"] > disk["usual"]["bytes_per_second"]
    assert chosen["bytes_per_second"] > 0 and disk["cached_bytes_per_second"] > 0 and len(disk["sizes"]) == 4
    assert disk["stored"] == str(stored_file(home))
    i = info(doctor, model)
    assert "calibrated" in i["reader_why"] and i["reader"].startswith(chosen["reader"])
    assert (i["read_depth"], i["read_piece"], i["read_direct"]) == (chosen["depth"], chosen["piece_bytes"], chosen["direct"])
    assert "as calibrated for this disk" in doctor("info", model).stdout


def test_why_reads_pass_by_the_page_cache_or_go_through_it_is_said(doctor, home):
    disk = json.loads(doctor("doctor", home / "dir", "--json").stdout)["disk"]
    assert disk["page_cache"].startswith("past the page cache (O_DIRECT), " if disk["chosen"]["direct"] else "through the page cache, because ")
    assert disk["direct_possible"] or "refuses O_DIRECT" in disk["page_cache"]
    lines = [line.strip() for line in doctor("doctor", home / "dir").stdout.splitlines() if line.strip().startswith("Reads go ")]
    assert len(lines) == 1 and " the page cache" in lines[0]


def test_a_model_is_measured_with_its_own_experts(doctor, home, model):
    text = doctor("doctor", model).stdout
    assert "this model's experts" in text and f"{model}: least memory" in text
    assert text.count("\nuse ") == 1 and "Kept in" in text
    assert stored_file(home).stat().st_size < 64 << 10


def keep(home, doctor, model, **chosen):
    """A result as if it had been measured: the disk's name is taken from a real one."""
    doctor("doctor", home / "dir", "--json")
    path = stored_file(home)
    document = json.loads(path.read_text())
    document["chosen"].update(chosen)
    path.write_text(json.dumps(document))
    return path


def test_what_is_stored_is_used_each_part_can_be_forced_and_tokens_stay(doctor, home, model):
    ask = ("run", model, "hello", "--raw", "-n", 8, "--ignore-eos", "--max-slots", 8)
    before = doctor(*ask).stdout
    path = keep(home, doctor, model, reader="pread", direct=False, depth=3, piece_bytes=8192)
    i = info(doctor, model)
    assert i["reader"] == "pread, buffered" and i["read_depth"] == 3 and i["read_piece"] == 8192
    assert doctor(*ask).stdout == before
    assert info(doctor, model, "--read-depth", 5)["read_depth"] == 5
    assert info(doctor, model, "--read-piece", "64K")["read_piece"] == 65536
    forced = info(doctor, model, "--direct", "on")
    assert "O_DIRECT" in forced["reader"] and forced["read_depth"] == 0 and "calibrated for pread" in forced["reader_why"]
    assert info(doctor, model, "--buffered")["reader"] == "pread, buffered"
    for damage in ("", "{", "[]", path.read_text().replace('"depth": 3', '"depth": 3000'), path.read_text().replace('"pread"', '"x"')):
        path.write_text(damage)
        done = doctor("info", model)
        assert done.stderr.count("\n") == 1 and path.name in done.stderr and "defaults" in done.stdout


def test_wrong_values_are_refused_in_one_line(doctor, model, home):
    for args, says, status in [(("--direct", "maybe"), "auto|on|off", 2), (("--read-piece", "5000"), "5000", 1), (("--read-piece", "x"), "size", 2),
                               (("--direct", "on", "--buffered"), "exclude", 1)]:
        done = doctor("info", model, *args, check=False)
        assert done.returncode == status and says in done.stderr and done.stdout == ""
        assert done.stderr.count("\n") == 1, done.stderr
    done = doctor("doctor", home / "nowhere", check=False)
    assert done.returncode == 1 and "nowhere" in done.stderr and done.stderr.count("\n") == 1


def test_an_interrupt_leaves_nothing(sluice, home):
    environment = {**os.environ, "XDG_CACHE_HOME": str(home / "cache")}
    with subprocess.Popen([sluice, "doctor", home / "dir"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as p:
        time.sleep(1)
        p.send_signal(signal.SIGINT)
        out, _ = p.communicate(timeout=60)
    assert p.returncode in (130, -signal.SIGINT) and out == b""
    assert list((home / "dir").iterdir()) == []
    assert [p.name for p in (home / "cache").rglob("*.json") if not p.name.startswith("machine-")] == [], "memory had been measured, the disk had not"


def test_what_hurts_is_said(doctor, home):
    root = home / "root"
    (root / "proc/self").mkdir(parents=True)
    (root / "sys/kernel/mm/transparent_hugepage").mkdir(parents=True)
    (root / "sys/kernel/mm/transparent_hugepage/enabled").write_text("always madvise [never]\n")
    device = (home / "dir").stat().st_dev
    (root / "proc/self/mountinfo").write_text(f"9 1 {os.major(device)}:{os.minor(device)} / /far rw - nfs4 server:/x rw\n")
    done = doctor("doctor", home / "dir", "--json", env={"SLUICE_SYSTEM_ROOT": str(root), "PATH": "/nowhere"})
    warnings = "\n".join(json.loads(done.stdout)["warnings"])
    assert "network file system (nfs4)" in warnings and "huge pages are off" in warnings and "no clang++" in warnings


def test_a_dense_model_reads_nothing(doctor, repo, home):
    text = doctor("doctor", repo / "tests/golden/arch/llama").stdout
    assert "a dense model" in text and [p.name.split("-")[0] for p in (home / "cache/sluice").iterdir()] == ["machine"]
