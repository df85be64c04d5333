"""Fixtures of the end-to-end tests: paths, the binary, and the models that tests generate once and share.

Environment: SLUICE_BUILD (build directory, default <repository>/build), SLUICE_SHARED_DATA (default <repository>/../shared/data).
"""

import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
TOOLS = REPO / "tools"
sys.path.insert(0, str(TOOLS))


def skip_loudly(reason):
    """Skips; the end of the run names every skipped test and its reason, whatever the verbosity."""
    pytest.skip(reason)


def preloaded(library):
    """Environment in which programs load it first. Its folder apart: LD_PRELOAD takes a space for the end of a name."""
    return {"LD_PRELOAD": library.name, "LD_LIBRARY_PATH": str(library.parent)}


def pytest_terminal_summary(terminalreporter):
    for report in terminalreporter.stats.get("skipped", []):
        terminalreporter.write_line(f"SKIP: {report.nodeid}: {report.longrepr[2].removeprefix('Skipped: ')}", yellow=True)


@pytest.fixture(scope="session")
def repo():
    return REPO


@pytest.fixture(scope="session")
def golden():
    return REPO / "tests/golden"


BUILD = Path(os.environ.get("SLUICE_BUILD", REPO / "build")).resolve()
for _number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
    if signal.getsignal(_number) == signal.SIG_IGN:  # tests run in the background inherit that, a person's programs do not
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL)
os.environ["XDG_CACHE_HOME"] = str(BUILD / "cache")  # compiled kernels: not in the home of whoever runs the tests


@pytest.fixture(scope="session")
def build():
    return BUILD


@pytest.fixture(scope="session")
def shared_data():
    """Data that lies beside the repository. Skips where it is absent."""
    path = Path(os.environ.get("SLUICE_SHARED_DATA", REPO.parent / "shared/data"))
    if not path.is_dir():
        skip_loudly(f"no shared data at {path}")
    return path


@pytest.fixture(scope="session")
def sluice(build):
    """The path of the program. Its absence is a failure: these tests run after the build."""
    path = build / "sluice"
    if not os.access(path, os.X_OK):
        pytest.fail(f"{path} is not there: build first, or set SLUICE_BUILD")
    return path


@pytest.fixture(scope="session")
def run(sluice):
    """run(*args, stdin=..., check=True, timeout=60) -> CompletedProcess with text output. A crash by signal always fails."""

    def call(*args, stdin="", check=True, timeout=60, text=True, **options):
        command = [str(a) for a in (sluice, *args)]
        done = subprocess.run(command, input=stdin, capture_output=True, text=text, timeout=timeout, **options)
        said = f"{' '.join(command)}\nstatus {done.returncode}\nstdout: {done.stdout}\nstderr: {done.stderr}"
        assert done.returncode >= 0, f"killed by a signal: {said}"
        if check:
            assert done.returncode == 0, said
        return done

    return call


# ---- generated models, in <build>/models ------------------------------------------------------------------------------------------------------


def _tools_stamp():
    """Changes when a generator does."""
    sources = sorted([*TOOLS.glob("*.py"), *TOOLS.glob("lib/*.py")])
    return hashlib.sha256(b"".join(p.read_bytes() for p in sources)).hexdigest()


class Models:
    """Makes each model once per build directory and version of the tools. Several test processes may ask at once."""

    def __init__(self, directory):
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def make(self, name, command):
        """command(path) -> arguments of a tool that writes `path`. Returns the path."""
        path, stamp = self.directory / name, self.directory / f".{name}.stamp"
        with open(self.directory / ".lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if path.exists() and stamp.exists() and stamp.read_text() == _tools_stamp():
                return path
            fresh = self.directory / f"new-{name}"
            for old in (fresh, path):
                shutil.rmtree(old) if old.is_dir() else old.unlink(missing_ok=True)
            subprocess.run([sys.executable, *map(str, command(fresh))], check=True)
            fresh.rename(path)
            stamp.write_text(_tools_stamp())
        return path


@pytest.fixture(scope="session")
def models(build):
    return Models(build / "models")


def _stories(models, shared_data, name, option, *more):
    source = [TOOLS / "llama2c_to_hf.py", shared_data / "stories260K.bin", shared_data / "tok512.bin"]
    return models.make(name, lambda path: [*source, option, path, *more])


@pytest.fixture(scope="session")
def stories_hf(models, shared_data):
    return _stories(models, shared_data, "stories", "--hf")


@pytest.fixture(scope="session")
def stories_gguf(models, shared_data):
    return _stories(models, shared_data, "stories.gguf", "--gguf")


@pytest.fixture(scope="session")
def stories_moe_hf(models, shared_data):
    """As stories, every FFN split into 4 experts."""
    return _stories(models, shared_data, "stories-moe", "--hf", "--experts", 4)


@pytest.fixture(scope="session")
def stories_moe_gguf(models, shared_data):
    return _stories(models, shared_data, "stories-moe.gguf", "--gguf", "--experts", 4)


@pytest.fixture(scope="session")
def stories_moe_q8_gguf(models, shared_data):
    """Split, Q8_0 matrices."""
    return _stories(models, shared_data, "stories-moe-q8_0.gguf", "--gguf", "--experts", 4, "--type", "Q8_0")


@pytest.fixture(scope="session")
def stories_text(golden):
    """What every stories checkpoint says greedily after BOS in 256 tokens."""
    return (golden / "stories260k.txt").read_text()


@pytest.fixture(scope="session")
def smollm2():
    """SmolLM2-135M-Instruct Q4_1, the dense model."""
    from lib import smollm2 as package

    try:
        return package.find()
    except SystemExit as e:
        skip_loudly(str(e))


@pytest.fixture(scope="session")
def demo_model(models, smollm2):
    """smollm2 with every FFN split into 16 experts."""
    return models.make("demo.gguf", lambda path: [TOOLS / "split_experts.py", path, "--input", smollm2])


@pytest.fixture(scope="session")
def kill_at(repo, tmp_path_factory):
    """The path of a library that kills a program at its Nth change of a file."""
    out = tmp_path_factory.mktemp("kill") / "kill_at.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", out, repo / "tests/e2e/support/kill_at.c", "-ldl"], check=True)
    return out
