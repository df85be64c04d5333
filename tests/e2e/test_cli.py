"""The program as a user runs it: commands, options, streams, exit status."""

import json
import os
import re
import resource
import signal
import subprocess
import time
from pathlib import Path

import pytest

from conftest import skip_loudly

PROMPT = "Once upon a time"


@pytest.fixture(scope="session")
def tiny(run, build):
    """A random checkpoint with a chat template: GGUF, qwen3_moe."""
    path = build / "models" / "synth-tiny.gguf"
    path.parent.mkdir(exist_ok=True)
    run("synth", "tiny-qwen3-moe", path, "--force")
    return path


@pytest.fixture(scope="session")
def small(run, build):
    """As tiny, with enough experts to stream: 6 layers of 32."""
    path = build / "models" / "synth-small.gguf"
    path.parent.mkdir(exist_ok=True)
    run("synth", "small-qwen3-moe", path, "--force")
    return path


def info(run, model, *options):
    return json.loads(run("info", model, "--json", *options).stdout)


def least_budget(run, model, *options):
    """What info calls the least, and 2 MiB for what differs between processes: their own share is measured."""
    return info(run, model, *options)["least_memory"] + (2 << 20)


# ---- memory for KV ----------------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def wide_kv(run, build):
    """Much KV per token: a few MiB of budget are a few hundred tokens."""
    path = build / "models" / "synth-kv.gguf"
    path.parent.mkdir(exist_ok=True)
    run("synth", "small-qwen3-moe", path, "--layers", 12, "--force")
    return path


def test_prompt_that_cannot_fit_in_memory_names_what_would_do(run, wide_kv, tmp_path):
    ids = "x" * 2040  # a token each, or nearly
    (tmp_path / "long.txt").write_text(ids)
    least = least_budget(run, wide_kv)
    args = ["run", wide_kv, "--file", tmp_path / "long.txt", "--raw", "-n", 2]
    done = run(*args, "--memory", least, check=False)
    assert done.returncode == 1 and done.stdout == "" and done.stderr.count("\n") == 1
    said = re.search(r"prompt of (\d+) tokens.* holds (\d+) at most; one of ([\d.]+) MiB would do \(--memory;.*--ctx", done.stderr)
    assert said and int(said[2]) < int(said[1]), done.stderr
    info_at = info(run, wide_kv, "--memory", least)
    assert 0 < info_at["least_kv_tokens"] <= info_at["kv_tokens"] < int(said[1])
    assert f"for {info_at['least_kv_tokens']} tokens of context" in run("info", wide_kv, "--memory", least).stdout
    run(*args, "--memory", f"{int(float(said[3]))}M")


def test_answer_that_fills_the_memory_ends_with_length(run, wide_kv):
    least = least_budget(run, wide_kv)
    done = run("run", wide_kv, "hello", "--raw", "--memory", least, "--ignore-eos", "--json", "-n", 2000)
    doc = json.loads(done.stdout)
    assert doc["finish"] == "length" and 0 < doc["completion_tokens"] < 2000 and len(doc["tokens"]) == doc["completion_tokens"]
    assert "the memory budget holds no more" in done.stderr and "--memory" in done.stderr


# ---- version, help ----------------------------------------------------------------------------------------------------------------------------


def test_version_is_the_projects(run, repo):
    number = re.search(r"project\(sluice VERSION (\S+)", (repo / "CMakeLists.txt").read_text()).group(1)
    assert run("--version").stdout == f"sluice {number}\n"


def test_help_names_every_command_and_each_has_help(run):
    text = run("help").stdout
    names = re.findall(r"^  ([a-z]+) +\S", text, re.M)
    assert {"run", "chat", "info", "plan", "doctor", "bench", "eval", "pack", "routes", "tokenize", "synth", "msl", "completions", "help"} == set(names)
    for name in names:
        if name != "help":
            shown = run("help", name).stdout
            assert shown.startswith(f"usage: sluice {name} ") and "--help" in shown
            assert run(name, "--help").stdout == shown


def test_no_command_shows_help_and_fails(run):
    done = run(check=False)
    assert done.returncode == 2 and done.stdout == "" and "usage:" in done.stderr


# ---- info -------------------------------------------------------------------------------------------------------------------------------------


def test_info_says_what_the_checkpoint_is(run, repo):
    i = info(run, repo / "tests/golden/arch/qwen3_moe")
    config = json.loads((repo / "tests/golden/arch/qwen3_moe/config.json").read_text())
    assert i["architecture"] == "qwen3_moe" and i["container"] == "safetensors" and "BF16" in i["formats"]
    for ours, theirs in [("hidden_size", "hidden_size"), ("layers", "num_hidden_layers"), ("experts", "num_experts"), ("vocab", "vocab_size"),
                         ("experts_per_token", "num_experts_per_tok"), ("heads", "num_attention_heads"), ("head_dim", "head_dim")]:
        assert i[ours] == config[theirs], ours
    shards = sum(p.stat().st_size for p in (repo / "tests/golden/arch/qwen3_moe").glob("*.safetensors"))
    assert 0.9 * shards < i["file_bytes"] <= shards
    assert i["resident_bytes"] + i["expert_bytes"] <= i["file_bytes"] + 4096
    assert 0 < i["least_memory"] <= i["suggested_memory"] <= i["full_memory"]
    assert i["approximation"] == ""


def test_info_of_a_dense_model_has_no_experts(run, stories_gguf):
    i = info(run, stories_gguf)
    assert (i["architecture"], i["experts"], i["expert_bytes"]) == ("llama", 0, 0)
    assert "none: a dense model" in run("info", stories_gguf).stdout


def test_info_names_an_approximation(run, small):
    i = info(run, small, "--experts-per-token", 2)
    assert i["experts_per_token"] == 2 and i["approximation"]
    assert "approximation" in run("info", small, "--experts-per-token", 2).stdout


# ---- run --------------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["stories_hf", "stories_gguf", "stories_moe_hf", "stories_moe_gguf"])
def test_greedy_text_is_the_published_sample(run, request, kind, stories_text):
    model = request.getfixturevalue(kind)
    text = run("run", model, PROMPT, "--raw", "-n", 300, "--numeric", "exact").stdout
    assert (PROMPT + text).startswith(stories_text)


def test_greedy_text_under_the_least_budget_is_the_same(run, small):
    least = least_budget(run, small, "--ctx", 256)
    whole = json.loads(run("run", small, "hello", "-n", 100, "--ctx", 256, "--json").stdout)
    streamed = json.loads(run("run", small, "hello", "-n", 100, "--ctx", 256, "--memory", least, "--json").stdout)
    assert streamed["tokens"] == whole["tokens"] and streamed["text"] == whole["text"]
    assert whole["figures"]["expert_misses"] < streamed["figures"]["expert_misses"]
    assert streamed["figures"]["memory_peak"] <= streamed["figures"]["memory_budget"] <= least


def test_stories_under_the_least_budget(run, stories_moe_gguf, stories_text):
    least = least_budget(run, stories_moe_gguf, "--ctx", 320, "--numeric", "exact")
    text = run("run", stories_moe_gguf, PROMPT, "--raw", "-n", 300, "--numeric", "exact", "--ctx", 320, "--memory", least).stdout
    assert (PROMPT + text).startswith(stories_text)


def test_below_the_least_budget_the_error_names_the_least(run, small):
    least = info(run, small, "--ctx", 256)["least_memory"]
    done = run("run", small, "hello", "--ctx", 256, "--memory", least * 7 // 10, check=False)
    assert done.returncode == 1 and done.stdout == "" and done.stderr.count("\n") == 1
    # The process's own share is measured, and differs a little from run to run.
    named = re.search(r"at least (\d+) bytes \(", done.stderr)
    assert named and abs(int(named[1]) - least) <= 3 * 2**20, done.stderr


def test_prompt_from_argument_file_and_stdin_is_the_same(run, stories_gguf, tmp_path):
    file = tmp_path / "prompt.txt"
    file.write_text(PROMPT)
    args = ["--raw", "-n", 20]
    texts = {
        run("run", stories_gguf, PROMPT, *args).stdout,
        run("run", stories_gguf, "-f", file, *args).stdout,
        run("run", stories_gguf, *args, stdin=PROMPT).stdout,
        run("run", stories_gguf, "-", *args, stdin=PROMPT).stdout,
        run("run", *args, "-f", "-", "--", stories_gguf, stdin=PROMPT).stdout,
    }
    assert len(texts) == 1 and texts.pop().strip()


def test_final_newline_is_left_out_of_a_message_only(run, tiny, tmp_path):
    file = tmp_path / "prompt.txt"
    file.write_text("hello\n")

    def tokens(*args, **more):
        return json.loads(run("run", tiny, "-n", 1, "--json", *args, **more).stdout)["prompt_tokens"]

    assert tokens("hello") == tokens("-f", file) == tokens(stdin="hello\n") < tokens(stdin="hello\n\n")
    assert tokens("hello", "--raw") < tokens("-f", file, "--raw") == tokens("--raw", stdin="hello\n")
    ids = {text: run("tokenize", tiny, stdin=text).stdout for text in ("hello", "hello\n")}
    assert ids["hello\n"] != ids["hello"] == run("tokenize", tiny, "hello").stdout
    assert run("tokenize", tiny, "-f", file).stdout == ids["hello\n"]


def test_json_is_one_document(run, stories_gguf):
    done = run("run", stories_gguf, PROMPT, "--raw", "-n", 12, "--json", "--logprobs", 3)
    doc = json.loads(done.stdout)
    assert doc["finish"] == "length" and doc["completion_tokens"] == 12 == len(doc["tokens"]) == len(doc["logprobs"])
    for token, entry in zip(doc["tokens"], doc["logprobs"]):
        assert entry["id"] == token == entry["top"][0]["id"] and len(entry["top"]) == 3
        assert entry["logprob"] == pytest.approx(entry["top"][0]["logprob"], abs=1e-5) and entry["logprob"] <= 0
    assert doc["figures"]["numeric"] == "q8" and doc["figures"]["decode_tokens"] > 0
    assert done.stderr == ""


def test_timing_prints_every_figure_on_stderr(run, small):
    done = run("run", small, "hello", "-n", 10, "--timing")
    for word in ["prefill", "decode", "tokens/s", "hit rate", "read", "peak", "budget", "numeric q8", "experts per token"]:
        assert word in done.stderr, word
    assert "tokens/s" not in done.stdout


def test_timing_names_the_layers_that_waited_most_and_layers_shows_all(run, small):
    ask = ("run", small, "hello", "-n", 10, "--ignore-eos", "--max-slots", 30)
    done = run(*ask, "--timing")
    (line,) = [x for x in done.stderr.splitlines() if x.startswith("layers ")]
    found = re.fullmatch(r"layers    6 with experts, hit rates ([0-9.]+) to ([0-9.]+) %; per token ([0-9.]+) read, ([0-9.]+) ms waited; most by layer (.*)", line)
    worst = re.findall(r"(\d+) \(([0-9.]+) %, ([0-9.]+), ([0-9.]+) ms\)", found[5])
    least, most, read, waited = (float(x) for x in found.groups()[:4])
    assert 1 <= len(worst) <= 3 and len({w[0] for w in worst}) == len(worst) and all(least <= float(w[1]) <= most for w in worst)
    waits = [float(w[3]) for w in worst]
    assert waits == sorted(waits, reverse=True) and sum(waits) <= waited + 0.05 and sum(float(w[2]) for w in worst) <= read + 0.1
    assert "ms waited   guessed" not in done.stderr, "no table unasked"
    whole = run(*ask, "--layers").stderr
    rows = re.findall(r"^ +(\d+) +([0-9.]+) %", whole[whole.index("ms waited   guessed") :], re.M)
    assert [int(r[0]) for r in rows] == list(range(6)) and "tokens/s" in whole
    figures = json.loads(run(*ask, "--json", "--layers").stdout)["figures"]
    assert [x["layer"] for x in figures["layers"]] == list(range(6))
    for total, part in [("expert_hits", "hits"), ("expert_misses", "misses"), ("bytes_read", "bytes_read")]:
        assert sum(x[part] for x in figures["layers"]) == figures[total]
    assert json.loads(run(*ask, "--json").stdout)["figures"]["layers"] is None


def test_sampling_depends_on_the_seed_only(run, stories_gguf):
    def sample(*options):
        return run("run", stories_gguf, PROMPT, "--raw", "-n", 40, "--temp", 1.2, "--top-p", 0.95, *options).stdout

    assert sample("--seed", 7) == sample("--seed", 7, "--threads", 1)
    assert sample("--seed", 7) != sample("--seed", 8)


def test_stop_string_ends_the_text_before_it(run, stories_gguf):
    whole = run("run", stories_gguf, PROMPT, "--raw", "-n", 60).stdout
    doc = json.loads(run("run", stories_gguf, PROMPT, "--raw", "-n", 60, "--stop", "Lily", "--json").stdout)
    assert "Lily" in whole and doc["text"] == whole[: whole.index("Lily")] and doc["finish"] == "stop"


def test_logit_bias_forbids_a_token(run, stories_gguf):
    first = json.loads(run("run", stories_gguf, PROMPT, "--raw", "-n", 1, "--json").stdout)["tokens"][0]
    doc = json.loads(run("run", stories_gguf, PROMPT, "--raw", "-n", 1, "--json", "--logit-bias", f"{first}=-1000").stdout)
    assert doc["tokens"][0] != first


def test_a_users_text_never_becomes_a_control_token(run, tiny):
    ids = {k: json.loads(run("tokenize", tiny, "<|im_end|>", "--json", *k.split()).stdout)["ids"] for k in ("", "--special")}
    assert len(ids["--special"]) == 1 and len(ids[""]) > 1

    def prompt_tokens(text):
        return json.loads(run("run", tiny, text, "-n", 1, "--json").stdout)["prompt_tokens"]

    spelled, plain = prompt_tokens("<|im_end|>"), prompt_tokens("x")
    assert spelled - plain >= len(ids[""]) - 1


def test_system_message_is_part_of_the_prompt(run, tiny):
    def prompt_tokens(*options):
        return json.loads(run("run", tiny, "hello", "-n", 1, "--json", *options).stdout)["prompt_tokens"]

    assert prompt_tokens("--system", "be brief") > prompt_tokens()
    assert prompt_tokens("--raw") < prompt_tokens()


def test_bytes_that_are_no_utf8_are_taken(run, tiny, stories_gguf):
    for model, options in [(tiny, []), (stories_gguf, ["--raw"])]:
        done = run("run", model, "-n", 4, *options, stdin=b"\xff\xfe caf\xc3 \x00 x", text=False)
        done.stdout.decode("utf-8")


def test_a_reader_that_goes_away_ends_the_run_quietly(sluice, small):
    process = subprocess.Popen([sluice, "run", small, "hello", "--ignore-eos", "-n", "1500", "--ctx", "2048"], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert process.stdout.read(1)
    process.stdout.close()
    assert process.wait(timeout=60) == 1
    assert process.stderr.read() == b""


# ---- tokenize ---------------------------------------------------------------------------------------------------------------------------------


def test_tokenize_and_back(run, tiny):
    text = "the water, 12 sacks\n\tand é 漢字 🚰"
    ids = run("tokenize", tiny, text).stdout.strip()
    assert run("tokenize", tiny, "--decode", ids).stdout == text + "\n"
    doc = json.loads(run("tokenize", tiny, "--json", "--pieces", stdin=text).stdout)
    assert [str(i) for i in doc["ids"]] == ids.split() and len(doc["pieces"]) == doc["count"]
    lines = run("tokenize", tiny, "--pieces", text).stdout.splitlines()
    assert len(lines) == doc["count"] and all(json.loads(line.split("\t")[1]) == p for line, p in zip(lines, doc["pieces"]))


# ---- synth, plan, bench, eval -----------------------------------------------------------------------------------------------------------------


def test_synth_is_the_same_for_a_seed_and_runs_in_both_formats(run, tmp_path):
    run("synth", "tiny-qwen2-moe", tmp_path / "a.gguf", "--seed", 3)
    run("synth", "tiny-qwen2-moe", tmp_path / "b.gguf", "--seed", 3)
    run("synth", "tiny-qwen2-moe", tmp_path / "c.gguf", "--seed", 4)
    run("synth", "tiny-qwen2-moe", tmp_path / "d", "--format", "mlx4")
    a, b, c = ((tmp_path / f"{n}.gguf").read_bytes() for n in "abc")
    assert a == b != c
    for model in ("a.gguf", "d"):
        doc = json.loads(run("run", tmp_path / model, "hello", "-n", 8, "--json", "--ignore-eos").stdout)
        assert doc["completion_tokens"] == 8


SYNTH_FORMATS = [f"{f}-gguf" for f in [
    "f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "mxfp4", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs", "iq3_s",
    "iq3_xxs", "iq2_s", "iq2_xs", "iq2_xxs", "iq1_s"]] + [f"mlx{bits}" for bits in (2, 3, 4, 5, 6, 8)] + ["mlx-mxfp4"]


def test_synth_lists_its_formats(run):
    said = run("synth", "tiny-qwen3-moe", "x", "--format", "?", check=False).stderr
    assert all(f in said for f in SYNTH_FORMATS) and said.count("|") == len(SYNTH_FORMATS) - 1


@pytest.mark.parametrize("name", SYNTH_FORMATS)
def test_synth_writes_every_format_and_it_runs(run, tmp_path, name):
    """info names the format; the two numeric modes predict nearly the same, so no format is read wrongly by either."""
    model, other = (tmp_path / f"{n}.gguf" if name.endswith("gguf") else tmp_path / n for n in "ab")
    shape = ["small-qwen3-moe", "--layers", 1] if name.startswith(("q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq")) else ["tiny-qwen3-moe"]
    run("synth", *shape, model, "--format", name, "--seed", 3)
    run("synth", *shape, other, "--format", name, "--seed", 3)
    files = [p / "model.safetensors" if p.is_dir() else p for p in (model, other)]
    assert files[0].read_bytes() == files[1].read_bytes()
    row = {"mlx-mxfp4": "mxfp4_split"}.get(name, name.removesuffix("-gguf").replace("mlx", "affine"))
    assert row.lower() in [f.strip().lower() for f in info(run, model)["formats"].split(",")]
    (tmp_path / "text").write_text("one two three four five six seven eight nine ten " * 4)
    run("eval", model, tmp_path / "text", "--numeric", "exact", "--record", tmp_path / "r")
    doc = json.loads(run("eval", model, tmp_path / "text", "--reference", tmp_path / "r", "--json").stdout)
    assert doc["kl_mean"] < 0.005, doc


def test_synth_takes_layers_and_experts(run, tmp_path):
    run("synth", "tiny-qwen3-moe", tmp_path / "m.gguf", "--layers", 3, "--experts", 16)
    i = info(run, tmp_path / "m.gguf")
    assert (i["layers"], i["experts"]) == (3, 16)


def test_synth_shapes_are_listed(run):
    text = run("synth", "list").stdout
    for name in ["qwen3-30b-a3b", "qwen3-moe-24l", "qwen1.5-moe-a2.7b"]:
        assert name in text


def test_synth_overwrites_only_when_told(run, tiny):
    before = tiny.read_bytes()
    done = run("synth", "tiny-qwen3-moe", tiny, "--seed", 9, check=False)
    assert done.returncode == 2 and "--force" in done.stderr and tiny.read_bytes() == before


def test_synth_replaces_only_regular_files(run, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "directory").mkdir()
    (tmp_path / "device").symlink_to("/dev/null")
    os.mkfifo(tmp_path / "fresh.part")
    for name in ("pipe", "directory", "device", "fresh"):
        done = run("synth", "tiny-qwen3-moe", tmp_path / name, "--force", check=False)
        assert done.returncode in (1, 2) and "regular file" in done.stderr, done.stderr
    assert os.path.islink(tmp_path / "device") and sorted(p.name for p in tmp_path.iterdir()) == ["device", "directory", "fresh.part", "pipe"]
    (tmp_path / "mlx").mkdir()
    os.mkfifo(tmp_path / "mlx/config.json")
    done = run("synth", "tiny-qwen3-moe", tmp_path / "mlx", "--force", "--format", "mlx4", check=False)
    assert done.returncode == 1 and "config.json is a device or pipe" in done.stderr


def test_a_second_synth_of_the_same_file_says_that_another_writes_it(sluice, run, tmp_path):
    args = [str(sluice), "synth", "qwen3-30b-a3b", str(tmp_path / "m.gguf"), "--layers", "4"]
    first = subprocess.Popen(args, stderr=subprocess.DEVNULL)
    part = tmp_path / "m.gguf.part"
    end = time.monotonic() + 30
    while not (part.exists() and part.stat().st_size > 1 << 20):
        assert first.poll() is None and time.monotonic() < end
        time.sleep(0.01)
    second = run(*args[1:], check=False)
    assert first.poll() is None
    first.send_signal(signal.SIGINT)
    assert first.wait(30) == 130
    assert second.returncode == 1 and second.stderr.endswith("another process is writing it\n") and "unavailable" not in second.stderr, second.stderr


def test_a_budget_above_what_there_is_is_said_with_both_numbers(run, small):
    said = run("info", small, "--memory", "900000G").stderr
    assert re.search(r"a budget of 878\.\d+ TiB is more than the [\d.]+ .iB this process may use: ", said), said


@pytest.mark.parametrize("command", ["info", "plan", "run", "eval", "bench"])
def test_everything_runs_on_a_small_stack(sluice, small, tmp_path, command):
    if re.search(rb"__asan_init|__tsan_read16_pc", sluice.read_bytes()):
        skip_loudly("sanitizers make frames larger")
    text = tmp_path / "text"
    text.write_text("Once upon a time there was a model. " * 8)
    more = {"run": ["hello", "--raw", "-n", "3"], "eval": [text], "bench": ["--ctx", "64", "--prefill", "16", "--warmup", "8", "--tokens", "8"]}.get(command, [])
    args = [str(a) for a in (sluice, command, small, *more, *([] if command in ("info", "plan") else ["--max-slots", "8"]))]
    limit = lambda: resource.setrlimit(resource.RLIMIT_STACK, (64 << 10, resource.RLIM_INFINITY))  # noqa: E731
    done = subprocess.run(args, capture_output=True, stdin=subprocess.DEVNULL, preexec_fn=limit, timeout=60)
    assert done.returncode == 0, done.stderr


def test_interrupted_synth_leaves_nothing(sluice, tmp_path):
    p = subprocess.Popen([str(sluice), "synth", "qwen3-30b-a3b", str(tmp_path / "m.gguf"), "--layers", "4"], stderr=subprocess.DEVNULL)
    part = tmp_path / "m.gguf.part"
    end = time.monotonic() + 30
    while not (part.exists() and part.stat().st_size > 1 << 20):
        assert p.poll() is None and time.monotonic() < end
        time.sleep(0.01)
    p.send_signal(signal.SIGINT)
    assert p.wait(30) == 130
    assert list(tmp_path.iterdir()) == []


def test_plan_predicts_more_speed_from_more_memory(run, small):
    i = info(run, small, "--ctx", 256)
    plans = [json.loads(run("plan", small, "--ctx", 256, "--memory", m, "--json").stdout) for m in (i["least_memory"], i["full_memory"])]
    for p in plans:
        assert p["machine"]["disk_read_bytes_per_second"] > 0
        # The least memory leaves slots for about a token's demand: what the process itself holds varies by a MiB.
        assert len(p["forecasts"]) == (1 if p["below_one_token"] else 2)
    assert not plans[1]["below_one_token"]
    # Below one token's demand a fixed subset serves, whatever the routing.
    few = json.loads(run("plan", small, "--ctx", 256, "--max-slots", 10, "--json").stdout)
    assert few["below_one_token"] and len(few["forecasts"]) == 1 and few["forecasts"][0]["hit_rate"] == pytest.approx(10 / (6 * 32))
    assert plans[0]["forecasts"][0]["disk_bytes_per_token"] > plans[1]["forecasts"][0]["disk_bytes_per_token"] == 0
    assert plans[1]["forecasts"][0]["hit_rate"] == 1
    assert "assumes" in run("plan", small, "--ctx", 256).stdout


def test_bench_measures_and_replays(run, small):
    options = ["--warmup", 4, "--tokens", 16, "--prefill", 24, "--repeat", 2, "--ids", "random", "--max-slots", 40]
    doc = json.loads(run("bench", small, *options, "--json").stdout)
    assert doc["prefill"]["tokens"] == 24 and len(doc["prefill"]["repetitions"]) == 2
    # 40 slots of 192: were the random router degenerate, the same few experts would always hit.
    assert doc["decode"]["tokens_per_second"] > 0 and 0 <= doc["decode"]["hit_rate"] < 0.5
    for r in doc["decode"]["repetitions"]:
        assert r["hits"] + r["misses"] == 16 * 6 * 4 and r["bytes_read"] > 0
        assert 0 < r["replay_seconds"] and 0 < r["causal_bound_seconds"]
    table = run("bench", small, *options).stdout
    for word in ["prefill", "decode", "hit rate", "causal bound", "budget", "numeric"]:
        assert word in table, word


def test_bench_takes_ids_from_a_file(run, small, tmp_path):
    (tmp_path / "ids.json").write_text(json.dumps(list(range(64))))
    run("bench", small, "--ids", tmp_path / "ids.json", "--warmup", 2, "--tokens", 4, "--prefill", 0, "--repeat", 1)
    (tmp_path / "bad").write_text("1 2 x")
    done = run("bench", small, "--ids", tmp_path / "bad", check=False)
    assert done.returncode == 1 and "'x' at byte 4" in done.stderr


def test_eval_against_the_recorded_reference(run, smollm2, golden):
    """KL and top-1 of the float32 model on SmolLM2's own weights, not worse than llama.cpp's as recorded."""
    recorded = json.loads((golden / "smollm2_eval.json").read_text())["first"]
    doc = json.loads(run("eval", smollm2, "--reference", golden / recorded["file"], "--json", timeout=300).stdout)
    theirs = recorded["llama_cpp"]
    assert doc["tokens"] == recorded["positions"]
    assert doc["kl_mean"] <= 1.1 * theirs["kl_top_mean"]
    assert doc["top1_agreement"] >= theirs["top1_agreement"] - 0.003
    assert doc["perplexity"] == pytest.approx(recorded["R"]["perplexity"], rel=0.01)


def test_a_recorded_run_agrees_with_itself_and_not_with_another(run, stories_gguf, stories_text, tmp_path):
    (tmp_path / "text").write_text(stories_text)
    text = ["eval", stories_gguf, tmp_path / "text", "--json", "--tokens", 100]
    run(*text, "--record", tmp_path / "r.slref")
    same = json.loads(run("eval", stories_gguf, "--reference", tmp_path / "r.slref", "--json").stdout)
    assert abs(same["kl_mean"]) < 1e-9 and same["top1_agreement"] == 1 and same["tokens"] == 100
    exact = json.loads(run("eval", stories_gguf, "--reference", tmp_path / "r.slref", "--numeric", "exact", "--json").stdout)
    assert 1e-9 < exact["kl_mean"] < 0.1
    done = run(*text, "--window", 20, "--record", tmp_path / "w.slref", check=False)
    assert done.returncode == 1 and "one window" in done.stderr and not list(tmp_path.glob("w.slref*"))
    done = run(*text, "--record", "/nowhere/at/all", check=False)
    assert done.returncode == 1 and "/nowhere/at/all" in done.stderr


def test_eval_of_a_text(run, stories_gguf, stories_text, tmp_path):
    (tmp_path / "text").write_text(stories_text)
    doc = json.loads(run("eval", stories_gguf, tmp_path / "text", "--json").stdout)
    assert 1 < doc["perplexity"] < 5 and doc["tokens"] > 100  # its own greedy text
    halves = json.loads(run("eval", stories_gguf, tmp_path / "text", "--json", "--window", 20).stdout)
    assert halves["perplexity"] > doc["perplexity"]


def test_an_output_replaces_neither_inputs_nor_devices(run, tiny, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("some words to evaluate, a few more of them")
    link = tmp_path / "link"
    link.symlink_to(text)
    for option in ("--record", "--routing"):
        for path, why in ((text, "reads or writes it already"), ("/dev/null", "no regular file"), (link, ""), (tmp_path, "a directory")):
            failed = run("eval", tiny, text, option, path, check=False)
            assert failed.returncode and why in failed.stderr, failed.stderr
            assert len(failed.stderr.splitlines()) == 1
    same = run("eval", tiny, text, "--record", tmp_path / "x", "--routing", tmp_path / "x", check=False)
    assert same.returncode and "reads or writes it already" in same.stderr
    routes = tmp_path / "r"
    run("eval", tiny, text, "--routing", routes)
    before = routes.read_bytes()
    assert run("routes", routes, "--svg", routes, check=False).returncode
    assert routes.read_bytes() == before and text.read_text().startswith("some words")
    assert Path("/dev/null").is_char_device()


def test_synth_says_what_cannot_be_in_the_format(run, tmp_path):
    said = run("synth", "tiny-qwen3-moe", tmp_path / "k.gguf", "--format", "q4_k-gguf").stderr
    assert "matrices are Q8_0: their rows do not divide into blocks of 256, which Q4_K has" in said
    assert "Q8_0" not in run("synth", "tiny-qwen3-moe", tmp_path / "q.gguf").stderr


def test_a_budget_too_small_for_what_a_command_measures_with_says_so(run, tmp_path):
    run("synth", "tiny-qwen3-moe", tmp_path / "m.gguf")
    bench = run("bench", tmp_path / "m.gguf", "--memory", "2M", "--tokens", 8, "--warmup", 8, "--prefill", 0, "--repeat", 1, check=False).stderr
    assert "the process itself" in bench and ", what it measures with 20.00 MiB" in bench
    assert "measures with" not in run("run", tmp_path / "m.gguf", "hi", "--memory", "2M", check=False).stderr
