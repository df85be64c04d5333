"""Bad input: one clear line on standard error, a non-zero exit, and nothing on standard output that could be taken for success."""

import json
import os
import shutil
import struct
import subprocess

import numpy as np
import pytest


@pytest.fixture
def refused(run):
    """refused(args..., words=[...]): the run fails with one line that has all the words. Returns it."""

    def call(*args, words=(), status=1, stdin="", stdout="", **options):
        done = run(*args, check=False, stdin=stdin, **options)
        said = f"status {done.returncode}\nstdout: {done.stdout}\nstderr: {done.stderr}"
        assert done.returncode == status, said
        assert done.stdout == stdout, said
        assert done.stderr.startswith("sluice: ") and done.stderr.count("\n") == 1 and done.stderr.endswith("\n"), said
        for word in words:
            assert str(word) in done.stderr, f"{word!r} is not in: {done.stderr}"
        return done.stderr

    return call


@pytest.fixture
def hf(repo, tmp_path):
    """A writable copy of a checkpoint in three shards."""
    shutil.copytree(repo / "tests/golden/arch/qwen3_moe", tmp_path / "hf")
    return tmp_path / "hf"


@pytest.fixture
def one(repo, tmp_path):
    """A writable copy of a checkpoint in one safetensors file."""
    shutil.copytree(repo / "tests/golden/arch/qwen2_moe", tmp_path / "one")
    return tmp_path / "one"


@pytest.fixture
def gguf(run, tmp_path):
    run("synth", "tiny-qwen3-moe", tmp_path / "model.gguf")
    return tmp_path / "model.gguf"


def edit_json(path, change):
    doc = json.loads(path.read_text())
    change(doc)
    path.write_text(json.dumps(doc))


def edit_header(path, change):
    """Rewrites the header of a safetensors file; the data stays."""
    raw = path.read_bytes()
    (n,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + n])
    change(header)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + n :])


def replace_once(path, old, new):
    raw = path.read_bytes()
    assert raw.count(old) >= 1 and len(old) == len(new)
    path.write_bytes(raw.replace(old, new, 1))


def run_args(model):
    return ["run", model, "hello", "--raw", "-n", "4"]


# ---- token ids, keys --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["eos_token_id", "bos_token_id"])
def test_token_id_beyond_the_vocabulary_in_gguf(refused, gguf, key):
    raw = bytearray(gguf.read_bytes())
    name = b"tokenizer.ggml." + key.encode()
    at = raw.index(name) + len(name)
    struct.pack_into("<I", raw, at + 4, 999999)
    gguf.write_bytes(raw)
    refused(*run_args(gguf), words=[f"tokenizer.ggml.{key} is 999999", "a token id from 0 to"])
    struct.pack_into("<If", raw, at, 6, 2.0)  # f32
    gguf.write_bytes(raw)
    refused(*run_args(gguf), words=[f"tokenizer.ggml.{key} is no integer"])


@pytest.mark.parametrize("value", [999999, -1, "two", 2.5, [1, "x"], True])
def test_eos_token_id_that_is_none(refused, hf, value):
    edit_json(hf / "generation_config.json", lambda c: c.update(eos_token_id=value))
    refused(*run_args(hf), words=["generation_config.json: field eos_token_id is", "token ids from 0 to"])
    (hf / "generation_config.json").unlink()
    edit_json(hf / "config.json", lambda c: c.update(eos_token_id=value))
    refused(*run_args(hf), words=["config.json: field eos_token_id is", "token ids from 0 to"])


def test_damaged_key_gets_one_warning(run, gguf):
    assert run("info", gguf).stderr == ""
    replace_once(gguf, b"qwen3moe.rope.freq_base", b"qwen3moe*rope.freq_base")
    done = run("info", gguf)
    assert done.stderr.count("\n") == 1 and "warning" in done.stderr and "qwen3moe*rope.freq_base" in done.stderr


def test_symbolic_links_that_lead_nowhere(refused, hf, tmp_path):
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    refused("info", tmp_path / "dangling", words=["dangling", "a symbolic link to a file that is not there"])
    refused("info", tmp_path / "circle", words=["circle", "symbolic links that lead in a circle"])
    shard = hf / "model-00002-of-00003.safetensors"
    shard.unlink()
    shard.symlink_to("/nonexistent/blob")
    refused("info", hf, words=["model-00002-of-00003.safetensors", "a symbolic link to a file that is not there"])
    (hf / "config.json").unlink()
    (hf / "config.json").symlink_to("/nonexistent/blob")
    refused("info", hf, words=["config.json", "a symbolic link to a file that is not there"])


def test_what_a_template_raises_says_whose_it_is(refused, hf):
    edit_json(hf / "tokenizer_config.json", lambda c: c.update(chat_template="{{ raise_exception('Only the moon may speak') }}"))
    refused("run", hf, "hello", "-n", 4, words=["chat template: Only the moon may speak"])


# ---- files ------------------------------------------------------------------------------------------------------------------------------------


def test_no_such_model(refused, tmp_path):
    refused(*run_args(tmp_path / "none"), words=["none"])


def test_directory_without_a_checkpoint(refused, tmp_path):
    refused(*run_args(tmp_path), words=[tmp_path])


def test_empty_file(refused, tmp_path):
    (tmp_path / "empty.gguf").write_bytes(b"")
    refused(*run_args(tmp_path / "empty.gguf"), words=["empty.gguf"])


def test_missing_shard(refused, hf):
    (hf / "model-00002-of-00003.safetensors").unlink()
    refused(*run_args(hf), words=["model-00002-of-00003.safetensors"])


def test_wrong_magic(refused, gguf):
    replace_once(gguf, b"GGUF", b"GGML")
    refused(*run_args(gguf), words=["model.gguf"])


def test_file_of_something_else(refused, tmp_path):
    (tmp_path / "x.gguf").write_bytes(os.urandom(5000))
    refused(*run_args(tmp_path / "x.gguf"), words=["x.gguf"])


def test_truncated_gguf(refused, gguf):
    whole = gguf.read_bytes()
    for keep in [*range(1, 64, 7), 300, 2000, 5000, 9000, len(whole) // 2, len(whole) - 1]:
        gguf.write_bytes(whole[:keep])
        refused(*run_args(gguf), words=["model.gguf"])


def test_truncated_safetensors(refused, one):
    path = one / "model.safetensors"
    whole = path.read_bytes()
    for keep in [0, 3, 7, 8, 9, 100, 1000, len(whole) // 2, len(whole) - 1]:
        path.write_bytes(whole[:keep])
        refused(*run_args(one), words=["model.safetensors"])


@pytest.mark.parametrize("at", [8, 16], ids=["tensors", "metadata"])
@pytest.mark.parametrize("count", [2**32, 2**60, 2**64 - 1])
def test_absurd_counts(refused, gguf, at, count):
    raw = bytearray(gguf.read_bytes())
    raw[at : at + 8] = struct.pack("<Q", count)
    gguf.write_bytes(raw)
    refused(*run_args(gguf), words=["model.gguf"])


@pytest.mark.parametrize("length", [2**31, 2**62, 2**64 - 1])
def test_absurd_string_length(refused, gguf, length):
    raw = bytearray(gguf.read_bytes())
    raw[24:32] = struct.pack("<Q", length)  # of the first key
    gguf.write_bytes(raw)
    refused(*run_args(gguf), words=["model.gguf"])


def test_absurd_header_length(refused, one):
    path = one / "model.safetensors"
    for n in (2**40, 2**63, 2**64 - 1):
        path.write_bytes(struct.pack("<Q", n) + path.read_bytes()[8:])
        refused(*run_args(one), words=["model.safetensors"])


def test_overflowing_shape(refused, one):
    def change(h):
        h["model.norm.weight"]["shape"] = [2**33, 2**33]

    edit_header(one / "model.safetensors", change)
    refused(*run_args(one), words=["model.norm.weight"])


def test_overlapping_tensors(refused, one):
    def change(h):
        names = [n for n in h if n != "__metadata__"]
        same = [n for n in names if h[n]["shape"] == h["model.norm.weight"]["shape"] and n != "model.norm.weight"]
        h[same[0]]["data_offsets"] = h["model.norm.weight"]["data_offsets"]

    edit_header(one / "model.safetensors", change)
    refused(*run_args(one), words=["model.safetensors"])


def test_missing_tensor(refused, one):
    edit_header(one / "model.safetensors", lambda h: h.__setitem__("unrelated.weight", h.pop("model.layers.1.self_attn.k_proj.weight")))
    refused(*run_args(one), words=["model.layers.1.self_attn.k_proj.weight"])


def test_unknown_element_format(refused, one):
    edit_header(one / "model.safetensors", lambda h: h["model.norm.weight"].__setitem__("dtype", "F8_E4M3"))
    refused(*run_args(one), words=["model.norm.weight", "F8_E4M3"])


def test_unknown_gguf_type(refused, gguf):
    raw = bytearray(gguf.read_bytes())
    name = b"token_embd.weight"
    at = raw.index(struct.pack("<Q", len(name)) + name) + 8 + len(name)
    dims = struct.unpack_from("<I", raw, at)[0]
    struct.pack_into("<I", raw, at + 4 + 8 * dims, 999)
    gguf.write_bytes(raw)
    refused(*run_args(gguf), words=["token_embd.weight", "999"])


def type_offsets(raw):
    """Where the type of each tensor's record lies, by name."""
    tensors, keys = struct.unpack_from("<QQ", raw, 8)
    sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
    at = 24

    def text():
        nonlocal at
        (n,) = struct.unpack_from("<Q", raw, at)
        at += 8 + n
        return bytes(raw[at - n : at])

    for _ in range(keys):
        text()
        (kind,) = struct.unpack_from("<I", raw, at)
        at += 4
        if kind == 9:
            kind, n = struct.unpack_from("<IQ", raw, at)
            at += 12
        else:
            n = 1
        for _ in range(n if kind == 8 else 0):
            text()
        at += sizes.get(kind, 0) * n
    found = {}
    for _ in range(tensors):
        name = text().decode()
        (dims,) = struct.unpack_from("<I", raw, at)
        found[name] = at + 4 + 8 * dims
        at += 4 + 8 * dims + 12
    return found


def test_flipped_type_of_a_tensor(refused, gguf):
    """F32 read as F16, Q4_0 as Q8_0, ...: the tensors no longer follow one another. A fluent answer would be nonsense."""
    raw = gguf.read_bytes()
    places = type_offsets(raw)
    chosen = [n for n in places if n in ("token_embd.weight", "output_norm.weight", "blk.0.ffn_gate_inp.weight", "blk.1.ffn_down_exps.weight")]
    chosen.append(max(places, key=places.get))  # the last one: the file's end gives it away
    assert len(chosen) == 5
    for name in chosen:
        for other in {0, 1, 2, 8} - {raw[places[name]]}:
            bad = bytearray(raw)
            bad[places[name]] = other
            gguf.write_bytes(bad)
            refused("info", gguf, words=["model.gguf"])


@pytest.mark.parametrize("name", ["output_norm.weight", "blk.0.ffn_gate_inp.weight"])
def test_quantised_norm_or_router(refused, gguf, name):
    """Whole and well placed, but of a format that no writer gives such a tensor."""
    raw = bytearray(gguf.read_bytes())
    places = type_offsets(raw)
    offset = {n: struct.unpack_from("<Q", raw, at + 4)[0] for n, at in places.items()}
    order = sorted(places, key=offset.get)
    begin = -(-(max(places.values()) + 12) // 32) * 32
    ends = [offset[n] for n in order[1:]] + [len(raw) - begin]
    data, at = bytearray(), {}
    for n, end in zip(order, ends):
        at[n] = len(data)
        piece = raw[begin + offset[n] : begin + end]
        if n == name:
            assert raw[places[n]] == 0 and len(piece) % 128 == 0  # F32, whole blocks
            piece = bytes(len(piece) // 128 * 34)
        data += piece + bytes(-len(piece) % 32)
    raw[places[name]] = 8  # Q8_0
    for n in order:
        struct.pack_into("<Q", raw, places[n] + 4, at[n])
    gguf.write_bytes(raw[:begin] + data)
    refused("info", gguf, words=[name, "Q8_0", "a float format expected"])


def test_nan_in_a_norm(refused, one):
    path = one / "model.safetensors"
    raw = bytearray(path.read_bytes())
    (n,) = struct.unpack("<Q", raw[:8])
    entry = json.loads(raw[8 : 8 + n])["model.layers.0.input_layernorm.weight"]
    width = {"BF16": 2, "F16": 2, "F32": 4}[entry["dtype"]]
    at = 8 + n + entry["data_offsets"][0] + 5 * width
    raw[at : at + width] = np.full(width, 0xFF, np.uint8).tobytes()
    path.write_bytes(raw)
    refused(*run_args(one), words=["model.layers.0.input_layernorm.weight"])


# ---- configuration ----------------------------------------------------------------------------------------------------------------------------


def test_unknown_architecture(refused, hf):
    edit_json(hf / "config.json", lambda c: c.update(model_type="mamba9", architectures=["Mamba9"]))
    refused(*run_args(hf), words=["mamba9"])


def test_shape_that_contradicts_the_config(refused, hf):
    edit_json(hf / "config.json", lambda c: c.update(num_attention_heads=8))
    refused(*run_args(hf), words=["q_proj"])


@pytest.mark.parametrize("text", ["", "{", "[]", '{"model_type": 3}', "null", "\x00\x01"])
def test_config_that_is_none(refused, hf, text):
    (hf / "config.json").write_text(text)
    refused(*run_args(hf), words=["config.json"])


@pytest.mark.parametrize("key, value", [("hidden_size", -64), ("num_experts", 10**12), ("num_hidden_layers", "two"), ("num_experts_per_tok", 99),
                                        ("num_attention_heads", 0), ("rms_norm_eps", "x")])
def test_config_with_an_impossible_value(refused, hf, key, value):
    edit_json(hf / "config.json", lambda c: c.update({key: value}))
    refused(*run_args(hf))


def test_tokenizer_without_merges(refused, hf):
    edit_json(hf / "tokenizer.json", lambda t: t["model"].pop("merges"))
    refused(*run_args(hf), words=["merges"])


def test_damaged_tokenizer(refused, hf):
    (hf / "tokenizer.json").write_text('{"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}')
    refused(*run_args(hf), words=["tokenizer.json"])


def test_template_that_does_not_parse(refused, hf):
    edit_json(hf / "tokenizer_config.json", lambda t: t.update(chat_template="{% for m in %}"))
    (hf / "chat_template.jinja").unlink(missing_ok=True)
    refused("run", hf, "hello", "-n", "4")


def test_template_that_never_ends(refused, hf):
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}"
    edit_json(hf / "tokenizer_config.json", lambda t: t.update(chat_template=endless))
    (hf / "chat_template.jinja").unlink(missing_ok=True)
    refused("run", hf, "hello", "-n", "4")


# ---- requests ---------------------------------------------------------------------------------------------------------------------------------


def test_empty_prompt(refused, gguf, tmp_path):
    (tmp_path / "nothing").write_text("")
    refused("run", gguf, "", words=["empty"])
    refused("run", gguf, stdin="", words=["empty"])
    refused("run", gguf, stdin="\n", words=["empty"])
    refused("run", gguf, "-f", tmp_path / "nothing", words=["empty"])


def test_prompt_longer_than_the_context(refused, gguf):
    refused("run", gguf, "word " * 400, "--ctx", "128", words=["128"])


def test_prompt_file_that_cannot_be_read(refused, gguf, tmp_path):
    refused("run", gguf, "-f", tmp_path / "absent", words=["absent"])
    refused("run", gguf, "-f", tmp_path, words=[tmp_path])


def test_budget_too_small(refused, gguf):
    for memory in ("1", "64K", "4M"):
        refused(*run_args(gguf), "--memory", memory, words=["MiB"])


def test_token_id_out_of_the_vocabulary(refused, gguf):
    refused("tokenize", gguf, "--decode", "5 100000", words=["100000"])
    refused(*run_args(gguf), "--logit-bias", "100000=1", words=["100000"])
    refused("bench", gguf, "--ids", "-", "--prefill", "16", "--tokens", "0", stdin="1 2 100000", words=["100000"])


def test_more_experts_per_token_than_experts(refused, gguf):
    refused(*run_args(gguf), "--experts-per-token", "9", words=["9"])


def test_instruction_set_that_is_not_there(refused, gguf):
    there = "neon" if os.uname().machine == "x86_64" else "avx2"
    refused(*run_args(gguf), "--isa", there, words=[there])


def test_reference_file_that_is_none(refused, gguf, tmp_path):
    (tmp_path / "r").write_bytes(b"SLREF1\0\0" + struct.pack("<4I", 10, 320, 320, 0) + b"\0" * 100)
    refused("eval", gguf, "--reference", tmp_path / "r", words=["/r"])
    (tmp_path / "r").write_bytes(b"not a reference, but long enough")
    refused("eval", gguf, "--reference", tmp_path / "r", words=["SLREF1"])


def test_reference_of_another_vocabulary(refused, gguf, golden):
    refused("eval", gguf, "--reference", golden / "smollm2_eval.slref", "--tokens", "64", words=["49152", "320"])


@pytest.mark.parametrize("option", [["--think"], ["--no-think"], ["--system", "x"]])
def test_options_of_the_template_with_raw(refused, gguf, option):
    refused(*run_args(gguf), *option, words=[f"{option[0]} needs a chat template, and --raw uses none"])


def test_chat_without_a_template(refused, stories_gguf):
    refused("chat", stories_gguf, words=["template"])


# ---- the command line -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("args, words", [
    (["rum", "m"], ["unknown command", "did you mean 'run'"]),
    (["frobnicate"], ["unknown command", "sluice help"]),
    (["--memory", "6G", "run", "m"], ["--memory", "before a command"]),
    (["run"], ["MODEL"]),
    (["run", "m", "p", "q"], ["unexpected 'q'"]),
    (["run", "m", "p", "--logprobs", "3"], ["--logprobs needs --json"]),
    (["run", "m", "--memroy", "6G"], ["--memroy", "did you mean --memory"]),
    (["run", "m", "--mem", "6G"], ["--mem ", "did you mean --memory"]),
    (["run", "m", "--pres", "1"], ["--pres ", "did you mean --presence-penalty"]),
    (["synth", "qwen1.5", "x"], ["qwen1.5-moe-a2.7b is near"]),
    (["run", "m", "--zzz"], ["--zzz", "sluice help run"]),
    (["run", "m", "-Z"], ["-Z"]),
    (["run", "m", "--ctx"], ["--ctx needs a value"]),
    (["run", "m", "--json=yes"], ["--json takes no value"]),
    (["run", "m", "--ctx", "12abc"], ["--ctx", "12abc"]),
    (["run", "m", "--ctx", " 12"], ["--ctx"]),
    (["run", "m", "--ctx", "0x10"], ["--ctx"]),
    (["run", "m", "--ctx", ""], ["--ctx"]),
    (["run", "m", "--ctx", "0"], ["--ctx", "from 1"]),
    (["run", "m", "--threads", "-2"], ["--threads"]),
    (["run", "m", "--threads", "99999999999999999999"], ["--threads"]),
    (["run", "m", "--temp", "nan"], ["--temp"]),
    (["run", "m", "--temp", "1e999"], ["--temp"]),
    (["run", "m", "--top-p", "1.5"], ["--top-p", "from 0 to 1"]),
    (["run", "m", "--seed", "-1"], ["--seed"]),
    (["run", "m", "--memory", "6Q"], ["--memory", "6Q", "6G"]),
    (["run", "m", "--memory", "0"], ["--memory"]),
    (["run", "m", "--memory", "101%"], ["--memory"]),
    (["run", "m", "--memory", "1e30G"], ["--memory"]),
    (["run", "m", "--kv-type", "f8"], ["--kv-type", "f16|q8_0"]),
    (["run", "m", "--log-level", "loud"], ["--log-level"]),
    (["run", "m", "--logit-bias", "5"], ["--logit-bias", "ID=BIAS"]),
    (["run", "m", "--stop", ""], ["--stop"]),
    (["run", "m", "--hot-list", ""], ["--hot-list", "name of a file"]),
    (["run", "m", "--mirror="], ["--mirror", "name of a directory"]),
    (["run", "", "x"], ["MODEL: '' is empty"]),
    (["eval", "m", ""], ["[FILE]: '' is empty"]),
    (["synth", "tiny-qwen3-moe", ""], ["OUT: '' is empty"]),
    (["synth", "qwen9", "out"], ["qwen9", "sluice synth list"]),
    (["synth", "tiny-qwen3-moe", "out", "--experts", "1"], ["--experts 1"]),
    (["completions", "tcsh"], ["tcsh", "bash"]),
    (["eval", "m"], ["FILE"]),
    (["bench", "m", "--tokens", "0", "--prefill", "0"], ["nothing to measure"]),
    (["run", "m", "\x1b[31m", "x"], ["unexpected"]),
], ids=lambda v: " ".join(v)[:40] if isinstance(v, list) else None)
def test_wrong_command_line(refused, args, words):
    line = refused(*args, status=2, words=words)
    assert "\x1b" not in line


# ---- the machine ------------------------------------------------------------------------------------------------------------------------------


def test_standard_output_that_is_full(sluice, gguf):
    for args in (["info", gguf, "--json"], run_args(gguf), ["info", gguf], ["help"], ["--version"]):
        with open("/dev/full", "w") as full:
            done = subprocess.run([sluice, *args], stdout=full, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
        assert done.returncode == 1 and done.stderr == "sluice: standard output: No space left on device\n"


def test_standard_output_that_is_full_before_the_end_gets_no_made_up_reason(sluice):
    with open("/dev/full", "w") as full:  # more than a buffer of stdio's: it is written on the way
        done = subprocess.run([sluice, "completions", "bash"], stdout=full, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    assert done.returncode == 1 and "nput/output" not in done.stderr and done.stderr.startswith("sluice: standard output: ")


def test_a_limit_of_file_sizes_is_an_error_that_leaves_nothing(sluice, tmp_path):
    done = subprocess.run(["sh", "-c", 'ulimit -f 8; exec "$@"', "sh", sluice, "synth", "tiny-qwen3-moe", tmp_path / "m.gguf"], capture_output=True, text=True)
    assert done.returncode == 1 and "m.gguf" in done.stderr and "File too large" in done.stderr and done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_standard_output_that_is_closed(sluice, gguf):
    before = gguf.read_bytes()
    for args in (["info", gguf], run_args(gguf), [*run_args(gguf), "--json"], ["--version"]):
        done = subprocess.run(["sh", "-c", '"$@" >&-', "sh", sluice, *args], stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
        assert done.returncode == 1 and "standard output" in done.stderr and done.stderr.count("\n") == 1, done
    assert gguf.read_bytes() == before


def test_file_that_shrinks_while_it_answers(sluice, run, tmp_path):
    """A model's file is cut in the middle of a generation: what was said stands, the end is an error and no success."""
    model = tmp_path / "model.gguf"
    run("synth", "small-qwen3-moe", model)
    process = subprocess.Popen([sluice, "run", model, "hello", "--raw", "--ignore-eos", "--ctx", "2048", "--max-slots", "8"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    assert process.stdout.read(1)
    os.truncate(model, 4096)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1, (out, err)
    assert "model.gguf" in err.splitlines()[-1], err
    assert len(out) < 8000
