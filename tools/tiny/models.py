"""The two architectures in plain PyTorch, trained in bfloat16 over float32 master weights.

Parameters are named as the published checkpoints name them, so that exporting is a cast; only the
routed experts are stacked ([experts, rows, cols]) and split when exported.

Activations are flat, [batch * length, features]: everything but attention is compiled once,
whatever the sequence length, and each compiled piece serves every layer.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

BLOCK = 128  # fp8 scale block
FP8_MAX = 448.0


def round_to_fp8(weight: torch.Tensor) -> torch.Tensor:
    """The weight that the shipped e4m3 values and scales stand for; gradients pass through."""
    values, scales = quantise(weight.detach())
    return weight + (dequantise(values, scales) - weight).detach()


def quantise(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[..., rows, cols] -> e4m3 of the same shape, float32 scales [..., rows / 128, cols / 128]."""
    *lead, rows, cols = weight.shape
    blocks = weight.float().view(*lead, rows // BLOCK, BLOCK, cols // BLOCK, BLOCK)
    scales = blocks.abs().amax((-3, -1)).clamp_min(1e-12) / FP8_MAX
    values = blocks / scales[..., :, None, :, None]
    return values.to(torch.float8_e4m3fn).view(weight.shape), scales


def dequantise(values: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return values.float() * scales.repeat_interleave(BLOCK, -2).repeat_interleave(BLOCK, -1)


def yarn_mscale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def rope_frequencies(config: dict, dim: int) -> torch.Tensor:
    """Inverse frequencies [dim / 2]: plain, or YaRN's blend."""
    base = config["rope_theta"]
    inv_freq = base ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    scaling = config.get("rope_scaling")
    if scaling is None:
        return inv_freq.float()
    original = scaling["original_max_position_embeddings"]

    def correction(rotations):
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(correction(scaling["beta_fast"])), 0)
    high = min(math.ceil(correction(scaling["beta_slow"])), dim - 1)
    ramp = ((torch.arange(dim // 2) - low) / max(high - low, 0.001)).clamp(0, 1)
    return (inv_freq * (1 - ramp) + inv_freq / scaling["factor"] * ramp).float()


class Linear(nn.Linear):
    def forward(self, x):
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.linear(x, self.weight.to(x.dtype), bias)


class Fp8Linear(Linear):
    """Shipped as e4m3 with block scales, and trained through that rounding."""

    def forward(self, x):
        return F.linear(x, round_to_fp8(self.weight).to(x.dtype))


class RmsNorm(nn.Module):
    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.eps)
        return (y * self.weight.to(torch.bfloat16)).to(x.dtype)


class GroupedAttention(nn.Module):
    """Qwen2: grouped-query attention, biased projections, rope on halves."""

    def __init__(self, config: dict):
        super().__init__()
        hidden = config["hidden_size"]
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.dim = hidden // self.heads
        self.rope_dim = self.dim
        self.scale = self.dim**-0.5
        self.q_proj = Linear(hidden, self.heads * self.dim)
        self.k_proj = Linear(hidden, self.kv_heads * self.dim)
        self.v_proj = Linear(hidden, self.kv_heads * self.dim)
        self.o_proj = Linear(self.heads * self.dim, hidden, bias=False)

    def _rotate(self, x, cos, sin):
        a, b = x.float().chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)

    def project(self, x, cos, sin):
        q = self.q_proj(x).view(-1, self.heads, self.dim)
        k = self.k_proj(x).view(-1, self.kv_heads, self.dim)
        v = self.v_proj(x).view(-1, self.kv_heads, self.dim)
        return self._rotate(q, cos, sin), self._rotate(k, cos, sin), v

    def output(self, o):
        return self.o_proj(o.flatten(1))


class LatentAttention(nn.Module):
    """DeepSeek's MLA in its expanded form; rope on interleaved pairs."""

    def __init__(self, config: dict):
        super().__init__()
        hidden, eps = config["hidden_size"], config["rms_norm_eps"]
        self.heads, self.lora = config["num_attention_heads"], config["kv_lora_rank"]
        self.nope, self.rope_dim = config["qk_nope_head_dim"], config["qk_rope_head_dim"]
        self.value = config["v_head_dim"]
        scaling = config["rope_scaling"]
        mscale = yarn_mscale(scaling["factor"], scaling["mscale_all_dim"])
        self.scale = (self.nope + self.rope_dim) ** -0.5 * mscale**2
        self.q_a_proj = Linear(hidden, config["q_lora_rank"], bias=False)
        self.q_a_layernorm = RmsNorm(config["q_lora_rank"], eps)
        rows = self.heads * (self.nope + self.rope_dim)
        self.q_b_proj = Linear(config["q_lora_rank"], rows, bias=False)
        self.kv_a_proj_with_mqa = Linear(hidden, self.lora + self.rope_dim, bias=False)
        self.kv_a_layernorm = RmsNorm(self.lora, eps)
        self.kv_b_proj = Linear(self.lora, self.heads * (self.nope + self.value), bias=False)
        self.o_proj = Linear(self.heads * self.value, hidden, bias=False)

    def _rotate(self, x, cos, sin):
        a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
        return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2).to(x.dtype)

    def project(self, x, cos, sin):
        """v is padded to the width of q and k, which flash attention wants equal."""
        width = self.nope + self.rope_dim
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))).view(-1, self.heads, width)
        c, k_pe = self.kv_a_proj_with_mqa(x).split([self.lora, self.rope_dim], -1)
        kv = self.kv_b_proj(self.kv_a_layernorm(c)).view(-1, self.heads, self.nope + self.value)
        k_nope, v = kv.split([self.nope, self.value], -1)
        q_nope, q_pe = q.split([self.nope, self.rope_dim], -1)
        k_pe = self._rotate(k_pe[:, None], cos, sin).expand(-1, self.heads, -1)
        q = torch.cat([q_nope, self._rotate(q_pe, cos, sin)], -1)
        return q, torch.cat([k_nope, k_pe], -1), F.pad(v, (0, width - self.value))

    def output(self, o):
        return self.o_proj(o[..., : self.value].flatten(1))


class Mlp(nn.Module):
    def __init__(self, hidden: int, width: int, linear=Linear):
        super().__init__()
        self.gate_proj = linear(hidden, width, bias=False)
        self.up_proj = linear(hidden, width, bias=False)
        self.down_proj = linear(width, hidden, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


def largest(values: torch.Tensor, k: int) -> torch.Tensor:
    """Mask of the k largest along the last axis, by counting the larger ones."""
    return (values[..., None, :] > values[..., :, None]).sum(-1) < k


class Moe(nn.Module):
    """Routed experts chosen without an auxiliary loss, and a shared expert.

    Every expert runs on every token as one wide MLP, and unchosen ones are multiplied by zero: at
    this size that is faster than sorting tokens, and no token is ever dropped.
    """

    def __init__(self, config: dict):
        super().__init__()
        hidden, width = config["hidden_size"], config["moe_intermediate_size"]
        self.experts_count, self.top_k = config["n_routed_experts"], config["num_experts_per_tok"]
        self.groups, self.top_groups = config["n_group"], config["topk_group"]
        self.factor = config["routed_scaling_factor"]
        self.gate = nn.Module()
        self.gate.weight = nn.Parameter(torch.empty(self.experts_count, hidden))
        self.gate.register_buffer("e_score_correction_bias", torch.zeros(self.experts_count))
        self.experts = nn.Module()
        self.experts.gate_proj = nn.Parameter(torch.empty(self.experts_count, width, hidden))
        self.experts.up_proj = nn.Parameter(torch.empty(self.experts_count, width, hidden))
        self.experts.down_proj = nn.Parameter(torch.empty(self.experts_count, hidden, width))
        self.shared_experts = Mlp(hidden, config["n_shared_experts"] * width, Fp8Linear)

    def route(self, x):
        """(weights [tokens, experts], tokens sent to each expert [experts])"""
        scores = F.linear(x.float(), self.gate.weight.to(torch.bfloat16).float()).sigmoid()
        choice = (scores + self.gate.e_score_correction_bias).detach()
        grouped = choice.view(-1, self.groups, self.experts_count // self.groups)
        group_scores = (grouped * largest(grouped, 2)).sum(-1)
        kept = largest(group_scores, self.top_groups)[..., None].expand_as(grouped)
        chosen = largest(grouped.masked_fill(~kept, -math.inf).flatten(1), self.top_k)
        weights = scores * chosen
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20) * self.factor
        return weights, chosen.sum(0).float()

    def forward(self, x):
        weights, load = self.route(x)
        gate, up, down = (
            round_to_fp8(w).to(x.dtype)
            for w in (self.experts.gate_proj, self.experts.up_proj, self.experts.down_proj)
        )
        inner = F.silu(F.linear(x, gate.flatten(0, 1))) * F.linear(x, up.flatten(0, 1))
        inner = inner.unflatten(-1, (self.experts_count, -1)) * weights[..., None].to(x.dtype)
        y = F.linear(inner.flatten(1), down.permute(1, 0, 2).flatten(1))
        return y + self.shared_experts(x), load


class Block(nn.Module):
    def __init__(self, config: dict, moe: bool, dropout: float):
        super().__init__()
        hidden, eps = config["hidden_size"], config["rms_norm_eps"]
        self.input_layernorm = RmsNorm(hidden, eps)
        self.self_attn = (LatentAttention if "kv_lora_rank" in config else GroupedAttention)(config)
        self.post_attention_layernorm = RmsNorm(hidden, eps)
        self.mlp = Moe(config) if moe else Mlp(hidden, config["intermediate_size"])
        self.moe, self.dropout = moe, dropout


@torch.compile(dynamic=False)
def _before_attention(block: Block, x, cos, sin):
    return block.self_attn.project(block.input_layernorm(x), cos, sin)


@torch.compile(dynamic=False)
def _after_attention(block: Block, x, o):
    x = x + F.dropout(block.self_attn.output(o), block.dropout, block.training)
    y = block.post_attention_layernorm(x)
    y, load = block.mlp(y) if block.moe else (block.mlp(y), None)
    return x + F.dropout(y, block.dropout, block.training), load


def _attend(q, k, v, batch: int, scale: float):
    q, k, v = (t.reshape(batch, -1, *t.shape[1:]).transpose(1, 2) for t in (q, k, v))
    o = F.scaled_dot_product_attention(
        q, k, v, is_causal=True, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
    )
    return o.transpose(1, 2).flatten(0, 1)


def run_block(block: Block, x, rope, batch: int):
    """x [batch * length, hidden] -> (same shape, expert loads or None)."""
    q, k, v = _before_attention(block, x, *rope)
    return _after_attention(block, x, _attend(q, k, v, batch, block.self_attn.scale))


class Mtp(Block):
    """The multi-token-prediction layer; its embedding and head are the main model's."""

    def __init__(self, config: dict, dropout: float):
        super().__init__(config, moe=True, dropout=dropout)
        hidden, eps = config["hidden_size"], config["rms_norm_eps"]
        self.enorm = RmsNorm(hidden, eps)
        self.hnorm = RmsNorm(hidden, eps)
        self.eh_proj = Linear(2 * hidden, hidden, bias=False)
        self.shared_head = nn.Module()
        self.shared_head.norm = RmsNorm(hidden, eps)


class Model(nn.Module):
    """Built from a config.json as a dict: DeepseekV3ForCausalLM or Qwen2ForCausalLM."""

    def __init__(self, config: dict, dropout: float):
        super().__init__()
        self.config, self.dropout = config, dropout
        hidden, vocab = config["hidden_size"], config["vocab_size"]
        dense = config.get("first_k_dense_replace", config["num_hidden_layers"])
        self.model = nn.Module()
        self.model.embed_tokens = nn.Embedding(vocab, hidden)
        layers = [Block(config, i >= dense, dropout) for i in range(config["num_hidden_layers"])]
        if config.get("num_nextn_predict_layers"):
            layers.append(Mtp(config, dropout))
        self.model.layers = nn.ModuleList(layers)
        self.model.norm = RmsNorm(hidden, config["rms_norm_eps"])
        self.lm_head = nn.Linear(hidden, vocab, bias=False)
        if config["tie_word_embeddings"]:
            self.lm_head.weight = self.model.embed_tokens.weight
        inv_freq = rope_frequencies(config, layers[0].self_attn.rope_dim)
        self.register_buffer("inv_freq", inv_freq, persistent=False)
        self._init_weights()

    def _init_weights(self):
        for name, parameter in self.named_parameters():
            if "norm" in name:
                continue
            if parameter.dim() < 2 or name.endswith(
                ("o_proj.weight", "down_proj.weight", "down_proj")
            ):
                nn.init.zeros_(parameter)  # each block starts as the identity
            elif "embed_tokens" in name or "lm_head" in name:
                nn.init.normal_(parameter, std=0.02)
            else:
                nn.init.normal_(parameter, std=0.6 * parameter.shape[-1] ** -0.5)

    @property
    def blocks(self):
        return self.model.layers[: self.config["num_hidden_layers"]]

    @property
    def mtp(self) -> Mtp | None:
        has_mtp = self.config.get("num_nextn_predict_layers")
        return self.model.layers[-1] if has_mtp else None

    def rope(self, batch: int, length: int):
        """cos and sin [batch * length, 1, rope_dim / 2]."""
        angles = torch.arange(length, device=self.inv_freq.device)[:, None] * self.inv_freq
        angles = angles.repeat(batch, 1)[:, None]
        return angles.cos(), angles.sin()

    def embed(self, ids):
        x = F.embedding(ids.flatten(), self.model.embed_tokens.weight).to(torch.bfloat16)
        return F.dropout(x, self.dropout, self.training)

    def forward(self, ids):
        """ids [batch, length] -> (hidden [batch * length, hidden] before model.norm, loads)."""
        x, rope, loads = self.embed(ids), self.rope(*ids.shape), []
        for block in self.blocks:
            x, load = run_block(block, x, rope, len(ids))
            loads.append(load)
        return x, loads

    def forward_mtp(self, x, next_ids):
        """Hidden states for token p + 2 from x of p and token p + 1, before shared_head.norm.

        The trunk is detached: the layer learns to draft without costing the model anything.
        """
        mtp = self.mtp
        embedding = self.embed(next_ids).detach()
        x = self.model.norm(x).detach()
        x = mtp.eh_proj(torch.cat([mtp.enorm(embedding), mtp.hnorm(x)], -1))
        return run_block(mtp, x, self.rope(*next_ids.shape), len(next_ids))

    def logits(self, x):
        """float32 [tokens, vocab]"""
        return F.linear(self.model.norm(x), self.lm_head.weight.to(x.dtype)).float()
