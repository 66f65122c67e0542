"""The loss of a batch: all rows at once, or so many at a time.

Shapes: B rows, T tokens of a row, N layers, M' <= M the filled memory, d width.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from nas.batches import Batch
from nas.machine import Machine


def tokens_to(batch: np.ndarray, device: torch.device) -> tuple[Tensor, Tensor]:
    """[B, T + 1] tokens -> inputs [B, T] and targets [B, T] on the device."""
    tokens = torch.from_numpy(batch)
    if device.type == "cuda":
        tokens = tokens.pin_memory().to(device, non_blocking=True)
    return tokens[:, :-1], tokens[:, 1:]


def segment_loss(
    model: nn.Module, batch: np.ndarray, machine: Machine, *gates: Tensor, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """Mean cross-entropy in nats a token of rows [B, T + 1], in fp32, a scalar with its graph; and the memory for the
    next segment, [N, B, M', d], where the model has one.

    `gates` and the option `skip_zeros` are for a supernet; `memory` for a model that has one.
    """
    inputs, targets = tokens_to(batch, machine.device)
    with machine.autocast():
        logits, memory = logits_and_memory(model(inputs, *gates, **options))
    return functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten()), memory


def logits_and_memory(output: Tensor | tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor | None]:
    """A model's output in one form; models without memory give logits alone."""
    return output if isinstance(output, tuple) else (output, None)


def carried(memory: Tensor | None, batch: Batch) -> dict[str, Tensor]:
    """The model's argument `memory` where the batch's rows go on from the ones that it is of."""
    fits = memory is not None and not batch.fresh and memory.shape[1] == len(batch.tokens)
    return {"memory": memory} if fits else {}


def part_losses(
    model: nn.Module,
    batch: Batch,
    machine: Machine,
    *gates: Tensor,
    size: int | None,
    memory: Tensor | None,
    **options: Any,
) -> Iterator[tuple[Tensor, Tensor | None]]:
    """(loss times its share of the batch, next memory) of each `size` rows (None: of all), in order; the losses sum to
    the batch's.

    Only one part's graph need live at a time. `gates` and the options are a supernet's.
    """
    count = len(batch.tokens)
    for first in range(0, count, size or count):
        span = slice(first, min(first + (size or count), count))
        past = {name: value[:, span] for name, value in carried(memory, batch).items()}
        loss, following = segment_loss(model, batch.tokens[span], machine, *gates, **past, **options)
        yield loss * ((span.stop - span.start) / count), following


def join_memories(parts: list[Tensor | None]) -> Tensor | None:
    """The memory [N, B, M', d] of a batch from those of its parts."""
    return None if parts[0] is None else torch.cat(parts, dim=1)


def set_mode(model: nn.Module, *, training: bool) -> None:
    """`model.train(training)` where it is not so already: walking a supernet's 600 modules takes 3 % of a step."""
    if model.training != training:
        model.train(training)
