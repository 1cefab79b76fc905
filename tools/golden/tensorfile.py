"""Reads and writes safetensors files with numpy and ml_dtypes alone.

The format: an 8-byte little-endian header length, a JSON header {name: {dtype, shape,
data_offsets}}, then the tensors' bytes back to back.
"""

import json
import pathlib
import struct

import ml_dtypes
import numpy as np

BF16 = np.dtype(ml_dtypes.bfloat16)
FP8 = np.dtype(ml_dtypes.float8_e4m3fn)
FP8_MAX = 448.0
BLOCK = 128  # fp8 scale block, rows and columns

_NAMES = {
    np.dtype(np.float32): "F32",
    np.dtype(np.int32): "I32",
    np.dtype(np.int64): "I64",
    BF16: "BF16",
    FP8: "F8_E4M3",
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}


def save(path: pathlib.Path, tensors: dict[str, np.ndarray]) -> None:
    """Writes tensors in the order given."""
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, tensor in tensors.items():
        end = offset + tensor.nbytes
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # keeps the data 8-byte aligned, as the format asks
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        for tensor in tensors.values():
            file.write(np.ascontiguousarray(tensor).tobytes())


def load(path: pathlib.Path) -> dict[str, np.ndarray]:
    raw = path.read_bytes()
    (length,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8 : 8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + length + o for o in entry["data_offsets"])
        tensor = np.frombuffer(raw[begin:end], dtype=_DTYPES[entry["dtype"]])
        tensors[name] = tensor.reshape(entry["shape"])
    return tensors


def quantise_fp8(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """float [rows, cols] -> (e4m3 [rows, cols], float32 scales [ceil(rows/128), ceil(cols/128)]).

    The scale multiplies: weight = e4m3 * scale, whatever the name `weight_scale_inv` suggests.
    """
    rows, cols = weight.shape
    grid = -(-rows // BLOCK), -(-cols // BLOCK)
    scales = np.empty(grid, np.float32)
    for i, j in np.ndindex(*grid):
        amax = np.abs(weight[i * BLOCK : (i + 1) * BLOCK, j * BLOCK : (j + 1) * BLOCK]).max()
        scales[i, j] = amax / FP8_MAX
    return (weight / expand_scales(scales, rows, cols)).astype(FP8), scales


def dequantise_fp8(weight: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """The float32 product, not rounded any further."""
    return weight.astype(np.float32) * expand_scales(scales, *weight.shape)


def expand_scales(scales: np.ndarray, rows: int, cols: int) -> np.ndarray:
    return scales.repeat(BLOCK, axis=0)[:rows].repeat(BLOCK, axis=1)[:, :cols]


def dequantise_all(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Float32 copy of a checkpoint; block scales are applied and dropped."""
    result = {}
    for name, tensor in tensors.items():
        if name.endswith("_scale_inv"):
            continue
        scales = tensors.get(name + "_scale_inv")
        result[name] = (
            tensor.astype(np.float32) if scales is None else dequantise_fp8(tensor, scales)
        )
    return result
