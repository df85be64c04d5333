"""`eval --routing` and `sluice routes`: the record against what the model is, the simulated caches against plain ones and against the engine's."""

import json
import struct
import xml.etree.ElementTree as ElementTree
from collections import Counter, OrderedDict
from random import Random

import pytest


def write_routes(path, layers, experts, top_k, tokens):
    """tokens: [tokens][layers][top_k] ids."""
    data = b"SLROUTE1" + struct.pack("<4IQ", layers, experts, top_k, 0, len(tokens)) + struct.pack(f"<{layers}I", *range(layers))
    for position, token in enumerate(tokens):
        flat = [x for layer in token for x in layer]
        data += struct.pack(f"<2i{len(flat)}H", 1, position, *flat)
    path.write_bytes(data)
    return path


def read_routes(path):
    data = path.read_bytes()
    assert data[:8] == b"SLROUTE1"
    layers, experts, top_k, zero, count = struct.unpack_from("<4IQ", data, 8)
    numbers = struct.unpack_from(f"<{layers}I", data, 32)
    at, step, tokens = 32 + 4 * layers, 8 + 2 * layers * top_k, []
    assert zero == 0 and len(data) == at + step * count
    for i in range(count):
        token, position, *flat = struct.unpack_from(f"<2i{layers * top_k}H", data, at + i * step)
        tokens.append((token, position, [flat[k : k + top_k] for k in range(0, len(flat), top_k)]))
    return numbers, experts, top_k, tokens


# ---- caches as simple as they can be ----------------------------------------------------------------------------------------------------------


def lru(uses, warm, size):
    cache, hits = OrderedDict(), 0
    for i, key in enumerate(uses):
        if key in cache:
            hits += i >= warm
            cache.move_to_end(key)
        else:
            if len(cache) == size:
                cache.popitem(last=False)
            cache[key] = None
    return hits / (len(uses) - warm)


def lfu(uses, warm, size):
    cache, hits, times = {}, 0, Counter()
    for i, key in enumerate(uses):
        times[key] += 1
        if key in cache:
            hits += i >= warm
        elif len(cache) == size:
            del cache[min(cache, key=lambda k: (times[k], cache[k]))]
        cache[key] = i
    return hits / (len(uses) - warm)


def best(uses, warm, size):
    cache, hits = set(), 0
    for i, key in enumerate(uses):
        if key in cache:
            hits += i >= warm
            continue
        if len(cache) == size:
            rest = uses[i + 1 :]
            cache.remove(max(cache, key=lambda k: rest.index(k) if k in rest else len(uses)))
        cache.add(key)
    return hits / (len(uses) - warm)


@pytest.mark.parametrize("seed", range(4))
def test_hit_rates_are_those_of_plain_caches(run, tmp_path, seed):
    random = Random(seed)
    layers, experts, top_k = random.choice([(1, 7, 2), (3, 5, 1), (2, 16, 3), (4, 8, 8)])
    weights = [random.random() ** 3 + 0.01 for _ in range(experts)]
    tokens = []
    for _ in range(60):
        token = []
        for _ in range(layers):
            chosen = set()
            while len(chosen) < top_k:
                chosen.add(random.choices(range(experts), weights)[0])
            token.append(sorted(chosen))
        tokens.append(token)
    result = json.loads(run("routes", write_routes(tmp_path / "r", layers, experts, top_k, tokens), "--json").stdout)
    uses = [layer * experts + x for token in tokens for layer, ids in enumerate(token) for x in ids]
    warm = result["warmup"] * layers * top_k
    assert result["warmup"] == 15 and result["hit_rates"][-1]["experts"] == layers * experts
    for row in result["hit_rates"]:
        for name, cache in (("lru", lru), ("lfu", lfu), ("best", best)):
            assert row[name] == pytest.approx(cache(uses, warm, row["experts"]), abs=1e-8), (seed, name, row)
        assert row["best"] >= max(row["lru"], row["lfu"]) - 1e-8


def test_layers_are_described(run, tmp_path):
    """Layer 0 uses two of four experts evenly and changes each token; layer 1 always the same one."""
    tokens = [[[i % 2], [3]] for i in range(40)]
    layers = json.loads(run("routes", write_routes(tmp_path / "r", 2, 4, 1, tokens), "--json").stdout)["per_layer"]
    assert layers[0] == {"layer": 0, "used": 2, "busiest_tenth": 0.5, "effective": pytest.approx(2), "again": 0.0}
    assert layers[1] == {"layer": 1, "used": 1, "busiest_tenth": 1.0, "effective": pytest.approx(1), "again": 1.0}


# ---- recorded ---------------------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def recorded(run, repo, tmp_path_factory):
    """(model, text, routing file) of 600 tokens."""
    model, text = repo / "models/sluice-smol-moe", repo / "docs/architecture.md"
    path = tmp_path_factory.mktemp("routes") / "r"
    run("eval", model, text, "--tokens", 600, "--routing", path)
    return model, text, path


def test_record_has_every_token_with_its_experts(run, recorded):
    model, text, path = recorded
    numbers, experts, top_k, tokens = read_routes(path)
    ids = json.loads(run("tokenize", model, "-f", text, "--json").stdout)["ids"]
    assert numbers == tuple(range(12)) and (experts, top_k) == (24, 6)
    assert [t for t, _, _ in tokens] == ids[:600] and [p for _, p, _ in tokens] == list(range(600))
    assert all(ids == sorted(set(ids)) and ids[-1] < 24 for _, _, layers in tokens for ids in layers)
    assert len({tuple(layers[3]) for _, _, layers in tokens}) > 50


def test_record_depends_on_nothing_but_the_text(run, recorded, tmp_path):
    model, text, path = recorded
    run("eval", model, text, "--tokens", 600, "--routing", tmp_path / "r", "--chunk", 7, "--threads", 1, "--max-slots", 40)
    assert (tmp_path / "r").read_bytes() == path.read_bytes()


def test_windows_begin_new_sequences(run, recorded, tmp_path):
    model, text, _ = recorded
    run("eval", model, text, "--tokens", 100, "--window", 32, "--routing", tmp_path / "r")
    assert [p for _, p, _ in read_routes(tmp_path / "r")[3]] == [i % 32 for i in range(100)]


def test_simulated_lru_is_near_what_the_engine_hits(run, recorded, tmp_path):
    """The engine decodes the same tokens with as many slots; it keeps what a layer needs, and counts from another token on."""
    model, text, path = recorded
    _, _, _, tokens = read_routes(path)
    (tmp_path / "ids").write_text(json.dumps([t for t, _, _ in tokens]))
    rates = {r["experts"]: r["lru"] for r in json.loads(run("routes", path, "--json").stdout)["hit_rates"]}
    for slots in (144, 216):
        said = run("bench", model, "--ids", tmp_path / "ids", "--max-slots", slots, "--warmup", 150, "--tokens", 440, "--repeat", 1, "--prefill", 0, "--no-replay",
                   "--ctx", 1024, "--prefetch", "off", "--json").stdout  # fmt: skip
        assert json.loads(said)["decode"]["hit_rate"] == pytest.approx(rates[slots], abs=0.02), slots


def test_drawing_is_well_formed_and_has_every_cell(run, recorded, tmp_path):
    run("routes", recorded[2], "--svg", tmp_path / "r.svg")
    root = ElementTree.parse(tmp_path / "r.svg").getroot()
    assert root.tag.endswith("svg")
    words = " ".join(t.text or "" for t in root.iter("{http://www.w3.org/2000/svg}text"))
    assert all(w in words for w in ("LRU", "LFU", "best possible", "hit rate", "experts in memory, of 288", "layer", "600 tokens"))
    cells = 0
    group = next(g for g in root.iter("{http://www.w3.org/2000/svg}g"))
    for path in group:
        for piece in path.attrib["d"].split("M")[1:]:
            cells += int(piece.split("h")[1].split("v")[0])
    assert cells == 12 * 24


# ---- bad input --------------------------------------------------------------------------------------------------------------------------------


def cut(data):
    return data[:-3]


def magic(data):
    return b"NOT" + data[3:]


def expert(data):
    at = 32 + 4 * 2 + 8
    return data[:at] + struct.pack("<H", 200) + data[at + 2 :]


def twice(data):
    at = 32 + 4 * 2 + 8
    return data[: at + 2] + data[at : at + 2] + data[at + 4 :]


def huge(data):
    return data[:24] + struct.pack("<Q", 1 << 60) + data[32:]


@pytest.mark.parametrize("change,words", [(cut, "another size"), (magic, "SLROUTE1"), (expert, "token 0, layer 0: expert 200"), (twice, "ascending"), (huge, "no sense"), (lambda d: b"", "")])
def test_damaged_record(run, tmp_path, change, words):
    path = write_routes(tmp_path / "r", 2, 8, 2, [[[0, 3], [2, 5]]] * 4)
    path.write_bytes(change(path.read_bytes()))
    done = run("routes", path, check=False)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and words in done.stderr and "r" in done.stderr, done.stderr


def test_record_that_cannot_be_written_or_made(run, repo, stories_hf, tmp_path):
    model, text = repo / "models/sluice-smol-moe", repo / "README.md"
    done = run("eval", model, text, "--tokens", 20, "--routing", tmp_path / "none/r", check=False)
    assert done.returncode == 1 and "cannot write" in done.stderr
    done = run("eval", stories_hf, text, "--tokens", 20, "--routing", tmp_path / "r", check=False)
    assert done.returncode == 1 and "no routed experts" in done.stderr
    assert not list(tmp_path.iterdir())
