"""safetensors with numpy alone: u64 header length, JSON header, data.

A tensor to write is (dtype name, array): F32, F16, U32 arrays as they are; BF16 is given as float32 and must be exactly representable.
"""

import json
import struct
from pathlib import Path

import numpy as np

from . import floats

NUMPY = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16, "U32": np.uint32, "I64": np.int64, "I32": np.int32, "U8": np.uint8}


def _encode(dtype, array):
    array = np.ascontiguousarray(array)
    if dtype == "BF16":
        bits = floats.to_bf16_bits(array)
        if not np.array_equal(floats.from_bf16_bits(bits), array):
            raise ValueError("not representable in BF16")
        return bits
    stored = array.astype(NUMPY[dtype])
    if not np.array_equal(stored.astype(array.dtype), array):
        raise ValueError(f"not representable in {dtype}")
    return stored


def save(path, tensors, metadata=None):
    """tensors: {name: (dtype, array)}, written in the order given."""
    header, offset, blobs = {}, 0, []
    if metadata:
        header["__metadata__"] = metadata
    for name, (dtype, array) in tensors.items():
        try:
            data = _encode(dtype, array)
        except ValueError as e:
            raise ValueError(f"{name}: {e}") from None
        header[name] = {"dtype": dtype, "shape": list(data.shape), "data_offsets": [offset, offset + data.nbytes]}
        offset += data.nbytes
        blobs.append(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)))
        f.write(text)
        for data in blobs:
            f.write(data.tobytes())


def save_sharded(directory, tensors, shards, metadata=None):
    """One file model.safetensors, or `shards` files of about equal size with model.safetensors.index.json."""
    directory = Path(directory)
    if shards == 1:
        save(directory / "model.safetensors", tensors, metadata)
        return
    sizes = {name: array.size * NUMPY[dtype]().itemsize for name, (dtype, array) in tensors.items()}
    total, done = sum(sizes.values()), 0
    parts = [{} for _ in range(shards)]
    weight_map = {}
    for name, tensor in tensors.items():
        shard = min(shards - 1, done * shards // total)
        parts[shard][name] = tensor
        weight_map[name] = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        done += sizes[name]
    for i, part in enumerate(parts):
        save(directory / f"model-{i + 1:05d}-of-{shards:05d}.safetensors", part, metadata)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def load(path):
    """{name: array}; BF16 comes as float32."""
    raw = Path(path).read_bytes()
    (n,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8 : 8 + n])
    out = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        array = np.frombuffer(raw[8 + n + begin : 8 + n + end], NUMPY[entry["dtype"]]).reshape(entry["shape"])
        out[name] = floats.from_bf16_bits(array) if entry["dtype"] == "BF16" else array
    return out
