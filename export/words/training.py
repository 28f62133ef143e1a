"""One training of the text recogniser: its model, optimiser, schedule and checkpoint."""

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from export.models.text_recognition import TextRecogniser, build

BUILD = Path("build/text_recognition")
WIDTH = 64
PEAK_RATE = 2e-3
# Shares of the training time. Words of at most 4 characters come first, because CTC aligns them sooner. Batch-norm
# statistics are fixed at the end, because a batch has one width and inference sees all widths.
SHORT_UNTIL = 0.04
FREEZE_FROM = 0.75


@dataclass(kw_only=True)
class Run:
    """The state of a training, which its checkpoint keeps between two starts of the program."""

    model: TextRecogniser
    optimizer: torch.optim.Optimizer
    seed: int
    minutes: float
    seconds: float = 0.0
    steps: int = 0
    pictures: int = 0
    best: float = -1.0

    @property
    def part(self) -> float:
        """The share of the training time that is spent, from 0 to 1."""
        return min(1.0, self.seconds / (self.minutes * 60))

    @property
    def checkpoint(self) -> Path:
        """The file of an unfinished training of this seed."""
        return BUILD / f"checkpoint-{self.seed}.pth"

    @property
    def best_weights(self) -> Path:
        """The file of the best weights so far; only a finished training replaces the weights in use."""
        return BUILD / f"best-{self.seed}.pth"

    def save(self) -> None:
        """Write the checkpoint."""
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        counts = {name: getattr(self, name) for name in ("seconds", "steps", "pictures", "best")}
        self.checkpoint.parent.mkdir(parents=True, exist_ok=True)
        torch.save(state | counts, self.checkpoint)


def start(seed: int, minutes: float) -> Run:
    """A new training, or the unfinished one of the same seed."""
    model = build(WIDTH, seed=seed).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_RATE, weight_decay=0.01, fused=True)
    run = Run(model=model, optimizer=optimizer, seed=seed, minutes=minutes)
    if run.checkpoint.exists():
        state = torch.load(run.checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        run.seconds, run.steps = state["seconds"], state["steps"]
        run.pictures, run.best = state["pictures"], state["best"]
    return run


def step(run: Run, pictures: Tensor, labels: Tensor) -> float:
    """One optimiser step; returns the loss."""
    for group in run.optimizer.param_groups:
        # A short linear rise, then half a cosine over the training time.
        group["lr"] = PEAK_RATE * min(1.0, run.part / 0.03 + 0.02) * (0.5 + 0.5 * math.cos(math.pi * run.part))
    # bfloat16 and channels-last: 604 pictures/s instead of 202 on 2 cores with AVX-512 BF16.
    with torch.autocast("cpu", torch.bfloat16):
        logits = run.model(pictures.contiguous(memory_format=torch.channels_last))
    scores = logits.float().log_softmax(2).transpose(0, 1)
    steps = torch.full((len(labels),), scores.shape[0])
    # zero_infinity ignores words with more characters than their narrow picture has steps.
    loss = nn.functional.ctc_loss(scores, labels, steps, (labels > 0).sum(1), zero_infinity=True)
    run.optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(run.model.parameters(), 5.0)
    run.optimizer.step()
    run.steps += 1
    run.pictures += len(labels)
    return float(loss.detach())


def set_training(run: Run) -> None:
    """Switch to training mode, with fixed batch-norm statistics from `FREEZE_FROM` on."""
    run.model.train()
    for module in run.model.modules():
        if isinstance(module, nn.BatchNorm2d):
            # Slower than the default 0.1: batches alternate between widths, inference needs their average.
            module.momentum = 0.02
            module.train(run.part < FREEZE_FROM)
