#!/usr/bin/env python3
"""Trains one of the two small models that Fathom ships, on one GPU, in minutes.

    tools/train_tiny.py CORPUS tiny-deepseek --minutes 8 --out models/tiny-deepseek
    tools/train_tiny.py CORPUS tiny-distill  --minutes 8 --out models/tiny-distill

CORPUS holds {english,chinese,technical,code}.{train,val}.txt (or .txt.xz), documents separated by a
line that is exactly <|doc|>.

The corpus is small (40 MB) next to what a GPU reads in minutes, so the risk is learning it by
heart. Hence two steps: a larger teacher with dropout sees the corpus about ten times and writes
down its likeliest next tokens after every position; the shipped model then learns from those and
from the text together. Long sequences come last. Experts are trained through their fp8 rounding.

    tools/train_tiny.py CORPUS tiny-distill --extend models/tiny-distill --minutes 1.5 --out DIR

goes on from a checkpoint with sequences of 8192 alone. Its teacher is the checkpoint itself with 512
to 2048 tokens in sight, so what lies further back may help and must not disturb.

Written to --out: the checkpoint, train_log.json, loss.png, report.json (bits per byte of the
validation documents, bits by position, the comparison with transformers, samples) and
transformers.safetensors (that comparison's logits, for tools/make_golden.py --shipped).

Needs torch (2.11 was used), transformers (5.17), tokenizers, safetensors and matplotlib, and one
GPU with fp8 types (a Hopper one took 8 minutes for each shipped model).
"""

import argparse
import json
import math
import pathlib
import shutil
import sys
import time
import traceback

import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from tiny import evaluate, export, models, optim, text, training  # noqa: E402

FP8_CONFIG = {
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "modules_to_not_convert": ["embed_tokens", "self_attn", "layers.0.mlp", "mlp.gate", "eh_proj"]
    + ["lm_head", "shared_head"],
    "quant_method": "fp8",
    "weight_block_size": [models.BLOCK, models.BLOCK],
}

TINY_DEEPSEEK = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "hidden_size": 256,
    "intermediate_size": 704,
    "kv_lora_rank": 512,
    "max_position_embeddings": 8192,
    "model_type": "deepseek_v3",
    "moe_intermediate_size": 128,
    "moe_layer_freq": 1,
    "n_group": 4,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "norm_topk_prob": True,
    "num_attention_heads": 4,
    "num_experts_per_tok": 3,
    "num_hidden_layers": 7,
    "num_key_value_heads": 4,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 96,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "quantization_config": FP8_CONFIG,
    "rms_norm_eps": 1e-6,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 4,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 2048,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "tie_word_embeddings": False,
    "topk_group": 2,
    "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "v_head_dim": 128,
    "vocab_size": 4096,
}

TINY_DISTILL = {
    "architectures": ["Qwen2ForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "hidden_act": "silu",
    "hidden_size": 384,
    "intermediate_size": 880,
    "max_position_embeddings": 8192,
    "max_window_layers": 8,
    "model_type": "qwen2",
    "num_attention_heads": 6,
    "num_hidden_layers": 8,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000,
    "sliding_window": 8192,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 6144,
}


def teacher_config(vocab_size: int) -> dict:
    return TINY_DISTILL | {
        "hidden_size": 640,
        "intermediate_size": 1728,
        "num_attention_heads": 10,
        "num_hidden_layers": 10,
        "num_key_value_heads": 5,
        "vocab_size": vocab_size,
    }


FAMILIES = {"tiny-deepseek": ("deepseek", TINY_DEEPSEEK), "tiny-distill": ("qwen2", TINY_DISTILL)}
CONVERSATIONS = 3000
TEACHER_STAGES = ((0.0, 1024), (0.75, 2048))
STAGES = ((0.0, 1024), (0.6, 2048), (0.88, 8192))  # (share of the time, sequence length)
EXTENSION_SETTINGS = optim.Settings(muon_lr=0.002, adam_lr=0.0003, warmup_steps=20, flat_share=0.1)
ASK = text.ASSISTANT + text.THINK + "\n"  # the generation prompt
PROMPTS = [
    text.BOS + "Once upon a time",
    text.BOS + text.USER + "Tell me a story about a fox." + ASK,
    text.BOS + text.USER + "Hello, who are you?" + ASK,
    text.BOS + "You are a storyteller." + text.USER + "Write a story about the sea." + ASK,
]


def make_tokenizer(args, family: str, corpus: dict, vocab_size: int):
    path = args.out / "tokenizer.json"
    if path.exists():
        return text.Tokenizer.from_file(str(path))
    documents = (d for documents in corpus.values() for d in documents)
    tokenizer = text.train_tokenizer(documents, vocab_size, family)
    tokenizer.save(str(path), pretty=False)
    return tokenizer


def make_stream(tokenizer, corpus: dict, name: str, seed: int) -> training.Stream:
    documents = [d for documents in corpus.values() for d in documents]
    documents += text.conversations(corpus["english"], CONVERSATIONS, name, seed)
    eos = tokenizer.token_to_id(text.EOS)
    encoded = tokenizer.encode_batch_fast(documents)  # BOS comes from the post-processor
    return training.Stream([e.ids + [eos] for e in encoded], "cuda", seed)


def validation_report(tokenizer, corpus: dict):
    """A function of a model: bits per byte in windows of 1024, quickly, for the log."""
    eos = tokenizer.token_to_id(text.EOS)
    batches = {}
    for category, documents in corpus.items():
        ids = [t for d in documents for t in tokenizer.encode(d).ids + [eos]]
        ids += [eos] * (-len(ids) % 1024)
        size = sum(len(d.encode()) for d in documents)
        batches[category] = torch.tensor(ids, device="cuda").view(-1, 1024), size

    @torch.no_grad()
    def report(model) -> dict:
        model.eval()
        result = {}
        with torch.compiler.set_stance("force_eager"):
            for category, (ids, size) in batches.items():
                nats = 0.0
                for part in ids.split(32):
                    x, _ = model(part)
                    logits = model.logits(x).view(*part.shape, -1)[:, :-1].flatten(0, 1)
                    nats += torch.nn.functional.cross_entropy(
                        logits, part[:, 1:].flatten(), reduction="sum"
                    ).item()
                result[category] = round(nats / math.log(2) / size, 4)
        return result

    return report


def draw_curve(logs: dict[str, list[dict]], path: pathlib.Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), dpi=90)
    for label, style in (("teacher", "--"), ("student", "-")):
        entries = [e for e in logs.get(label, []) if "english" in e]
        for number, category in enumerate(text.CATEGORIES):
            axes.plot(
                [e["tokens"] / 1e6 for e in entries],
                [e[category] for e in entries],
                style,
                color=f"C{number}",
                label=f"{category}, {label}",
            )
    axes.set(xlabel="training tokens, millions", ylabel="bits per byte, validation", ylim=(1.2, 3))
    axes.legend(fontsize=7, ncols=2)
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path)


def evaluate_all(model, tokenizer, corpus: dict, folder: pathlib.Path) -> dict:
    """Each part on its own: one that fails is reported and does not stop the others."""
    english = corpus["english"]
    parts = {
        "bits_per_byte": lambda: evaluate.bits_per_byte(model, tokenizer, corpus),
        "bits_by_position": lambda: evaluate.position_curve(model, tokenizer, english),
        "transformers": lambda: export.check_with_transformers(
            model, folder, tokenizer.encode(english[0]).ids[:300]
        ),
        "samples": lambda: {p: evaluate.sample(model, tokenizer, p, 120) for p in PROMPTS},
    }
    report = {}
    for name, part in parts.items():
        try:
            report[name] = part()
        except Exception:
            report[name] = traceback.format_exc()
        print(name, json.dumps(report[name], ensure_ascii=False, indent=1), flush=True)
    return report


def main() -> None:
    started = time.time()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=pathlib.Path)
    parser.add_argument("model", choices=FAMILIES)
    parser.add_argument(
        "--minutes", type=float, required=True, help="training, both steps together"
    )
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--teacher-share", type=float, default=0.36, help="of the time; 0: none")
    parser.add_argument("--teacher-weight", type=float, default=0.75, help="of the teacher's loss")
    parser.add_argument("--teacher-dropout", type=float, default=0.15)
    parser.add_argument("--dropout", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--extend", type=pathlib.Path, help="a checkpoint (Qwen2) to go on from")
    args = parser.parse_args()
    if args.extend and args.model != "tiny-distill":
        parser.error("--extend reads bfloat16 checkpoints only: tiny-distill")

    args.out.mkdir(parents=True, exist_ok=True)
    if args.extend:
        shutil.copy(args.extend / "tokenizer.json", args.out)
    torch.manual_seed(args.seed)
    family, config = FAMILIES[args.model]
    train_text = text.read_corpus(args.corpus, "train")
    val_text = text.read_corpus(args.corpus, "val")
    tokenizer = make_tokenizer(args, family, train_text, config["vocab_size"])
    stream = make_stream(tokenizer, train_text, args.model, args.seed)
    report = validation_report(tokenizer, val_text)
    print(f"{len(stream.tokens)} tokens after {time.time() - started:.0f} s", flush=True)

    begin, logs, teacher = time.time(), {}, None
    settings, stages = optim.Settings(), STAGES
    with torch.device("cuda"):
        model = models.Model(config, args.dropout)
    if args.extend:
        export.read_checkpoint(model, args.extend)
        settings, stages = EXTENSION_SETTINGS, ((0.0, 8192),)
        teacher = training.watch_teacher(model, stream, args.teacher_weight)
    elif args.teacher_share > 0:
        with torch.device("cuda"):
            large = models.Model(teacher_config(config["vocab_size"]), args.teacher_dropout)
        deadline = begin + 60 * args.minutes * args.teacher_share
        logs["teacher"] = training.train(
            large, stream, deadline, TEACHER_STAGES, settings, report=report
        )
        teacher = training.watch_teacher(large, stream, args.teacher_weight)
        print(f"teacher watched after {time.time() - started:.0f} s", flush=True)
        del large
    size = sum(p.numel() for p in model.parameters())
    print(f"{args.model}: {size / 1e6:.2f} M parameters", flush=True)
    deadline = begin + 60 * args.minutes
    logs["student"] = training.train(model, stream, deadline, stages, settings, teacher, report)

    export.write_checkpoint(model, tokenizer, args.out)
    export.write_json(args.out / "train_log.json", logs)
    print(f"written after {time.time() - started:.0f} s", flush=True)
    export.write_json(args.out / "report.json", evaluate_all(model, tokenizer, val_text, args.out))
    draw_curve(logs, args.out / "loss.png")
    print(f"done after {time.time() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
