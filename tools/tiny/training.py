"""The data stream, the losses and the training loop."""

import dataclasses
import math
import time

import torch
import torch.nn.functional as F

from tiny import models, optim

TOKENS_PER_STEP = 65536
TEACHER_TOP = 64  # predictions of the teacher kept per token
BALANCE_RATE = 1e-3  # step of the experts' correction bias


class Stream:
    """Tokenised documents on the GPU, dealt in a new order each epoch."""

    def __init__(self, documents: list[list[int]], device, seed: int):
        lengths = torch.tensor([len(d) for d in documents])
        self.tokens = torch.tensor(
            [t for d in documents for t in d], dtype=torch.int32, device=device
        )
        self.starts = (lengths.cumsum(0) - lengths).to(device)
        self.lengths = lengths.to(device)
        self.generator = torch.Generator(device).manual_seed(seed)
        self.epochs, self.position = -1, 0
        self._shuffle()

    def _shuffle(self):
        order = torch.randperm(
            len(self.lengths), generator=self.generator, device=self.tokens.device
        )
        lengths, starts = self.lengths[order], self.starts[order]
        begin = lengths.cumsum(0) - lengths
        offset = (starts - begin).repeat_interleave(lengths)
        self.order = torch.arange(len(self.tokens), device=offset.device) + offset
        self.epochs += 1
        self.position = 0

    def next(self, batch: int, length: int) -> torch.Tensor:
        """Indices into tokens, [batch, length + 2]: inputs, and two tokens to look ahead to."""
        if self.position + batch * length + 2 > len(self.order):
            self._shuffle()
        base = self.position + torch.arange(batch, device=self.order.device) * length
        self.position += batch * length
        return self.order[base[:, None] + torch.arange(length + 2, device=self.order.device)]


@dataclasses.dataclass
class Teacher:
    """A larger model's TEACHER_TOP likeliest next tokens after every token of the stream."""

    ids: torch.Tensor  # [tokens, TEACHER_TOP] int16
    probabilities: torch.Tensor  # [tokens, TEACHER_TOP] float16
    weight: float  # of the distillation loss; the hard targets' is 1 - weight


@torch.compile(dynamic=False)
def _loss(norm, head, x, target):
    """Mean cross-entropy, nats."""
    logits = F.linear(norm(x), head.to(x.dtype)).float()
    return F.cross_entropy(logits, target)


@torch.compile(dynamic=False)
def _distillation_loss(norm, head, x, target, ids, probabilities):
    """(hard cross-entropy, cross-entropy against the teacher), nats; the rest is one bucket."""
    logits = F.linear(norm(x), head.to(x.dtype)).float()
    log_total = logits.logsumexp(-1, keepdim=True)
    hard = (log_total - logits.gather(1, target[:, None])).mean()
    log_q = logits.gather(1, ids.long()) - log_total
    p = probabilities.float()
    rest_p = (1 - p.sum(-1)).clamp_min(0)
    rest_q = (1 - log_q.exp().sum(-1)).clamp_min(1e-5)
    return hard, -((p * log_q).sum(-1) + rest_p * rest_q.log()).mean()


@torch.no_grad()
def watch_teacher(model: models.Model, stream: Stream, weight: float) -> Teacher:
    """Predictions at every position, in windows of 2048 that overlap by a quarter."""
    model.eval()
    count, window, overlap = len(stream.tokens), 2048, 512
    ids = torch.zeros(count, TEACHER_TOP, dtype=torch.int16, device=stream.tokens.device)
    probabilities = torch.zeros(ids.shape, dtype=torch.float16, device=ids.device)
    starts = [*range(0, count - window, window - overlap), count - window]
    with torch.compiler.set_stance("force_eager"):
        for begin in range(0, len(starts), 16):
            base = torch.tensor(starts[begin : begin + 16], device=ids.device)
            where = base[:, None] + torch.arange(window, device=ids.device)
            x, _ = model(stream.tokens[where])
            top = model.logits(x).softmax(-1).topk(TEACHER_TOP)
            # The overlap has too little context here, except in the very first window.
            keep = torch.ones_like(where, dtype=torch.bool)
            keep[:, :overlap] = False
            keep[base == 0] = True
            keep, where = keep.flatten(), where.flatten()
            ids[where[keep]] = top.indices[keep].short()
            probabilities[where[keep]] = top.values[keep].half()
    model.train()
    return Teacher(ids, probabilities, weight)


def _losses(model: models.Model, stream: Stream, teacher: Teacher | None, where: torch.Tensor):
    """(loss; its parts hard, teacher's, drafting in nats; MoE blocks and their experts' loads)"""
    window = stream.tokens[where].long()
    inputs, next_ids, after_next = window[:, :-2], window[:, 1:-1], window[:, 2:]
    norm, head = model.model.norm, model.lm_head.weight
    x, loads = model(inputs)
    if teacher is None:
        loss = hard = _loss(norm, head, x, next_ids.flatten())
        soft = hard
    else:
        source = where[:, :-2].flatten()
        ids, probabilities = teacher.ids[source], teacher.probabilities[source]
        hard, soft = _distillation_loss(norm, head, x, next_ids.flatten(), ids, probabilities)
        loss = (1 - teacher.weight) * hard + teacher.weight * soft
    loads = [pair for pair in zip(model.blocks, loads) if pair[1] is not None]
    drafting = torch.zeros((), device=x.device)
    if model.mtp is not None:
        y, load = model.forward_mtp(x, next_ids)
        drafting = _loss(model.mtp.shared_head.norm, head.detach(), y, after_next.flatten())
        loads.append((model.mtp, load))
        loss = loss + drafting
    return loss, torch.stack([hard, soft, drafting]).detach(), loads


def _balance(loads: list, rate: float) -> None:
    """Moves each expert's selection bias towards even load (no auxiliary loss)."""
    for block, load in loads:
        bias = block.mlp.gate.e_score_correction_bias
        bias.add_((load.mean() - load).sign(), alpha=rate)


def train(
    model: models.Model,
    stream: Stream,
    deadline: float,
    stages: tuple[tuple[float, int], ...],
    settings: optim.Settings,
    teacher: Teacher | None = None,
    report=None,
) -> list[dict]:
    """Trains until `deadline` (time.time()), the rate falling to zero there.

    `stages` are (share of the time, sequence length); `report(model)` adds to a log entry, about 12
    times. Returns the log.
    """
    optimizer, log = optim.Optimizer(model, settings), []
    model.train()
    begin, step, tokens, next_report = time.time(), 0, 0, 0.08
    sums = torch.zeros(3, device=stream.tokens.device)
    since = 0
    while True:
        if step % 8 == 0:
            torch.cuda.synchronize()  # the clock must not run ahead of the GPU
        if step == 20:
            begin_steady, tokens_steady = time.time(), tokens
        progress = (time.time() - begin) / (deadline - begin)
        if progress >= 1:
            break
        length = [length for share, length in stages if progress >= share][-1]
        batch = TOKENS_PER_STEP // length
        where = stream.next(batch, length)
        loss, parts, loads = _losses(model, stream, teacher, where)
        loss.backward()
        factor = optimizer.rate(step, progress)
        optimizer.step(factor)
        with torch.no_grad():
            _balance(loads, BALANCE_RATE * min(1.0, 4 * factor))
            sums += parts
        step, tokens, since = step + 1, tokens + batch * length, since + 1
        if progress >= next_report or step == 20:
            bits = (sums / since / math.log(2)).tolist()
            entry = {"seconds": round(time.time() - begin, 1), "step": step, "tokens": tokens}
            entry |= {"epochs": stream.epochs, "length": length, "rate": round(factor, 3)}
            entry |= {"train_bits": bits[0], "teacher_bits": bits[1], "mtp_bits": bits[2]}
            if step > 20:
                speed = (tokens - tokens_steady) / (time.time() - begin_steady)
                entry["tokens_per_second"] = round(speed)
            if report is not None and step > 20:
                entry |= report(model)
                model.train()
            if loads:
                entry["load"] = [round((n.max() / n.mean()).item(), 2) for _, n in loads]
            log.append(entry)
            print(entry, flush=True)
            sums.zero_()
            since = 0
            next_report = max(next_report, progress) + 0.08
    return log
