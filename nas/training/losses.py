"""The loss of a batch: all rows at once, or so many at a time.

Shapes: B rows, N layers, M' <= M the filled memory, d width.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from nas.data.batches import Batch
from nas.training.setup import Setup


def batch_loss(
    model: nn.Module, batch: Batch, setup: Setup, *gates: Tensor, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """The task's mean loss of a batch's rows, in fp32, a scalar with its graph; and the memory for the next batch,
    [N, B, M', d], where the model has one.

    `gates` and the option `skip_zeros` are for a supernet; `memory` for a model that has one.
    """
    example = setup.task.example(batch, setup.machine.device)
    with setup.machine.autocast():
        output, memory = output_and_memory(model(*example.inputs, *gates, **example.options, **options))
    return setup.task.loss(output, example.targets), memory


def output_and_memory(output: Tensor | tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor | None]:
    """A model's output in one form; models without memory give logits alone."""
    return output if isinstance(output, tuple) else (output, None)


def carried(memory: Tensor | None, batch: Batch) -> dict[str, Tensor]:
    """The model's argument `memory` where the batch's rows go on from the ones that it is of."""
    fits = memory is not None and not batch.fresh and memory.shape[1] == len(batch.tokens)
    return {"memory": memory} if fits else {}


def part_losses(
    model: nn.Module, batch: Batch, setup: Setup, *gates: Tensor, memory: Tensor | None, **options: Any
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """(loss times its share of the batch, next memory) of each `data.micro_batch_size` rows (null: of all), in order;
    the losses sum to the batch's.

    Only one part's graph need live at a time. `gates` and the options are a supernet's.
    """
    count = len(batch.tokens)
    size = setup.config.data.micro_batch_size or count
    for first in range(0, count, size):
        span = slice(first, min(first + size, count))
        past = {name: value[:, span] for name, value in carried(memory, batch).items()}
        part = batch.rows(span)
        loss, following = batch_loss(model, part, setup, *gates, **past, **options)
        yield loss * (setup.task.targets(part) / setup.task.targets(batch)), following


def join_memories(parts: list[Tensor | None]) -> Tensor | None:
    """The memory [N, B, M', d] of a batch from those of its parts."""
    return None if parts[0] is None else torch.cat(parts, dim=1)


def set_mode(model: nn.Module, *, training: bool) -> None:
    """`model.train(training)` where it is not so already: walking a supernet's 600 modules takes 3 % of a step."""
    if model.training != training:
        model.train(training)
