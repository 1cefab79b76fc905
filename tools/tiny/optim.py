"""Muon for matrices, AdamW for the rest, one learning-rate schedule for both."""

import dataclasses

import torch


@dataclasses.dataclass(frozen=True)
class Settings:
    muon_lr: float = 0.02
    muon_decay: float = 0.1
    adam_lr: float = 0.005
    adam_decay: float = 0.1
    warmup_steps: int = 100
    flat_share: float = 0.25  # share of the time at the full rate; then a line to zero


def orthogonalise(g: torch.Tensor) -> torch.Tensor:
    """[batch, rows, cols]: the nearest semi-orthogonal matrices, by five Newton-Schulz steps."""
    x = g.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.mT
        b = torch.baddbmm(a, a, a, beta=-4.7750, alpha=2.0315)
        x = torch.baddbmm(x, b, x, beta=3.4445)
    return x.mT if tall else x


class Optimizer:
    """Steps every parameter of a model; gradients are cleared by the step."""

    def __init__(self, model, settings: Settings):
        self.settings = settings
        matrices: dict[tuple, list] = {}
        with_decay, without = [], []
        for name, parameter in model.named_parameters():
            if parameter.dim() < 2:
                without.append(parameter)
            elif "embed_tokens" in name or "lm_head" in name or name.endswith("gate.weight"):
                with_decay.append(parameter)
            else:  # stacked experts count as a batch of matrices
                matrices.setdefault(tuple(parameter.shape[-2:]), []).append(parameter)
        self.matrices = list(matrices.values())
        self.momentum: list[torch.Tensor | None] = [None] * len(self.matrices)
        groups = [
            {"params": with_decay, "weight_decay": settings.adam_decay},
            {"params": without, "weight_decay": 0.0},
        ]
        self.adam = torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.97), eps=1e-10, fused=True)

    def rate(self, step: int, progress: float) -> float:
        """The schedule's factor, progress in [0, 1] of the training time."""
        flat = self.settings.flat_share
        return min((step + 1) / self.settings.warmup_steps, 1.0, (1 - progress) / (1 - flat))

    @torch.no_grad()
    def step(self, factor: float) -> None:
        for group in self.adam.param_groups:
            group["lr"] = self.settings.adam_lr * factor
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)
        for i, parameters in enumerate(self.matrices):
            self._muon(i, parameters, self.settings.muon_lr * factor)

    def _muon(self, i: int, parameters: list, lr: float) -> None:
        rows, cols = parameters[0].shape[-2:]
        gradient = torch.cat([p.grad.reshape(-1, rows, cols) for p in parameters])
        if self.momentum[i] is None:
            self.momentum[i] = torch.zeros_like(gradient)
        momentum = self.momentum[i].lerp_(gradient, 0.05)
        update = orthogonalise(gradient.lerp_(momentum, 0.95))
        lr_here = lr * max(1.0, rows / cols) ** 0.5
        counts = [p.numel() // (rows * cols) for p in parameters]
        updates = [u.view_as(p) for u, p in zip(update.float().split(counts), parameters)]
        torch._foreach_mul_(parameters, 1 - lr * self.settings.muon_decay)
        torch._foreach_add_(parameters, updates, alpha=-lr_here)
        for parameter in parameters:
            parameter.grad = None
