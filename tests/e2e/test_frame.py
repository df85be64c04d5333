"""What comes with the program: completions, manual, installation, and the checks themselves."""

import os
import re
import shutil
import subprocess
import sys

import pytest


def options_of(run, command):
    return re.findall(r"--([a-z][a-z0-9-]*)", "\n".join(line[:32] for line in run("help", command).stdout.splitlines() if line.startswith("  ")))


def commands(run):
    return [c for c in re.findall(r"^  ([a-z]+) +\S", run("help").stdout, re.M) if c != "help"]


@pytest.mark.parametrize("shell, check", [("bash", ["bash", "-n"]), ("zsh", ["zsh", "-n"]), ("fish", ["fish", "--no-execute"])])
def test_completions_name_every_option_and_parse(run, tmp_path, shell, check):
    text = run("completions", shell).stdout
    for command in commands(run):
        assert command in text
        for option in options_of(run, command):
            assert re.search(rf"(--|-l ){option}\b", text), f"{command} --{option}"
    if shutil.which(check[0]):  # zsh and fish need not be installed
        (tmp_path / "script").write_text(text)
        subprocess.run([*check, tmp_path / "script"], check=True)


def test_bash_completion_completes(run, tmp_path):
    (tmp_path / "sluice.bash").write_text(run("completions", "bash").stdout)
    ask = 'source "$1"; COMP_WORDS=(sluice run m.gguf {}); COMP_CWORD={}; _sluice; echo "${{COMPREPLY[@]}}"'

    def complete(words, at):
        script = ask.format(words, at)
        return subprocess.run(["bash", "-c", script, "bash", tmp_path / "sluice.bash"], check=True, capture_output=True, text=True).stdout.split()

    assert complete("--mem", 3) == ["--memory"]
    assert complete("--kv-type q", 4) == ["q8_0"]


def test_first_words_are_completed(run, tmp_path):
    (tmp_path / "sluice.bash").write_text(run("completions", "bash").stdout)

    def complete(command, word=""):
        script = 'source "$1"; COMP_WORDS=(sluice "$2" "$3"); COMP_CWORD=2; _sluice; echo "${COMPREPLY[@]}"'
        return subprocess.run(["bash", "-c", script, "bash", tmp_path / "sluice.bash", command, word], check=True, capture_output=True, text=True,
                              cwd=tmp_path).stdout.split()

    shapes = [line.split()[0] for line in run("synth", "list").stdout.splitlines()]
    assert complete("help") == commands(run) and complete("help", "be") == ["bench"]
    assert complete("synth") == ["list", *shapes] and complete("synth", "--fo") == ["--format", "--force"]
    assert complete("completions") == ["bash", "zsh", "fish"] and complete("msl", "t") == ["trace"]
    assert complete("run") == ["sluice.bash"]  # files
    for shell in ("zsh", "fish"):
        text = run("completions", shell).stdout
        assert " ".join(["list", *shapes]) in text and "check run trace" in text


def rows_of(run, command):
    """Options of a command as its help has them: (name, argument or "")."""
    found = re.findall(r"^  (?:-\w, |    )--([a-z][a-z0-9-]*)(?: (\S+))?", run("help", command).stdout, re.M)
    return {(name, "FORMAT" if (command, name) == ("synth", "format") else argument) for name, argument in found}  # a list of its own there


def manual_rows(repo):
    """Options of the manual: {section: {(name, argument)}}."""
    rows, section = {}, None
    for line in (repo / "docs/sluice.1").read_text().replace("\\-", "-").splitlines():
        heading = re.match(r"\.S[SH] (\S+)", line)
        option = re.match(r"(?:\\fB-\w\\fR, )?\\fB--([a-z0-9-]+)\\fR(?: \\fI(\S+)\\fR)?$", line)
        section = heading.group(1) if heading else section
        if option:
            rows.setdefault(section, set()).add((option.group(1), option.group(2) or ""))
    return rows


def test_manual_names_every_command_and_option_and_no_other(run, repo):
    """With their arguments; an option in a command's own section is one of that command."""
    page, rows = (repo / "docs/sluice.1").read_text(), manual_rows(repo)
    real = {c: rows_of(run, c) for c in commands(run)}
    named = set().union(*rows.values())
    assert len(real) > 10 and len(real["run"]) > 40
    for command, options in real.items():
        assert re.search(rf"^\.SS {command}\b", page, re.M), command
        assert options - named == set(), command
        assert rows.get(command, set()) - options == set(), command
    assert named - set().union(*real.values()) == {("version", "")}


def variables_read(repo):
    """Names of environment variables in the source: given to getenv, to what calls it, or defined for it."""
    names = set()
    for path in sorted(repo.glob("src/**/*.[ch]")):
        text = path.read_text()
        names |= set(re.findall(r'(?:getenv|gpu_env_digit)\("(\w+)"', text)) | set(re.findall(r'#define \w+_VARIABLE +"(\w+)"', text))
        if path.name == "locate_stores.c":
            names |= set(re.findall(r'\{"([A-Z_]+)", (?:NULL|")', text))
    return names


def test_manual_names_every_variable_that_is_read_and_no_other(repo):
    section = (repo / "docs/sluice.1").read_text().split(".SH ENVIRONMENT")[1].split(".SH ")[0]
    named = {n for line in re.findall(r"^\.B ([A-Z_, ]+)$", section, re.M) for n in line.split(", ")}
    read = variables_read(repo)
    assert {"HF_HUB_CACHE", "SLUICE_DEBUG", "SLUICE_CUDA_LIBRARY", "SLUICE_METAL_SERVICE"} <= read
    assert named == read


@pytest.mark.parametrize("name, value, expected", [
    ("SLUICE_DEBUG", "abc", 'sluice: SLUICE_DEBUG: "abc", expected a number from 0 to 5\n'),
    ("SLUICE_DEBUG", "7", 'sluice: SLUICE_DEBUG: "7", expected a number from 0 to 5\n'),
    ("SLUICE_SYSTEM_ROOT", "/no/such", 'sluice: SLUICE_SYSTEM_ROOT: "/no/such" is not a directory\n'),
    ("SLUICE_CUDA_LIBRARY", "/no/such", "sluice: no NVIDIA driver here: SLUICE_CUDA_LIBRARY: /no/such: "),
    ("SLUICE_METAL_LIBRARY", "/no/such", "sluice: Metal is not on this system: /no/such: "),
])
def test_a_variable_that_makes_no_sense_is_not_passed_over(run, repo, name, value, expected):
    device = {"SLUICE_CUDA_LIBRARY": "cuda", "SLUICE_METAL_LIBRARY": "metal"}.get(name, "soft")
    model = repo / "tests/golden/arch/qwen3_moe-mlx4"
    done = run("run", model, "x", "--raw", "-n", 1, "--device", device, check=False, env={**os.environ, name: value})
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith(expected) and done.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "docs/architecture.md", "docs/metal.md", "docs/soft.md", "docs/faults.md", "docs/performance.md"])
def test_documents_name_files_and_functions_that_are_there(repo, name):
    """A walk through the code that names what was renamed leads nowhere."""
    text = (repo / name).read_text()
    source = [p for part in ("src", "include", "tests", "tools", "bench", "examples", "cmake") for p in (repo / part).rglob("*") if p.is_file()]
    words = {w for p in source if p.suffix in {".c", ".h", ".metal", ".py", ".sh", ".cmake", ".txt"} for w in re.findall(r"\w+", p.read_text(errors="ignore"))}
    words |= {f"{kind}_{p.stem}" for p in source for kind in ("bench", "example") if p.parent.name in ("bench", "examples")}
    quoted = " ".join(re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.S)))
    functions = set(re.findall(r"(?<![\w/.*<-])[a-z]+_\w*[a-z0-9](?![\w*<])", quoted))
    assert functions - words == set()
    files = set(re.findall(r"(?<![\w/])(?:src|tests|tools|bench|cmake|include|examples|docs)/[\w./-]*\w(?![\w*<])", text))
    assert {f for f in files if not (repo / f).exists()} == set()
    names = {p.name for p in source}
    assert {f for f in re.findall(r"(?<![\w./*-])[a-z][a-z0-9_]+\.(?:c|h|metal)\b", text)} - names == set()


def test_manual_renders_without_warnings(repo):
    if not shutil.which("man"):
        pytest.skip("man is not installed")
    done = subprocess.run(["man", "--warnings", "-E", "UTF-8", "-l", repo / "docs/sluice.1"], capture_output=True, text=True, check=True,
                          env={"PATH": "/usr/bin:/bin", "MANWIDTH": "80", "MANROFFSEQ": "", "LC_ALL": "C.UTF-8"})
    assert done.stderr == "" and "--memory" in done.stdout


def test_installed_library_compiles_and_runs_an_embedder(build, repo, tmp_path, stories_gguf):
    if not (build / "build.ninja").exists():
        pytest.skip(f"{build} is not a build tree")
    subprocess.run(["cmake", "--install", build, "--prefix", tmp_path / "usr"], check=True, capture_output=True)
    for part in ["bin/sluice", "share/man/man1/sluice.1", "share/bash-completion/completions/sluice", "include/sluice/sluice.h"]:
        assert (tmp_path / "usr" / part).exists(), part
    pc = next((tmp_path / "usr").rglob("sluice.pc"))
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "sluice"], check=True, capture_output=True, text=True,
                           env={"PATH": "/usr/bin:/bin", "PKG_CONFIG_PATH": str(pc.parent)}).stdout.split()
    program = tmp_path / "embed.c"
    program.write_text("""
#include <sluice/sluice.h>
#include <stdio.h>
int main(int argc, char **argv) {
    if (argc != 2)
        return 2;
    sl_error err = {0};
    sl_engine_options o = SL_ENGINE_OPTIONS_INIT;
    o.model = argv[1];
    sl_engine *e = sl_engine_open(&o, &err);
    sl_engine_info i = {.size = sizeof i};
    if (!e || !sl_engine_get_info(e, &i)) { fprintf(stderr, "%s\\n", err.message); return 1; }
    printf("%s %s\\n", sl_version(), i.architecture);
    sl_engine_close(e);
    return 0;
}
""")
    subprocess.run(["gcc", "-std=c17", "-Wall", "-Wextra", "-Werror", program, "-o", tmp_path / "embed", *flags], check=True)
    done = subprocess.run([tmp_path / "embed", stories_gguf], check=True, capture_output=True, text=True,
                          env={"LD_LIBRARY_PATH": str(pc.parent.parent)})
    assert done.stdout.split()[1] == "llama"


def check_layers(root):
    return subprocess.run([sys.executable, root / "tools/check_layers.py"], capture_output=True, text=True)


@pytest.mark.parametrize("file, line, complaint", [
    ("src/base/bad.c", '#include "engine/engine.h"', "base may not include engine"),
    ("src/text/bad.c", '#include "ops/ops.h"', "text may not include ops"),
    ("src/cli/bad.c", '#include "engine/internal.h"', "cli may not include"),
    ("src/model/bad.c", '#include "sluice/sluice.h"', "is not for model"),
    ("src/quant/bad.c", "void f(void) { abort(); }", "only src/cli"),
    ("src/other/bad.c", "", "not in cmake/parts.cmake"),
])
def test_layer_check_sees_a_breach(repo, tmp_path, file, line, complaint):
    for part in ["cmake", "tools", "include"]:
        shutil.copytree(repo / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(repo / "src", tmp_path / "src")
    assert check_layers(tmp_path).returncode == 0
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(line + "\n")
    done = check_layers(tmp_path)
    assert done.returncode == 1 and complaint in done.stdout


def test_architectures_walk_names_functions_that_exist(repo):
    text = (repo / "docs/architecture.md").read_text()
    walk = text[text.index("## The walk") : text.index("## Numbers")]
    named = {n for n in re.findall(r"`([a-z_0-9]+)`", walk) if "_" in n or n in ("main", "follow", "begin", "next", "done")}
    sources = "\n".join(p.read_text() for p in sorted((repo / "src").glob("*/*.[ch]")) + sorted((repo / "include").glob("*/*.h")))
    missing = sorted(n for n in named if not re.search(rf"\b{n}\b\s*\(|\b{n}\b\s*;|\*{n}\)", sources))
    assert len(named) > 35 and not missing, missing


def test_examples_run(build, stories_gguf):
    text = "Once upon a time"
    for name, arguments in [("generate", [stories_gguf, text]), ("logits", [stories_gguf, text, " there", " in"])]:
        if not (build / f"example_{name}").exists():
            pytest.skip("the examples are not built")
        done = subprocess.run([build / f"example_{name}", *arguments], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and done.stdout.strip(), (name, done.stderr)
    broken = subprocess.run([build / "example_generate", "/nowhere.gguf", "x"], capture_output=True, text=True)
    assert broken.returncode != 0 and "/nowhere.gguf" in broken.stderr and broken.stdout == ""
