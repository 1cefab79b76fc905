"""Writes a checkpoint as the hub lays it out, and checks it against transformers."""

import json
import pathlib
import tempfile

import torch
from safetensors.torch import load_file, save_file

from tiny import models, text

CHECKED_POSITIONS = (0, 1, 2, 31, 127, 255, 299)  # whose logits transformers.safetensors keeps


def hub_tensors(model: models.Model) -> dict[str, torch.Tensor]:
    """Published names and dtypes: experts e4m3 with block scales, the rest bfloat16."""
    tensors = {}

    def add_fp8(name, weight):
        values, scales = models.quantise(weight)
        tensors[f"{name}.weight"] = values
        tensors[f"{name}.weight_scale_inv"] = scales

    for name, value in model.state_dict().items():
        if name == "lm_head.weight" and model.config["tie_word_embeddings"]:
            continue
        if name.endswith("e_score_correction_bias"):
            tensors[name] = value.float()
        elif ".experts." in name:
            prefix, projection = name.rsplit(".", 1)
            for expert, weight in enumerate(value):
                add_fp8(f"{prefix}.{expert}.{projection}", weight)
        elif ".shared_experts." in name:
            add_fp8(name.removesuffix(".weight"), value)
        else:
            tensors[name] = value.bfloat16()
    if model.mtp is not None:
        prefix = f"model.layers.{model.config['num_hidden_layers']}"
        tensors[f"{prefix}.embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
        tensors[f"{prefix}.shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    return {name: t.contiguous().cpu() for name, t in sorted(tensors.items())}


def read_checkpoint(model: models.Model, folder: pathlib.Path) -> None:
    """The inverse of hub_tensors for checkpoints without fp8 experts."""
    stored = load_file(folder / "model.safetensors", device=str(model.inv_freq.device))
    if "lm_head.weight" not in stored:  # tied
        stored["lm_head.weight"] = stored["model.embed_tokens.weight"]
    model.load_state_dict({name: t.float() for name, t in stored.items()})


def write_json(path: pathlib.Path, value) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_checkpoint(model: models.Model, tokenizer, folder: pathlib.Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    config = model.config
    save_file(hub_tensors(model), folder / "model.safetensors", metadata={"format": "pt"})
    write_json(folder / "config.json", config)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    write_json(
        folder / "tokenizer_config.json",
        {
            "add_bos_token": True,
            "add_eos_token": False,
            "bos_token": text.BOS,
            "eos_token": text.EOS,
            "pad_token": text.PAD,
            "unk_token": None,
            "clean_up_tokenization_spaces": False,
            "model_max_length": config["max_position_embeddings"],
            "tokenizer_class": "PreTrainedTokenizerFast",
            "chat_template": text.CHAT_TEMPLATE,
        },
    )
    write_json(
        folder / "generation_config.json",
        {
            "bos_token_id": config["bos_token_id"],
            "eos_token_id": config["eos_token_id"],
            "do_sample": True,
            "temperature": 0.8,  # at 0.6 so small a model soon repeats itself
            "top_p": 0.95,
        },
    )


@torch.no_grad()
def check_with_transformers(model: models.Model, folder: pathlib.Path, ids: list[int]) -> dict:
    """Relative errors of this program's bfloat16 logits against transformers in float32.

    transformers reads a copy whose experts are dequantised; it knows no MTP layer.
    """
    import transformers

    stored = load_file(folder / "model.safetensors")
    last = f"model.layers.{model.config['num_hidden_layers']}."
    plain = {}
    for name, tensor in stored.items():
        scales = stored.get(name + "_scale_inv")
        if not name.startswith(last) and not name.endswith("_scale_inv"):
            plain[name] = tensor.float() if scales is None else models.dequantise(tensor, scales)
    config = {k: v for k, v in model.config.items() if k != "quantization_config"}
    with tempfile.TemporaryDirectory() as copy:
        write_json(pathlib.Path(copy) / "config.json", config)
        save_file(plain, pathlib.Path(copy) / "model.safetensors", metadata={"format": "pt"})
        other, info = transformers.AutoModelForCausalLM.from_pretrained(
            copy, dtype=torch.float32, output_loading_info=True, attn_implementation="eager"
        )
    unread = {key: sorted(names)[:4] for key, names in info.items() if names}
    expected = other.eval()(torch.tensor(ids)[None]).logits[0]
    model.eval()
    with torch.compiler.set_stance("force_eager"):
        x, _ = model(torch.tensor(ids, device=model.inv_freq.device)[None])
        logits = model.logits(x).cpu()
    positions = torch.tensor([p for p in CHECKED_POSITIONS if p < len(ids)])
    stored = {"ids": torch.tensor(ids), "positions": positions, "logits": expected[positions]}
    save_file(stored, folder / "transformers.safetensors")
    error = (logits - expected).norm(dim=-1) / expected.norm(dim=-1)
    return {
        "worst_relative_error": error.max().item(),
        "mean_relative_error": error.mean().item(),
        "same_top_token": (logits.argmax(-1) == expected.argmax(-1)).float().mean().item(),
        "not_loaded": unread,
    }
