"""The committed golden files are what tools/make_golden.py makes today."""

import json
import pathlib
import sys

import numpy as np
import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tools"))
from golden import cases, reference, tensorfile  # noqa: E402
from make_golden import AGREEMENT, ATTENDS, relative_error  # noqa: E402


@pytest.mark.parametrize("case", cases.CASES, ids=lambda case: case.name)
def test_committed_files(case):
    weights = tensorfile.load(HERE / case.name / "model.safetensors")
    fresh = cases.make_weights(case)
    assert list(weights) == list(fresh)
    for name, tensor in fresh.items():
        assert weights[name].tobytes() == tensor.tobytes(), name
    stored = tensorfile.load(HERE / case.name / "reference.safetensors")
    model = reference.Model(case.config, tensorfile.dequantise_all(weights))
    expected = model.forward(stored["ids"])
    assert relative_error(stored["logits"], expected.logits) <= AGREEMENT
    for layer, routes in expected.routes.items():
        assert np.array_equal(stored[f"routes.{layer}"], routes)
    for layer, weights in expected.attends.items():
        if f"attends.{layer}" not in stored:
            continue
        token, earlier = stored[f"attends.{layer}"].T
        assert (earlier < token).all() and (weights[token, earlier] >= ATTENDS).all()
        assert len(token) == np.count_nonzero(np.tril(weights, -1) >= ATTENDS)
    if expected.mtp_logits is not None:
        assert relative_error(stored["mtp_logits"], expected.mtp_logits) <= AGREEMENT


@pytest.mark.parametrize("name", ["tiny-deepseek", "tiny-distill"])
def test_shipped_checkpoint(name):
    folder = HERE.parents[1] / "models" / name
    tensors = tensorfile.dequantise_all(tensorfile.load(folder / "model.safetensors"))
    config = json.loads((folder / "config.json").read_text())
    stored = tensorfile.load(HERE / name / "reference.safetensors")
    expected = reference.Model(config, tensors).forward(stored["ids"])
    positions = stored["positions"]
    assert relative_error(stored["logits"], expected.logits[positions]) <= AGREEMENT
    if expected.mtp_logits is not None:
        drafted = expected.mtp_logits[positions[: len(stored["mtp_logits"])]]
        assert relative_error(stored["mtp_logits"], drafted) <= AGREEMENT


def test_fp8_blocks_at_odd_edges():
    """576 rows: the fifth scale row covers half a block."""
    rng = np.random.default_rng(7)
    weight = rng.standard_normal((576, 160)).astype(np.float32)
    weight[512:] *= 100
    values, scales = tensorfile.quantise_fp8(weight)
    assert scales.shape == (5, 2)
    error = np.abs(tensorfile.dequantise_fp8(values, scales) - weight)
    # e4m3 has 3 mantissa bits: half a step is 1/16 of the value, or of the smallest normal number.
    scale = tensorfile.expand_scales(scales, *weight.shape)
    assert (error <= np.maximum(np.abs(weight) / 16, scale * 2.0**-10 * 1.001)).all()
