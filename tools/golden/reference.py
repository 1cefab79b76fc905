"""Float64 forward pass of the supported architectures, written from the published definitions.

It mirrors the modelling code that DeepSeek, Qwen and Meta publish with their checkpoints:
multi-head latent attention in its expanded form, the three expert-selection rules, YaRN with its
softmax factor, and the rope variants. No cache, no batching: one sequence, every position.
"""

import dataclasses
import math

import numpy as np


@dataclasses.dataclass
class Result:
    logits: np.ndarray  # [tokens, vocab]
    hidden: list[
        np.ndarray
    ]  # [tokens, hidden]: embedding, then after each layer (before model.norm)
    final: np.ndarray  # [tokens, hidden] after model.norm
    routes: dict[int, np.ndarray]  # MoE layer -> chosen experts [tokens, top_k], ascending
    margins: dict[int, np.ndarray]  # MoE layer -> [tokens], gap of the closest routing decision
    attends: dict[int, np.ndarray]  # layer -> [tokens, tokens], the largest weight of any head
    mtp_logits: np.ndarray | None = None  # [tokens - 1, vocab]


def rms_norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def yarn_mscale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def rope_frequencies(config: dict, dim: int, total_tokens: int) -> tuple[np.ndarray, float]:
    """Inverse frequencies [dim / 2] and the factor on cos and sin."""
    base = config["rope_theta"]
    exponents = np.arange(0, dim, 2, dtype=np.float64) / dim
    inv_freq = base**-exponents
    scaling = config.get("rope_scaling")
    if scaling is None:
        return inv_freq, 1.0
    kind = scaling.get("rope_type", scaling.get("type"))
    factor = scaling["factor"]
    if kind == "linear":
        return inv_freq / factor, 1.0
    if kind == "dynamic":  # NTK-aware: the base grows with the sequence's total length
        limit = config["max_position_embeddings"]
        length = max(total_tokens, limit)
        base *= (factor * length / limit - (factor - 1)) ** (dim / (dim - 2))
        return base**-exponents, 1.0
    original = scaling["original_max_position_embeddings"]
    if kind == "llama3":
        low_wavelen = original / scaling["low_freq_factor"]
        high_wavelen = original / scaling["high_freq_factor"]
        wavelen = 2 * math.pi / inv_freq
        smooth = (original / wavelen - scaling["low_freq_factor"]) / (
            scaling["high_freq_factor"] - scaling["low_freq_factor"]
        )
        blended = (1 - smooth) * inv_freq / factor + smooth * inv_freq
        slow = np.where(wavelen > low_wavelen, inv_freq / factor, blended)
        return np.where(wavelen < high_wavelen, inv_freq, slow), 1.0
    if kind != "yarn":
        raise ValueError(f"rope_scaling type {kind!r}: expected linear, dynamic, yarn or llama3")

    def correction(rotations):
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(correction(scaling.get("beta_fast", 32))), 0)
    high = min(math.ceil(correction(scaling.get("beta_slow", 1))), dim - 1)
    ramp = np.clip((np.arange(dim // 2) - low) / max(high - low, 0.001), 0, 1)
    inv_freq = inv_freq * (1 - ramp) + inv_freq / factor * ramp
    if "mscale" in scaling:
        magnitude = yarn_mscale(factor, scaling["mscale"])
        magnitude /= yarn_mscale(factor, scaling["mscale_all_dim"])
    else:
        magnitude = yarn_mscale(factor, 1.0)
    return inv_freq, magnitude


def rotate(x, cos, sin, interleaved: bool):
    """x [tokens, heads, dim]; cos, sin [tokens, 1, dim / 2]."""
    if interleaved:
        a, b = x[..., 0::2], x[..., 1::2]
        return np.stack([a * cos - b * sin, b * cos + a * sin], -1).reshape(x.shape)
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def attend(q, k, v, scale):
    """Causal attention; q [tokens, heads, dim], k and v [tokens, kv_heads, dim].

    Also the weights [heads, tokens, tokens]."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat(group, axis=1), v.repeat(group, axis=1)
    scores = np.einsum("qhd,khd->hqk", q, k) * scale
    scores = np.where(np.tri(len(q), dtype=bool), scores, -np.inf)
    weights = softmax(scores)
    return np.einsum("hqk,khd->qhd", weights, v).reshape(len(q), -1), weights


def top(values, k):
    """Mask of the k largest along the last axis, and the gap between the k-th and the next."""
    order = np.sort(values, -1)[..., ::-1]
    gap = (
        order[..., k - 1] - order[..., k]
        if k < values.shape[-1]
        else np.full(values.shape[:-1], np.inf)
    )
    return values >= order[..., k - 1 : k], gap


class Model:
    """One checkpoint: config.json as a dict, and its tensors as float32."""

    def __init__(self, config: dict, tensors: dict[str, np.ndarray]):
        self.config = config
        self.tensors = {name: t.astype(np.float64) for name, t in tensors.items()}
        self.eps = config["rms_norm_eps"]
        self.is_mla = "kv_lora_rank" in config

    def linear(self, x, name):
        y = x @ self.tensors[name + ".weight"].T
        bias = self.tensors.get(name + ".bias")
        return y if bias is None else y + bias

    def norm(self, x, name):
        return rms_norm(x, self.tensors[name + ".weight"], self.eps)

    def mlp(self, x, name):
        gated = silu(self.linear(x, name + ".gate_proj")) * self.linear(x, name + ".up_proj")
        return self.linear(gated, name + ".down_proj")

    def rope(self, dim, tokens):
        inv_freq, magnitude = rope_frequencies(self.config, dim, tokens)
        angles = np.arange(tokens)[:, None, None] * inv_freq
        return np.cos(angles) * magnitude, np.sin(angles) * magnitude

    def grouped_attention(self, x, name):
        """The layer's output and its attention weights, as latent_attention's."""
        config, tokens = self.config, len(x)
        heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        dim = config.get("head_dim") or config["hidden_size"] // heads
        cos, sin = self.rope(dim, tokens)
        q = self.linear(x, name + ".q_proj").reshape(tokens, heads, dim)
        k = self.linear(x, name + ".k_proj").reshape(tokens, kv_heads, dim)
        v = self.linear(x, name + ".v_proj").reshape(tokens, kv_heads, dim)
        q, k = rotate(q, cos, sin, False), rotate(k, cos, sin, False)
        y, weights = attend(q, k, v, dim**-0.5)
        return self.linear(y, name + ".o_proj"), weights

    def latent_attention(self, x, name):
        config, tokens = self.config, len(x)
        heads, lora = config["num_attention_heads"], config["kv_lora_rank"]
        nope, rope_dim = config["qk_nope_head_dim"], config["qk_rope_head_dim"]
        if config["q_lora_rank"] is None:
            q = self.linear(x, name + ".q_proj")
        else:
            latent = self.norm(self.linear(x, name + ".q_a_proj"), name + ".q_a_layernorm")
            q = self.linear(latent, name + ".q_b_proj")
        q = q.reshape(tokens, heads, nope + rope_dim)
        compressed = self.linear(x, name + ".kv_a_proj_with_mqa")
        k_pe = compressed[:, None, lora:]
        c_kv = self.norm(compressed[:, :lora], name + ".kv_a_layernorm")
        kv = self.linear(c_kv, name + ".kv_b_proj").reshape(tokens, heads, -1)
        cos, sin = self.rope(rope_dim, tokens)
        q_pe = rotate(q[..., nope:], cos, sin, True)
        k_pe = rotate(k_pe, cos, sin, True).repeat(heads, axis=1)
        q = np.concatenate([q[..., :nope], q_pe], -1)
        k = np.concatenate([kv[..., :nope], k_pe], -1)
        scale = (nope + rope_dim) ** -0.5
        scaling = config.get("rope_scaling")
        if scaling and scaling.get("mscale_all_dim"):
            scale *= yarn_mscale(scaling["factor"], scaling["mscale_all_dim"]) ** 2
        y, weights = attend(q, k, kv[..., nope:], scale)
        return self.linear(y, name + ".o_proj"), weights

    def route(self, x, name):
        """Weights [tokens, experts], zero where not chosen, and the closest decision's gap."""
        config, tokens = self.config, len(x)
        k, method = config["num_experts_per_tok"], config["topk_method"]
        scores = x @ self.tensors[name + ".gate.weight"].T
        scores = sigmoid(scores) if config["scoring_func"] == "sigmoid" else softmax(scores)
        choice = scores
        gap = np.full(tokens, np.inf)
        if method != "greedy":
            if method == "noaux_tc":
                choice = scores + self.tensors[name + ".gate.e_score_correction_bias"]
            groups = choice.reshape(tokens, config["n_group"], -1)
            if method == "noaux_tc":
                group_scores = np.sort(groups, -1)[..., -2:].sum(-1)
            else:
                group_scores = groups.max(-1)
            kept, gap = top(group_scores, config["topk_group"])
            choice = np.where(kept[..., None], groups, -np.inf).reshape(tokens, -1)
        chosen, expert_gap = top(choice, k)
        weights = np.where(chosen, scores, 0.0)
        if config["norm_topk_prob"]:
            weights /= weights.sum(-1, keepdims=True) + 1e-20
        weights *= config["routed_scaling_factor"]
        return weights, np.minimum(gap, expert_gap)

    def moe(self, x, name, layer, result):
        weights, margin = self.route(x, name)
        k = self.config["num_experts_per_tok"]
        result.routes[layer] = np.nonzero(weights)[1].reshape(len(x), k)
        result.margins[layer] = margin
        y = self.mlp(x, name + ".shared_experts")
        for expert in range(weights.shape[1]):
            y = y + weights[:, expert : expert + 1] * self.mlp(x, f"{name}.experts.{expert}")
        return y

    def layer(self, x, index, result):
        name = f"model.layers.{index}"
        attention = self.latent_attention if self.is_mla else self.grouped_attention
        y, weights = attention(self.norm(x, name + ".input_layernorm"), name + ".self_attn")
        result.attends[index] = weights.max(0)
        x = x + y
        y = self.norm(x, name + ".post_attention_layernorm")
        if name + ".mlp.gate.weight" in self.tensors:
            return x + self.moe(y, name + ".mlp", index, result)
        return x + self.mlp(y, name + ".mlp")

    def forward(self, ids: np.ndarray) -> Result:
        layers = self.config["num_hidden_layers"]
        x = self.tensors["model.embed_tokens.weight"][ids]
        result = Result(None, [x], None, {}, {}, {})
        for index in range(layers):
            x = self.layer(x, index, result)
            result.hidden.append(x)
        result.final = self.norm(x, "model.norm")
        tied = self.config.get("tie_word_embeddings", False)
        head = "model.embed_tokens" if tied else "lm_head"
        result.logits = result.final @ self.tensors[head + ".weight"].T
        if self.config.get("num_nextn_predict_layers"):
            result.mtp_logits = self.mtp(ids, result)
        return result

    def mtp(self, ids, result):
        """Slot p predicts token p + 2 from the final-normed hidden state of p and token p + 1.

        Slot p rotates by position p and attends to slots 0..p; slot 0's embedding is not masked.
        """
        index = self.config["num_hidden_layers"]
        name = f"model.layers.{index}"
        embedding = self.tensors[name + ".embed_tokens.weight"][ids[1:]]
        x = np.concatenate(
            [self.norm(embedding, name + ".enorm"), self.norm(result.final[:-1], name + ".hnorm")],
            -1,
        )
        x = self.layer(self.linear(x, name + ".eh_proj"), index, result)
        return self.linear(self.norm(x, name + ".shared_head.norm"), name + ".shared_head.head")
