"""nni's searches over our candidates, in a process of its own: speed.py --peers FOLDER runs it with FOLDER's
interpreter.

The candidates of each LayerChoice are our blocks with their norm and residual, between our embedding and head;
optimizer, batches and clipping are ours. nni's own loop runs in Lightning's Trainer as its users run it, without
logger, progress bar, checkpoints and validation: a line on standard input lets it take one more batch of each part, and
when it asks for the next one it prints the milliseconds of the step between. It computes the alphas' step first, then
the weights'.
"""

import argparse
import itertools
import os
import sys
import time
import warnings
from collections.abc import Iterator
from typing import TextIO

import nni.nas.strategy
import torch
from nni.nas.evaluator.pytorch import Lightning, LightningModule, Trainer
from nni.nas.nn.pytorch import LayerChoice, ModelSpace
from speed_sizes import Bench, Sizes, build_bench
from torch import Tensor, nn

from nas.training.optimizers import build_adamw
from supernet.blocks import parse_candidates
from supernet.context import Context
from supernet.layers import build_layer
from supernet.network import Network


class Alone(nn.Module):
    """A layer of ours that takes one tensor, since Proxyless hands on nothing else."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """x [B, T, d] -> x."""
        return self.layer(x, Context())


class Choice(nn.Module):
    """A LayerChoice in the place of one of our layers."""

    def __init__(self, choice: LayerChoice):
        super().__init__()
        self.choice = choice

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """x [B, T, d] -> x; the context is empty here."""
        return self.choice(x)


class Space(ModelSpace):
    """Our network with a choice in each layer."""

    def __init__(self, bench: Bench):
        super().__init__()
        candidates = parse_candidates(bench.sizes.blocks, bench.settings)
        self.network = Network(
            bench.settings,
            [
                Choice(
                    LayerChoice(
                        {one.label: Alone(build_layer(one, bench.settings, n)) for one in candidates}, label=f"layer{n}"
                    )
                )
                for n in range(bench.sizes.layers)
            ],
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens [B, T] -> logits [B, T, V]."""
        return self.network(tokens)


class Training(LightningModule):
    """Our loss and optimizer."""

    def __init__(self, bench: Bench):
        super().__init__()
        self.bench = bench

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        """The loss of a batch [B, T + 1]."""
        return self.bench.loss(self.model, batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW for the weights; nni takes the alphas out of it."""
        return build_adamw(self.model, 1e-6, 0.01)

    def transfer_batch_to_device(self, batch: Tensor, device: torch.device, dataloader_idx: int) -> Tensor:
        """Left to the loss."""
        return batch


class Batches:
    """A part's batches without end. With `answers` each waits for its turn, and the time since the one before is told
    there."""

    def __init__(self, bench: Bench, part: str, answers: TextIO | None = None):
        self.bench, self.part, self.answers = bench, part, answers

    def __iter__(self) -> Iterator[Tensor]:
        for number in itertools.count():
            if self.answers and not self._wait(number):
                return
            yield self.bench.draw(self.part, number)

    def _wait(self, number: int) -> bool:
        if self.bench.machine.device.type == "cuda":
            torch.cuda.synchronize()
        if number:
            print((time.perf_counter() - self.started) * 1e3, file=self.answers, flush=True)
        more = bool(sys.stdin.readline())
        self.started = time.perf_counter()
        return more


def search(bench: Bench, name: str, answers: TextIO) -> None:
    """Run nni's strategy until standard input ends."""
    strategy = getattr(nni.nas.strategy, name)(gradient_clip_val=1.0)
    trainer = Trainer(
        max_epochs=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        limit_val_batches=0,
        accelerator="gpu" if bench.machine.device.type == "cuda" else "cpu",
        devices=1,
    )
    space = strategy.mutate_model(Space(bench))
    evaluator = strategy.mutate_evaluator(
        Lightning(
            Training(bench),
            trainer,
            train_dataloaders=Batches(bench, "weights", answers),
            val_dataloaders=Batches(bench, "alphas"),
        )
    )
    evaluator.evaluate(space)


def main() -> None:
    """One strategy at the sizes given as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("strategy")
    parser.add_argument("sizes")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # standard output carries milliseconds alone: whatever else is said goes to standard error
    search(build_bench(Sizes.from_json(options.sizes)), options.strategy, answers)


if __name__ == "__main__":
    main()
