"""The golden checkpoints: configurations as published, shrunk, and their seeded random weights."""

import dataclasses

import ml_dtypes
import numpy as np

from golden import tensorfile

VOCAB = 64
TOKENS = 600  # well past ORIGINAL, so that every rope variant acts
ORIGINAL = 256  # original_max_position_embeddings


@dataclasses.dataclass
class Case:
    """The MoE cases' seeds are chosen so that no routing decision is closer than 2e-5, and so that
    few change when activations are rounded to bfloat16."""

    name: str
    config: dict
    seed: int
    fp8: bool = False
    weights_of: str | None = None  # another case's model.safetensors, linked


def _yarn(mscale: float) -> dict:
    return {
        "type": "yarn",
        "factor": 40,
        "original_max_position_embeddings": ORIGINAL,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": mscale,
        "mscale_all_dim": mscale,
    }


def _deepseek(architecture: str, model_type: str, mscale: float, **fields) -> dict:
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": VOCAB,
        "hidden_size": 128,
        "intermediate_size": 192,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "hidden_act": "silu",
        "max_position_embeddings": 40 * ORIGINAL,
        "rope_theta": 10000,
        "rope_scaling": _yarn(mscale),
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "torch_dtype": "bfloat16",
        **fields,
    }


def _qwen2(hidden: int, heads: int, tied: bool, **fields) -> dict:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": VOCAB,
        "hidden_size": hidden,
        "intermediate_size": 192,
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "rope_theta": 10000,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": tied,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 2,
        "attention_dropout": 0.0,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "torch_dtype": "bfloat16",
        **fields,
    }


def _llama(**fields) -> dict:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCAB,
        "hidden_size": 128,
        "intermediate_size": 192,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "rope_theta": 500000.0,
        "rms_norm_eps": 1e-5,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "torch_dtype": "bfloat16",
        **fields,
    }


_LINEAR = {"rope_type": "linear", "factor": 4.0}
_DYNAMIC = {"rope_type": "dynamic", "factor": 4.0}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": ORIGINAL}
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": ORIGINAL,
}

CASES = [
    Case(
        "deepseek_v2_lite",
        _deepseek(
            "DeepseekV2ForCausalLM",
            "deepseek_v2",
            0.707,
            num_hidden_layers=2,
            q_lora_rank=None,
            moe_intermediate_size=48,
            n_routed_experts=8,
            n_shared_experts=2,
            num_experts_per_tok=3,
            n_group=1,
            topk_group=1,
            topk_method="greedy",
            scoring_func="softmax",
            norm_topk_prob=False,
            routed_scaling_factor=1.0,
        ),
        seed=54,
    ),
    Case(
        "deepseek_v2",
        _deepseek(
            "DeepseekV2ForCausalLM",
            "deepseek_v2",
            0.707,
            num_hidden_layers=2,
            q_lora_rank=64,
            moe_intermediate_size=32,
            n_routed_experts=16,
            n_shared_experts=2,
            num_experts_per_tok=3,
            n_group=4,
            topk_group=2,
            topk_method="group_limited_greedy",
            scoring_func="softmax",
            norm_topk_prob=False,
            routed_scaling_factor=16.0,
        ),
        seed=59,
    ),
    Case(
        "deepseek_v3",
        _deepseek(
            "DeepseekV3ForCausalLM",
            "deepseek_v3",
            1.0,
            hidden_size=160,  # not a multiple of the scale block
            intermediate_size=320,
            num_hidden_layers=3,
            q_lora_rank=96,
            moe_intermediate_size=48,
            n_routed_experts=16,
            n_shared_experts=1,
            num_experts_per_tok=4,
            n_group=4,
            topk_group=2,
            topk_method="noaux_tc",
            scoring_func="sigmoid",
            norm_topk_prob=True,
            routed_scaling_factor=2.5,
            num_nextn_predict_layers=1,
            quantization_config={
                "activation_scheme": "dynamic",
                "fmt": "e4m3",
                "quant_method": "fp8",
                "weight_block_size": [tensorfile.BLOCK, tensorfile.BLOCK],
            },
        ),
        seed=50,
        fp8=True,
    ),
    Case("qwen2", _qwen2(256, 4, tied=False), seed=4),
    Case("qwen2_tied", _qwen2(128, 2, tied=True), seed=5),
    Case(
        "qwen2_linear",
        _qwen2(256, 4, tied=False, rope_scaling=_LINEAR),
        seed=4,
        weights_of="qwen2",
    ),
    Case(
        "qwen2_dynamic",
        _qwen2(256, 4, tied=False, rope_scaling=_DYNAMIC, max_position_embeddings=ORIGINAL),
        seed=4,
        weights_of="qwen2",
    ),
    Case("qwen2_yarn", _qwen2(256, 4, tied=False, rope_scaling=_YARN), seed=4, weights_of="qwen2"),
    Case("llama", _llama(rope_scaling=_LLAMA3), seed=6),
    Case("llama_none", _llama(), seed=6, weights_of="llama"),
    Case("llama_linear", _llama(rope_scaling=_LINEAR), seed=6, weights_of="llama"),
    Case(
        "llama_dynamic",
        _llama(rope_scaling=_DYNAMIC, max_position_embeddings=ORIGINAL),
        seed=6,
        weights_of="llama",
    ),
]


class _Weights:
    """Draws tensors whose size keeps attention and routing far from uniform."""

    def __init__(self, case: Case):
        self.rng = np.random.default_rng(case.seed)
        self.fp8 = case.fp8
        self.config = case.config
        self.tensors: dict[str, np.ndarray] = {}

    def linear(self, name, rows, cols, gain=1.0, bias=False, quantised=True):
        weight = self.rng.standard_normal((rows, cols)) * gain / np.sqrt(cols)
        # A few rows far larger than the others, so that a misplaced block scale shows.
        weight[:: max(rows // 3, 1)] *= 2
        weight = weight.astype(ml_dtypes.bfloat16)
        if self.fp8 and quantised:
            values, scales = tensorfile.quantise_fp8(weight.astype(np.float32))
            self.tensors[name + ".weight"] = values
            self.tensors[name + ".weight_scale_inv"] = scales
        else:
            self.tensors[name + ".weight"] = weight
        if bias:
            draw = self.rng.standard_normal(rows) * 0.5
            self.tensors[name + ".bias"] = draw.astype(ml_dtypes.bfloat16)

    def norm(self, name, size):
        draw = 1 + 0.2 * self.rng.standard_normal(size)
        self.tensors[name + ".weight"] = draw.astype(ml_dtypes.bfloat16)

    def mlp(self, name, width, gain=1.0):
        hidden = self.config["hidden_size"]
        self.linear(name + ".gate_proj", width, hidden)
        self.linear(name + ".up_proj", width, hidden)
        self.linear(name + ".down_proj", hidden, width, gain=gain)

    def latent_attention(self, name):
        config = self.config
        hidden, heads, lora = (
            config[k] for k in ("hidden_size", "num_attention_heads", "kv_lora_rank")
        )
        nope, rope, value = (
            config[k] for k in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        )
        q_rows = heads * (nope + rope)
        if config["q_lora_rank"] is None:
            self.linear(name + ".q_proj", q_rows, hidden, gain=0.8)
        else:
            self.linear(name + ".q_a_proj", config["q_lora_rank"], hidden)
            self.norm(name + ".q_a_layernorm", config["q_lora_rank"])
            self.linear(name + ".q_b_proj", q_rows, config["q_lora_rank"], gain=0.8)
        self.linear(name + ".kv_a_proj_with_mqa", lora + rope, hidden)
        self.norm(name + ".kv_a_layernorm", lora)
        self.linear(name + ".kv_b_proj", heads * (nope + value), lora)
        self.linear(name + ".o_proj", hidden, heads * value)

    def grouped_attention(self, name):
        config = self.config
        hidden, heads, kv_heads = (
            config[k] for k in ("hidden_size", "num_attention_heads", "num_key_value_heads")
        )
        dim = config.get("head_dim", hidden // heads)
        bias = config["model_type"] == "qwen2"
        self.linear(name + ".q_proj", heads * dim, hidden, gain=1.2, bias=bias)
        self.linear(name + ".k_proj", kv_heads * dim, hidden, gain=1.2, bias=bias)
        self.linear(name + ".v_proj", kv_heads * dim, hidden, bias=bias)
        self.linear(name + ".o_proj", hidden, heads * dim)

    def layer(self, index):
        config, name = self.config, f"model.layers.{index}"
        hidden = config["hidden_size"]
        self.norm(name + ".input_layernorm", hidden)
        self.norm(name + ".post_attention_layernorm", hidden)
        if "kv_lora_rank" not in config:
            self.grouped_attention(name + ".self_attn")
            self.mlp(name + ".mlp", config["intermediate_size"])
            return
        self.latent_attention(name + ".self_attn")
        if index < config["first_k_dense_replace"]:
            self.mlp(name + ".mlp", config["intermediate_size"])
            return
        experts, width = config["n_routed_experts"], config["moe_intermediate_size"]
        # Weights that are not renormalised sum to about a half. The mixture stays smaller than the
        # residual stream, so that one expert chosen otherwise in bfloat16 is not a catastrophe.
        gain = (1 if config["norm_topk_prob"] else 2) / config["routed_scaling_factor"]
        self.linear(name + ".mlp.gate", experts, hidden, gain=1.5, quantised=False)
        if config["topk_method"] == "noaux_tc":
            bias = self.rng.standard_normal(experts) * 0.1
            self.tensors[name + ".mlp.gate.e_score_correction_bias"] = bias.astype(np.float32)
        for expert in range(experts):
            self.mlp(f"{name}.mlp.experts.{expert}", width, gain=gain)
        self.mlp(name + ".mlp.shared_experts", config["n_shared_experts"] * width)


def make_weights(case: Case) -> dict[str, np.ndarray]:
    weights, config = _Weights(case), case.config
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    draw = weights.rng.standard_normal((VOCAB, hidden))
    if config["tie_word_embeddings"]:
        draw *= 2 / np.sqrt(hidden)  # as an output matrix
    weights.tensors["model.embed_tokens.weight"] = draw.astype(ml_dtypes.bfloat16)
    for index in range(layers):
        weights.layer(index)
    weights.norm("model.norm", hidden)
    if not config["tie_word_embeddings"]:
        weights.linear("lm_head", VOCAB, hidden, gain=2.0, quantised=False)
    if config.get("num_nextn_predict_layers"):
        name = f"model.layers.{layers}"
        for tensor, source in (
            ("embed_tokens", "model.embed_tokens"),
            ("shared_head.head", "lm_head"),
        ):
            weights.tensors[f"{name}.{tensor}.weight"] = weights.tensors[source + ".weight"]
        weights.norm(name + ".enorm", hidden)
        weights.norm(name + ".hnorm", hidden)
        weights.linear(name + ".eh_proj", hidden, 2 * hidden, quantised=False)
        weights.layer(layers)
        weights.norm(name + ".shared_head.norm", hidden)
    return weights.tensors


def token_ids(case: Case) -> np.ndarray:
    return np.random.default_rng(1000 + case.seed).integers(0, VOCAB, TOKENS).astype(np.int32)
