"""Bits per byte, the position curve and sampling, on the weights as shipped."""

import math

import torch

from tiny import models, text

WINDOW = 8192
STRIDE = 4096


@torch.no_grad()
def token_bits(model: models.Model, ids: list[int]) -> torch.Tensor:
    """-log2 p of ids[1:], each given everything before it within its window.

    The first window is ids[0:WINDOW]; each next one starts STRIDE later and scores only the tokens
    that no earlier window scored.
    """
    model.eval()
    device = model.inv_freq.device
    bits, begin, scored = [], 0, 1
    with torch.compiler.set_stance("force_eager"):
        while scored < len(ids):
            window = torch.tensor(ids[begin : begin + WINDOW], device=device)
            x, _ = model(window[None])
            log_p = torch.log_softmax(model.logits(x), -1)
            chosen = log_p[:-1].gather(1, window[1:, None])[:, 0]
            bits.append(-chosen[scored - 1 - begin :] / math.log(2))
            scored = begin + len(window)
            begin += STRIDE
    return torch.cat(bits)


def bits_per_byte(model, tokenizer, corpus: dict[str, list[str]]) -> dict[str, float]:
    """A category's bits over its documents (after each one's BOS), by its UTF-8 bytes."""
    result = {}
    for category, documents in corpus.items():
        bits = sum(token_bits(model, tokenizer.encode(d).ids).sum().item() for d in documents)
        result[category] = bits / sum(len(d.encode()) for d in documents)
    return result


def position_curve(model, tokenizer, documents: list[str]) -> dict[str, float]:
    """Mean bits per token by position, over windows of 8192 of the documents run together."""
    eos = tokenizer.token_to_id(text.EOS)
    ids = [t for d in documents for t in tokenizer.encode(d).ids + [eos]]
    windows = [ids[i : i + WINDOW] for i in range(0, len(ids) - WINDOW + 1, WINDOW)]
    bits = torch.stack([token_bits(model, w) for w in windows]).mean(0)
    edges = (0, 512, 1024, 2048, 4096, WINDOW)
    return {f"{a}-{b}": bits[a:b].mean().item() for a, b in zip(edges, edges[1:])}


@torch.no_grad()
def sample(model, tokenizer, prompt: str, count: int, temperature=0.6, top_p=0.95, seed=0) -> str:
    """A completion of `prompt` (special tokens in it are honoured), without a cache."""
    model.eval()
    generator = torch.Generator(model.inv_freq.device).manual_seed(seed)
    ids = tokenizer.encode(prompt, add_special_tokens=False).ids
    start = len(ids)
    with torch.compiler.set_stance("force_eager"):
        while len(ids) < start + count and ids[-1] != tokenizer.token_to_id(text.EOS):
            x, _ = model(torch.tensor(ids, device=model.inv_freq.device)[None])
            p = (model.logits(x[-1:])[0] / temperature).softmax(-1)
            p, order = p.sort(descending=True)
            p[p.cumsum(-1) - p > top_p] = 0
            ids.append(order[torch.multinomial(p, 1, generator=generator)].item())
    return tokenizer.decode(ids[start:], skip_special_tokens=False)
