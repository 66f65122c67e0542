"""The loss of a model on a part of the text."""

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from nas.config.sections import DataConfig
from nas.data.batches import Batch
from nas.training.losses import carried, output_and_memory
from nas.training.setup import Setup
from supernet.network import Network


@dataclass(frozen=True)
class Evaluation:
    """Mean loss over `tokens` targets, and the standard error of that mean over its blocks of text."""

    loss: float
    standard_error: float
    tokens: int
    block_losses: tuple[float, ...] = ()


def evaluate(
    model: nn.Module, setup: Setup, part: str, *, limit: int | None = None, gates: Tensor | None = None
) -> Evaluation:
    """Loss of the model on a part of the text, every target once, or on `limit` targets spread evenly over it."""
    was_training = model.training
    model.eval()
    losses: list[float] = []
    counts: list[int] = []
    memory = None
    chosen = () if gates is None else (gates,)
    with torch.no_grad(), span_of(model, setup.config.data):
        for batch in batches_of(model, setup, part, limit):
            example = setup.task.example(batch, setup.machine.device)
            with setup.machine.autocast():
                output, memory = output_and_memory(
                    model(*example.inputs, *chosen, **example.options, **carried(memory, batch))
                )
            by_row, targets = setup.task.row_losses(output, example.targets)
            losses += by_row
            counts += targets
    model.train(was_training)
    mean = float(np.average(losses, weights=counts))
    error = float(np.std(losses, ddof=1) / math.sqrt(len(losses))) if len(losses) > 1 else math.inf
    return Evaluation(mean, error, sum(counts), tuple(losses))


def batches_of(model: nn.Module, setup: Setup, part: str, limit: int | None) -> Iterator[Batch]:
    """The batches that a model is evaluated on; of a supernet as long as it is trained on."""
    data = setup.config.data
    seq_len = data.eval_seq_len or data.seq_len if isinstance(model, Network) else data.seq_len
    memory_len = getattr(model, "memory_len", 0)
    return setup.task.evaluation_batches(setup.corpus, part, seq_len=seq_len, memory_len=memory_len, limit=limit)


@contextlib.contextmanager
def span_of(model: nn.Module, data: DataConfig) -> Iterator[None]:
    """Within, a network remembers and measures distances as `data.eval_memory_len` and `data.eval_clamp_len` say.

    A supernet does as it trains, since its probabilities are of that.
    """
    if not isinstance(model, Network):
        yield
        return
    before = model.memory_len, model.clamp_len
    model.set_span(before[0] if data.eval_memory_len is None else data.eval_memory_len, data.eval_clamp_len)
    try:
        yield
    finally:
        model.set_span(*before)
