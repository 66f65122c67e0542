"""A network with its optimizer: one step of its weights, what a resume needs, and the way back from a loss that is not
finite."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from nas.machine.device import Machine
from nas.machine.distributed import average_gradients, share_files
from nas.machine.messages import warn
from nas.machine.sharding import (
    gathered,
    gathered_rows,
    load_whole_weights,
    scattered_moments,
    scattered_rows,
    whole_weights,
)
from nas.training.checkpoint import CURRENT, PREVIOUS, restore, save_checkpoint
from nas.training.losses import join_memories
from nas.training.optimizers import norm_clipped, set_learning_rate, step_where, with_gradients
from supernet.errors import RunFailed

MOST_BAD_STEPS = 20  # non-finite losses in a row after which the weights are given up
SLOWER = 0.3  # of the learning rate, once the weights have been given up


class NotFinite(RunFailed):
    """The loss or its gradient was not finite in MOST_BAD_STEPS steps in a row."""


@dataclass
class TrainState:
    """All that a training changes, and what a resume needs."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    step: int = 0  # weight steps done
    bad: Tensor = field(default_factory=lambda: torch.tensor(0))  # bad_steps, on the device
    slowed: float = 1.0  # factor of the learning rate: SLOWER after a way back
    memory: Tensor | None = None  # [N, B, M', d] of this process's rows, where they go on

    @property
    def bad_steps(self) -> int:
        """Steps in a row, up to the last one, whose loss or gradient was not finite."""
        return int(self.bad)

    def to_checkpoint(self) -> dict[str, Any]:
        """Whole tensors and plain values only, so that it loads with weights_only=True; all processes must call it."""
        return {
            "step": self.step,
            "bad_steps": self.bad_steps,
            "slowed": self.slowed,
            "model": whole_weights(self.model),
            "optimizer": gathered(self.optimizer.state_dict()),
            "scaler": self.scaler.state_dict(),
            "memory": gathered_rows(self.memory),
        }

    def load(self, saved: dict[str, Any]) -> None:
        """Continue from `to_checkpoint`'s value."""
        self.step, self.slowed = saved["step"], saved["slowed"]
        self.bad = torch.tensor(saved["bad_steps"])
        load_whole_weights(self.model, saved["model"])
        self.optimizer.load_state_dict(scattered_moments(saved["optimizer"], self.optimizer))
        self.scaler.load_state_dict(saved["scaler"])
        self.memory = scattered_rows(saved["memory"], self.model)

    def descend(
        self, losses: Iterable[tuple[Tensor, Tensor | None]], lr: float, clip: float, machine: Machine, *, last: bool
    ) -> Tensor:
        """One optimizer step down the processes' mean loss; returns it. `losses` are `part_losses`, whose memory is
        kept.

        A loss or gradient that is not finite changes nothing, empties the memory and is counted, all without waiting
        for the device. The count is read every `machine.read_every` steps and after the `last`: NotFinite is raised for
        MOST_BAD_STEPS or more in a row.
        """
        set_learning_rate(self.optimizer, lr * self.slowed)
        self.optimizer.zero_grad(set_to_none=True)
        mean, memories = torch.zeros((), device=machine.device), []
        for loss, memory in losses:
            self.scaler.scale(loss).backward()
            mean += loss.detach()
            memories.append(memory)
        moved = with_gradients(self.optimizer)
        average_gradients(machine, moved, mean)
        finite = torch.isfinite(mean) & torch.isfinite(norm_clipped(moved, self.optimizer, self.scaler, clip))
        step_where(finite, self.optimizer, self.scaler)
        self.bad = torch.where(finite, 0, self.bad.to(machine.device) + 1)
        self.step += 1
        self.memory = join_memories(memories)
        if last or self.step % machine.read_every == 0:
            require_few(self.bad_steps, mean)
            self.memory = None if self.bad_steps else self.memory
        elif self.memory is not None:  # of zeros where it is not known that the step was bad
            self.memory = torch.where(finite, self.memory, 0)
        return mean


class StepClock:
    """Adds up the seconds within `with`: the steps alone, without what is logged, evaluated and saved between them."""

    def __init__(self, step: int):
        self._seconds, self._since = 0.0, step

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        self._seconds += time.perf_counter() - self._started

    def steps_per_second(self, step: int, machine: Machine) -> float:
        """Since it was last asked; what a GPU has still to do of them is waited for."""
        with self:
            machine.wait()
        speed = (step - self._since) / self._seconds
        self._seconds, self._since = 0.0, step
        return speed


State = TypeVar("State", bound=TrainState)


def require_few(bad_steps: int, loss: Tensor) -> None:
    """NotFinite from MOST_BAD_STEPS steps in a row on that were not finite."""
    if bad_steps >= MOST_BAD_STEPS:
        raise NotFinite(
            f"the loss or its gradient was not finite in {bad_steps} steps in a row (last loss {float(loss)}); the "
            "last good "
            "checkpoint is kept; lower the learning rate"
        )


def save_state(state: TrainState, folder: Path, machine: Machine) -> None:
    """Process 0 writes the folder's checkpoint; none within a row of bad steps, which a resume takes again."""
    saved = state.to_checkpoint()
    if machine.rank == 0 and state.bad_steps == 0:
        save_checkpoint(folder, saved)


def resume(state: TrainState, folder: Path, machine: Machine) -> None:
    """Go on from the folder's newest whole checkpoint, where there is one; every process from that of process 0."""
    share_files(machine, folder, (CURRENT, PREVIOUS))
    restore(state, folder)


def go_back(state: State, build: Callable[[], State], folder: Path, machine: Machine, failure: NotFinite) -> State:
    """A new state at the last good checkpoint (at the start where there is none) with SLOWER of the learning rate.

    Once in a training: raises `failure` when its rate has been lowered before.
    """
    if state.slowed < 1:
        raise failure
    earlier = build()
    resume(earlier, folder, machine)
    earlier.slowed = SLOWER
    warn(
        f"the loss was not finite in {MOST_BAD_STEPS} steps in a row: back to step {earlier.step} with {SLOWER} of "
        "the learning rate"
    )
    return earlier
