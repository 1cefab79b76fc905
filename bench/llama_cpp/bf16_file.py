"""safetensors files of bf16 matrices as numpy sees them: numpy has no bf16, so uint16 bits."""

import json
import math
import struct

import numpy as np


def rounded_bits(values):
    """f32 to the bits of the nearest bf16 that f16 holds exactly too (below 2^-16: zero).

    A bf16 has 8 significant bits; from 2^-16 on its last one is worth 2^-24 or more, the grid of
    f16's smallest numbers. So one model is bit for bit the same in both types.
    """
    bits = values.view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    rounded[(rounded & 0x7FFF) < 0x3780] = 0  # 0x3780: 2^-16
    return rounded


def to_f32(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def write(path, shapes, values_of):
    """Writes tensors {name: shape}; values_of(name, shape) gives each one's bits."""
    header, offset = {}, 0
    for name, shape in shapes.items():
        size = 2 * math.prod(shape)
        header[name] = {
            "dtype": "BF16",
            "shape": list(shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, shape in shapes.items():
            values_of(name, shape).tofile(file)


def read(path):
    """{name: bits}, mapped."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    data = np.memmap(path, np.uint8, "r", offset=8 + length)
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        assert entry["dtype"] == "BF16", f"{path}: {name} is {entry['dtype']}, expected BF16"
        begin, end = entry["data_offsets"]
        tensors[name] = data[begin:end].view(np.uint16).reshape(entry["shape"])
    return tensors
