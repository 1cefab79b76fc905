#!/usr/bin/env python3
"""Writes a model of random weights twice: as Hugging Face lays it out, and as GGUF in bf16 and f16.

    make_models.py {qwen2-1.5b,v2-lite-6} FOLDER

The shapes are DeepSeek-R1-Distill-Qwen-1.5B's, and DeepSeek-V2-Lite's with 6 of its 27 layers and
without YaRN. Every weight is exact in both types, so all programs see the same numbers. Matrices
are scaled by 1/sqrt(inputs), those that write to the residual stream by its depth besides, so that
activations keep their size and logits stay finite.
"""

import argparse
import json
import math
import pathlib

import bf16_file
import gguf
import numpy as np

QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "vocab_size": 151936,
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "rope_theta": 10000,
}
V2_LITE = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "vocab_size": 102400,
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "num_hidden_layers": 6,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "q_lora_rank": None,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "moe_intermediate_size": 1408,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "topk_method": "greedy",
    "scoring_func": "softmax",
    "norm_topk_prob": False,
    "routed_scaling_factor": 1.0,
    "attention_bias": False,
    "rope_theta": 10000,
}
COMMON = {
    "hidden_act": "silu",
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 0,
    "eos_token_id": 1,
}
CONFIGS = {"qwen2-1.5b": QWEN2 | COMMON, "v2-lite-6": V2_LITE | COMMON}


def mlp_shapes(prefix, hidden, inner):
    return {
        f"{prefix}.gate_proj.weight": (inner, hidden),
        f"{prefix}.up_proj.weight": (inner, hidden),
        f"{prefix}.down_proj.weight": (hidden, inner),
    }


def attention_shapes(prefix, c):
    hidden, heads = c["hidden_size"], c["num_attention_heads"]
    if c["model_type"] == "qwen2":
        kv = c["num_key_value_heads"] * hidden // heads
        shapes = {f"{prefix}.o_proj.weight": (hidden, hidden)}
        for name, rows in (("q", hidden), ("k", kv), ("v", kv)):
            shapes[f"{prefix}.{name}_proj.weight"] = (rows, hidden)
            shapes[f"{prefix}.{name}_proj.bias"] = (rows,)
        return shapes
    latent, nope, rope, v = (
        c[k] for k in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    )
    return {
        f"{prefix}.q_proj.weight": (heads * (nope + rope), hidden),
        f"{prefix}.kv_a_proj_with_mqa.weight": (latent + rope, hidden),
        f"{prefix}.kv_a_layernorm.weight": (latent,),
        f"{prefix}.kv_b_proj.weight": (heads * (nope + v), latent),
        f"{prefix}.o_proj.weight": (hidden, heads * v),
    }


def shapes_of(c):
    hidden, vocab = c["hidden_size"], c["vocab_size"]
    shapes = {"model.embed_tokens.weight": (vocab, hidden)}
    for layer in range(c["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        shapes[f"{prefix}.input_layernorm.weight"] = (hidden,)
        shapes |= attention_shapes(f"{prefix}.self_attn", c)
        shapes[f"{prefix}.post_attention_layernorm.weight"] = (hidden,)
        if layer < c.get("first_k_dense_replace", c["num_hidden_layers"]):
            shapes |= mlp_shapes(f"{prefix}.mlp", hidden, c["intermediate_size"])
            continue
        inner, experts = c["moe_intermediate_size"], c["n_routed_experts"]
        shapes[f"{prefix}.mlp.gate.weight"] = (experts, hidden)
        shapes |= mlp_shapes(f"{prefix}.mlp.shared_experts", hidden, inner * c["n_shared_experts"])
        for expert in range(experts):
            shapes |= mlp_shapes(f"{prefix}.mlp.experts.{expert}", hidden, inner)
    shapes["model.norm.weight"] = (hidden,)
    shapes["lm_head.weight"] = (vocab, hidden)
    return shapes


def random_values(c):
    random = np.random.default_rng(1)
    into_residual = 1 / math.sqrt(2 * c["num_hidden_layers"])

    def values(name, shape):
        x = random.standard_normal(math.prod(shape), dtype=np.float32)
        if "norm" in name:
            x = 1 + np.float32(0.1) * x
        elif name.endswith("bias"):
            x *= np.float32(0.1)
        elif "embed_tokens" not in name:
            residual = "o_proj" in name or "down_proj" in name
            x *= np.float32((into_residual if residual else 1) / math.sqrt(shape[1]))
        return bf16_file.rounded_bits(x)

    return values


# What GGUF calls the tensors of a layer; experts are stacked, and kv_b is cut (write_gguf).
LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
}
OUTER_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def gguf_tensors(c, tensors):
    """(name, bits) of every GGUF tensor."""
    for name, ours in OUTER_NAMES.items():
        yield ours, tensors[name]
    for layer in range(c["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        for name, bits in tensors.items():
            if not name.startswith(prefix):
                continue
            short, _, kind = name.removeprefix(prefix).rpartition(".")
            if short in LAYER_NAMES:
                yield f"blk.{layer}.{LAYER_NAMES[short]}.{kind}", bits
            elif short == "self_attn.kv_b_proj":
                heads, nope = c["num_attention_heads"], c["qk_nope_head_dim"]
                by_head = bits.reshape(heads, -1, c["kv_lora_rank"])
                yield f"blk.{layer}.attn_k_b.weight", by_head[:, :nope].transpose(0, 2, 1)
                yield f"blk.{layer}.attn_v_b.weight", by_head[:, nope:]
            else:
                assert short.startswith("mlp.experts."), f"{name}: no name in GGUF"
        for part in ("gate", "up", "down") if f"{prefix}mlp.gate.weight" in tensors else ():
            yield (
                f"blk.{layer}.ffn_{part}_exps.weight",
                np.stack(
                    [
                        tensors[f"{prefix}mlp.experts.{e}.{part}_proj.weight"]
                        for e in range(c["n_routed_experts"])
                    ]
                ),
            )


def write_gguf(path, c, tensors, f16):
    mla = "kv_lora_rank" in c
    writer = gguf.GGUFWriter(path, "deepseek2" if mla else "qwen2")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16 if f16 else gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_vocab_size(c["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    writer.add_context_length(c["max_position_embeddings"])
    writer.add_embedding_length(c["hidden_size"])
    writer.add_block_count(c["num_hidden_layers"])
    writer.add_feed_forward_length(c["intermediate_size"])
    writer.add_head_count(c["num_attention_heads"])
    writer.add_head_count_kv(1 if mla else c["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(c["rms_norm_eps"])
    writer.add_rope_freq_base(c["rope_theta"])
    if mla:
        writer.add_q_lora_rank(0)
        writer.add_kv_lora_rank(c["kv_lora_rank"])
        writer.add_key_length(c["kv_lora_rank"] + c["qk_rope_head_dim"])
        writer.add_value_length(c["kv_lora_rank"])
        writer.add_key_length_mla(c["qk_nope_head_dim"] + c["qk_rope_head_dim"])
        writer.add_value_length_mla(c["v_head_dim"])
        writer.add_rope_dimension_count(c["qk_rope_head_dim"])
        writer.add_leading_dense_block_count(c["first_k_dense_replace"])
        writer.add_expert_count(c["n_routed_experts"])
        writer.add_expert_used_count(c["num_experts_per_tok"])
        writer.add_expert_shared_count(c["n_shared_experts"])
        writer.add_expert_feed_forward_length(c["moe_intermediate_size"])
        writer.add_expert_weights_scale(c["routed_scaling_factor"])
        writer.add_expert_weights_norm(c["norm_topk_prob"])
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SOFTMAX)
    for name, bits in gguf_tensors(c, tensors):
        if bits.ndim == 1 or "ffn_gate_inp" in name:  # f32 by the format's convention
            writer.add_tensor(name, bf16_file.to_f32(bits))
        elif f16:
            writer.add_tensor(name, bf16_file.to_f32(bits).astype(np.float16))
        else:
            raw = np.ascontiguousarray(bits).view(np.uint8)
            writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", choices=CONFIGS)
    parser.add_argument("folder", type=pathlib.Path)
    args = parser.parse_args()
    config = CONFIGS[args.model]
    folder = args.folder / args.model
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    weights = folder / "model.safetensors"
    bf16_file.write(weights, shapes_of(config), random_values(config))
    tensors = bf16_file.read(weights)
    for f16 in (False, True):
        path = args.folder / f"{args.model}-{'f16' if f16 else 'bf16'}.gguf"
        write_gguf(path, config, tensors, f16)
        print(path)


if __name__ == "__main__":
    main()
