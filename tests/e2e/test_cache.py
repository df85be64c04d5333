"""The cache of experts as a user sees it: policies by name, starting warm, what each layer hit, and that no answer depends on any of it."""

import json
import os

import pytest


@pytest.fixture
def model(run, tmp_path):
    path = tmp_path / "m.gguf"
    run("synth", "small-qwen3-moe", path, "--skew", "local")
    return path


def bench(run, model, *options):
    return ["bench", model, "--ids", f"{model}.ids.json", "--ctx", 512, "--prefill", 0, "--no-replay", "--warmup", 64, "--tokens", 64, "--repeat", 2, *options]


def test_layers_add_up_and_stand_in_a_table(run, model):
    options = ("--max-slots", 60, "--prefetch", "router")
    decode = json.loads(run(*bench(run, model, *options, "--json")).stdout)["decode"]
    assert [x["layer"] for x in decode["layers"]] == list(range(6))
    for key in ("hits", "misses", "bytes_read", "read_ahead", "read_ahead_used"):
        assert sum(x[key] for x in decode["layers"]) == sum(w[key] for w in decode["repetitions"]), key
    assert all(x["hits"] + x["misses"] == 2 * 64 * 4 for x in decode["layers"])
    assert decode["layers"][0]["read_ahead"] == 0 and decode["layers"][3]["read_ahead"] > 0
    assert 0 < sum(x["wait_seconds"] for x in decode["layers"]) <= sum(w["wait_seconds"] for w in decode["repetitions"]) * 1.001

    text = run(*bench(run, model, *options, "--layers")).stdout
    lines = text[text.index("layer   hit rate") :].splitlines()
    assert lines[0].split() == ["layer", "hit", "rate", "missed", "MiB", "read", "ms", "waited", "guessed", "right"]
    rows = lines[2:8]
    assert [int(row.split()[0]) for row in rows] == list(range(6))
    assert len({row.index("%") for row in rows}) == 1, "columns stand under each other"
    assert "layer   hit rate" not in run(*bench(run, model, *options)).stdout


def test_no_answer_depends_on_the_cache(run, model, tmp_path):
    ask = ["run", model, "--raw", "Once upon a time", "--max-tokens", 40, "--seed", 7, "--ctx", 256]
    hot = tmp_path / "hot.list"
    expected = run(*ask).stdout
    assert len(expected) > 20
    for options in (["--cache", "lfu"], ["--cache", "lru", "--max-slots", 20], ["--cache", "lfu", "--max-slots", 20], ["--hot-list", hot], ["--hot-list", hot, "--max-slots", 50],
                    ["--hot-list", hot, "--cache", "lfu", "--max-slots", 50]):  # fmt: skip
        assert run(*ask, *options).stdout == expected, options
    assert hot.stat().st_size == 24 + 4 * 6 * 32 + 8
    done = run(*ask, "--cache", "fifo", check=False)
    assert done.returncode == 2 and "--cache" in done.stderr


def test_a_warm_start_hits_from_the_first_token(run, model, tmp_path):
    hot = tmp_path / "hot.list"
    first = ["bench", model, "--ids", f"{model}.ids.json", "--ctx", 512, "--prefill", 0, "--no-replay", "--warmup", 0, "--tokens", 8, "--repeat", 1, "--max-slots", 120, "--json"]

    def hits(*options):
        return json.loads(run(*first, *options).stdout)["decode"]["hit_rate"]

    cold = hits()
    assert hits("--hot-list", hot) == cold, "nothing is known yet"
    assert hot.exists()
    assert hits("--hot-list", hot) > cold + 0.2
    said = run(*first, "--hot-list", hot, "-v").stderr
    assert "experts (" in said and "read before the first token" in said


def test_each_model_has_a_list_in_the_cache_directory(run, model, tmp_path):
    env = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    ask = ["run", model, "--raw", "Hello", "--max-tokens", 4, "--ctx", 128]
    run(*ask, env=env)
    assert not list(tmp_path.glob("cache/sluice/hot-*")), "nothing is learned unasked"
    for _ in range(2):
        run(*ask, "--warm", env=env)
    other = tmp_path / "other.gguf"
    run("synth", "small-qwen3-moe", other, "--seed", 5)
    run("run", other, "--raw", "Hello", "--max-tokens", 4, "--ctx", 128, "--warm", env=env)
    assert len(list((tmp_path / "cache/sluice").iterdir())) == 2


def test_a_damaged_list_is_ignored_with_a_warning_and_replaced(run, model, tmp_path):
    hot = tmp_path / "hot.list"
    ask = ["run", model, "--raw", "Hello", "--max-tokens", 4, "--seed", 1, "--ctx", 128, "--hot-list", hot]
    expected = run(*ask).stdout
    whole = hot.read_bytes()
    for bad in (b"", whole[:-1], whole[:100] + b"x" + whole[101:]):
        hot.write_bytes(bad)
        done = run(*ask)
        assert done.stdout == expected
        warnings = [line for line in done.stderr.splitlines() if "hot list ignored" in line]
        assert len(warnings) == 1 and str(hot) in warnings[0]
        assert hot.read_bytes() == whole, "what this run asked for is written again"
    hot.unlink()
    hot.mkdir()
    done = run(*ask)
    assert done.stdout == expected and "not a regular file" in done.stderr and hot.is_dir()


def test_what_is_no_hot_list_is_left_as_it_is(run, model, tmp_path):
    # whoever names the model, a diary or a device by mistake still has it afterwards
    diary, fifo = tmp_path / "diary", tmp_path / "fifo"
    diary.write_text("dear diary")
    os.mkfifo(fifo)
    before, names = model.read_bytes(), sorted(tmp_path.iterdir())
    ask = ["run", model, "--raw", "Hello", "--max-tokens", 2, "--ctx", 128]
    expected = run(*ask).stdout
    for name in (diary, fifo, model, tmp_path):
        done = run(*ask, "--hot-list", name)
        said = [line for line in done.stderr.splitlines() if "hot list" in line]
        assert done.stdout == expected
        assert len(said) == 1 and f"{name}: " in said[0] and said[0].endswith("left as it is, and nothing is learned")
    assert diary.read_text() == "dear diary" and model.read_bytes() == before
    assert fifo.is_fifo() and sorted(tmp_path.iterdir()) == names


def test_below_one_tokens_need_a_fixed_part_serves_and_the_run_says_so(run, model):
    # 6 layers of 4: one token asks for 24
    for cache in ("lru", "lfu"):
        done = run("bench", model, "--ids", "random", "--ctx", 512, "--prefill", 0, "--no-replay", "--warmup", 64, "--tokens", 128, "--repeat", 1, "--max-slots", 16, "--prefetch", "off", "--cache", cache, "--json")
        assert json.loads(done.stdout)["decode"]["hit_rate"] > 0.01, cache
        assert done.stderr.count("fewer slots than the 24 experts a step asks for") == 1
