#!/usr/bin/env python3
"""Makes the golden checkpoints under tests/golden and the reference outputs beside them.

    tools/make_golden.py tests/golden                  # the float64 reference alone (numpy)
    tools/make_golden.py tests/golden --transformers   # also PyTorch's transformers, and bfloat16

Each case is a folder laid out as a Hugging Face checkpoint with random, seeded weights, plus
reference.safetensors:

    ids             [600] int32
    logits          [600, vocab] float32     whose: see README.md
    hidden          [layers + 1, 2, hidden]  embedding and each layer's output (before model.norm)
                                             at the two positions in hidden_positions
    final_norm      [2, hidden]              model.norm's output there
    routes.N        [600, top_k] int32       experts chosen in MoE layer N, ascending (599 for MTP)
    margins.N       [600] float32            the closest routing decision's gap: tiny = near-tie
    attends.N       [pairs, 2] int32         (token, earlier token): some head of layer N gives the
                                             latter a weight of at least 0.1; layers after an MoE
    mtp_logits      [599, vocab] float32     slot p from hidden p and token p + 1
    logits_bf16     [150, vocab] bfloat16    transformers run in bfloat16, positions 3, 7, ... 599

Without --transformers a stored logits_bf16 is kept if the weights have not changed.

    tools/make_golden.py tests/golden --shipped models/tiny-deepseek

does the same for a trained checkpoint and the text whose transformers' logits tools/train_tiny.py
left in its transformers.safetensors: ids [300], and at the few `positions` logits (transformers,
float32), hidden [layers + 1, positions, hidden], final_norm and mtp_logits.
"""

import argparse
import json
import os
import pathlib
import sys
import tempfile

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from golden import cases, reference, tensorfile  # noqa: E402

HIDDEN_POSITIONS = [299, 599]
BF16_POSITIONS = slice(3, None, 4)
AGREEMENT = (
    5e-5  # largest relative error at which transformers' float32 logits become the golden ones
)
ATTENDS = 0.1  # attention weight from which what happened to a token is seen in another
NEAR_TIE = 1e-2  # routing gap below which rounding activations to bfloat16 may change the choice

TABLE_HEAD = """\
| case | golden logits | float32 error | bfloat16 error | closest routing | near-ties | confidence |
|---|---|---|---|---|---|---|"""

README = """\
# Golden checkpoints

Random checkpoints (seeded, no training) in Hugging Face layout, each with the outputs that an
independent implementation computes from them. `tools/make_golden.py tests/golden --transformers`
makes them; its docstring lists the tensors of `reference.safetensors`. Cases that differ in
`config.json` alone link one `model.safetensors`.

Every sequence is 600 random tokens, so it passes the original length of 256 of the YaRN, llama3
and dynamic cases. Dynamic NTK uses the base of the whole length (600) at every position. YaRN's
softmax factor m(mscale_all_dim)^2 applies in the DeepSeek cases, as in the published modelling
code. Weights in fp8 are e4m3 times their float32 block scale; the float32 logits use that product
unrounded, the bfloat16 run rounds it to bfloat16. MTP: slot p takes the hidden state of p after the
final norm and the embedding of token p + 1 (`eh_proj` sees [enorm(embedding), hnorm(hidden)]),
rotates by position p and attends to slots 0..p; slot 0 is not masked.

`tiny-deepseek` and `tiny-distill` hold the same for the trained checkpoints in models/, over 300
tokens of the English validation text, at a few positions.

{table}

float32 and bfloat16 error: transformers' run against `tools/golden/reference.py` in float64, the
worst ||difference|| / ||reference|| over the positions. Golden logits are transformers' where the
float32 error is at most 5e-5, else the reference's. Closest routing: the smallest gap between an
expert (or group) chosen and the next one. Near-ties: tokens, of 600, with a decision closer than
1e-2 (`margins.N` holds each), which rounding to bfloat16 may turn; the bfloat16 error leaves them
out, and so should a comparison. Confidence: mean largest probability.

Made with {versions}.
"""


def relative_error(value: np.ndarray, expected: np.ndarray) -> float:
    """The worst position's ||value - expected|| / ||expected||."""
    distance = np.linalg.norm(value.astype(np.float64) - expected, axis=-1)
    return float((distance / np.linalg.norm(expected, axis=-1)).max())


def run_transformers(case: cases.Case, tensors: dict, ids: np.ndarray):
    """(float32 logits, bfloat16 logits) of a dequantised copy."""
    import torch
    import transformers

    config = {k: v for k, v in case.config.items() if k != "quantization_config"}
    last = f"model.layers.{config['num_hidden_layers']}."
    plain = {
        name: tensor
        for name, tensor in tensorfile.dequantise_all(tensors).items()
        if not name.startswith(last)  # transformers has no MTP layer
    }
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        (path / "config.json").write_text(json.dumps(config))
        tensorfile.save(path / "model.safetensors", plain)
        outputs = []
        for dtype in (torch.float32, torch.bfloat16):
            model, info = transformers.AutoModelForCausalLM.from_pretrained(
                path, dtype=dtype, attn_implementation="eager", output_loading_info=True
            )
            bad = {key: names for key, names in info.items() if names}
            if bad:
                raise ValueError(f"{case.name}: transformers did not load the checkpoint: {bad}")
            with torch.no_grad():
                logits = model.eval()(torch.from_numpy(ids.astype(np.int64))[None]).logits[0]
            outputs.append(logits.float().numpy())
    return outputs


def make(case: cases.Case, root: pathlib.Path, use_transformers: bool) -> str:
    """Writes one case; returns its line of the summary table."""
    folder = root / case.name
    folder.mkdir(parents=True, exist_ok=True)
    tensors = cases.make_weights(case)
    (folder / "config.json").write_text(json.dumps(case.config, indent=2) + "\n")
    weights_path = folder / "model.safetensors"
    weights_path.unlink(missing_ok=True)
    if case.weights_of:
        os.symlink(f"../{case.weights_of}/model.safetensors", weights_path)
    else:
        tensorfile.save(weights_path, tensors)

    ids = cases.token_ids(case)
    expected = reference.Model(case.config, tensorfile.dequantise_all(tensors)).forward(ids)
    reference_path = folder / "reference.safetensors"
    f32 = bf16 = None
    if use_transformers:
        f32, bf16 = run_transformers(case, tensors, ids)
        bf16 = bf16[BF16_POSITIONS].astype(tensorfile.BF16)
    elif reference_path.exists():
        old = tensorfile.load(reference_path)
        same_shape = old["logits"].shape == expected.logits.shape
        if same_shape and relative_error(old["logits"], expected.logits) <= AGREEMENT:
            f32, bf16 = old["logits"], old.get("logits_bf16")
    source, logits, error_f32 = "float64 reference", expected.logits.astype(np.float32), None
    if bf16 is not None:
        error_f32 = relative_error(f32, expected.logits)
        if error_f32 <= AGREEMENT:
            source, logits = "transformers, float32", f32

    outputs = {
        "ids": ids,
        "logits": logits,
        "hidden_positions": np.array(HIDDEN_POSITIONS, np.int32),
        "hidden": np.stack(expected.hidden)[:, HIDDEN_POSITIONS].astype(np.float32),
        "final_norm": expected.final[HIDDEN_POSITIONS].astype(np.float32),
    }
    for layer, routes in expected.routes.items():
        outputs[f"routes.{layer}"] = routes.astype(np.int32)
        outputs[f"margins.{layer}"] = expected.margins[layer].astype(np.float32)
        later = expected.attends.get(layer + 1)
        if later is not None and len(later) == len(ids):
            pairs = np.argwhere(np.tril(later, -1) >= ATTENDS)
            outputs[f"attends.{layer + 1}"] = pairs.astype(np.int32)
    if expected.mtp_logits is not None:
        outputs["mtp_logits"] = expected.mtp_logits.astype(np.float32)
    if bf16 is not None:
        outputs["logits_bf16"] = bf16
    tensorfile.save(reference_path, outputs)

    main = [m for m in expected.margins.values() if len(m) == len(ids)]
    margin = np.min([np.full(len(ids), np.inf), *main], axis=0)  # closest decision of each token
    error_bf16 = None
    if bf16 is not None:
        clear = (margin >= NEAR_TIE)[BF16_POSITIONS]
        error_bf16 = relative_error(bf16[clear], expected.logits[BF16_POSITIONS][clear])
    confidence = np.exp(expected.logits - np.logaddexp.reduce(expected.logits, -1, keepdims=True))
    return (
        f"| {case.name} | {source} | {_number(error_f32)} | {_number(error_bf16)} | "
        f"{_number(margin.min())} | {int((margin < NEAR_TIE).sum())} | "
        f"{confidence.max(-1).mean():.2f} |"
    )


def make_shipped(checkpoint: pathlib.Path, folder: pathlib.Path) -> None:
    """Writes the reference of a trained checkpoint; fails where transformers disagrees."""
    measured = tensorfile.load(checkpoint / "transformers.safetensors")
    ids, positions = measured["ids"].astype(np.int32), measured["positions"].astype(np.int32)
    tensors = tensorfile.dequantise_all(tensorfile.load(checkpoint / "model.safetensors"))
    config = json.loads((checkpoint / "config.json").read_text())
    expected = reference.Model(config, tensors).forward(ids)
    error = relative_error(measured["logits"], expected.logits[positions])
    if error > AGREEMENT:
        raise ValueError(f"{checkpoint}: transformers' logits differ by {error:.1e}")
    outputs = {
        "ids": ids,
        "positions": positions,
        "logits": measured["logits"],
        "hidden": np.stack(expected.hidden)[:, positions].astype(np.float32),
        "final_norm": expected.final[positions].astype(np.float32),
    }
    for layer, margins in expected.margins.items():
        outputs[f"routes.{layer}"] = expected.routes[layer].astype(np.int32)
        outputs[f"margins.{layer}"] = margins.astype(np.float32)
    if expected.mtp_logits is not None:
        drafting = positions[positions < len(ids) - 1]  # the last token has no next one
        outputs["mtp_logits"] = expected.mtp_logits[drafting].astype(np.float32)
    folder.mkdir(parents=True, exist_ok=True)
    tensorfile.save(folder / "reference.safetensors", outputs)
    print(f"{checkpoint.name}: transformers' logits agree to {error:.1e}")


def _number(value: float | None) -> str:
    return "-" if value is None or np.isinf(value) else f"{value:.1e}"


def versions(use_transformers: bool) -> str:
    names = [f"numpy {np.__version__}"]
    if use_transformers:
        import torch
        import transformers

        names += [f"torch {torch.__version__}", f"transformers {transformers.__version__}"]
    return ", ".join(names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--transformers", action="store_true")
    parser.add_argument("--only", help="one case")
    parser.add_argument("--shipped", type=pathlib.Path, help="a trained checkpoint's folder")
    args = parser.parse_args()
    if args.shipped:
        make_shipped(args.shipped, args.output / args.shipped.name)
        return
    lines = [TABLE_HEAD]
    for case in cases.CASES:
        if args.only in (None, case.name):
            lines.append(make(case, args.output, args.transformers))
            print(lines[-1], flush=True)
    if args.only is None:
        text = README.format(table="\n".join(lines), versions=versions(args.transformers))
        (args.output / "README.md").write_text(text)


if __name__ == "__main__":
    main()
