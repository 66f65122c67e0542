"""What can be seen while a search runs: pictures that are drawn again now and then, and TensorBoard."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from supernet.errors import SettingError

SHARE = 0.01  # of the time that drawing may take
DELAY = 10.0  # seconds of a search before its first picture


Drawers = dict[str, Callable[[Path], object]]  # name -> what draws a run folder as far as it is


class LiveView:
    """Redraws what its drawers show of a running search, each for at most half of SHARE of the time.

    A drawing is taken to cost what it cost the last time (at first so much that it waits for DELAY), and waits until
    that is little enough.
    """

    def __init__(self, folder: Path, drawers: Drawers, clock: Callable[[], float] = time.perf_counter):
        self._clock, self._started = clock, clock()
        self._drawers = drawers
        self._costs = dict.fromkeys(self._drawers, DELAY * SHARE / 2)
        self._folder, self.spent = folder, dict.fromkeys(self._drawers, 0.0)

    def refresh(self) -> list[str]:
        """Draw what may be drawn now; returns the names of what was drawn."""
        drawn = []
        for name, draw in self._drawers.items():
            before = self._clock()
            if self.spent[name] + self._costs[name] > SHARE / 2 * (before - self._started):
                continue
            draw(self._folder)
            self._costs[name] = self._clock() - before
            self.spent[name] += self._costs[name]
            drawn.append(name)
        return drawn


class TensorBoardLog:
    """Scalars of the metrics and the heat map of the probabilities, for `tensorboard --logdir RUN`; nothing when
    off."""

    def __init__(self, folder: Path, active: bool, first_step: int):
        self._folder, self._writer = folder, None
        if active:
            self._open(first_step)

    def cut(self, last_step: int) -> None:
        """Take back what is after a step."""
        if self._writer is not None:
            self._writer.close()
            self._open(last_step)

    def _open(self, first_step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise SettingError("run.tensorboard", "needs the package: pip install 'par-search[tensorboard]'") from None
        self._writer = SummaryWriter(str(self._folder / "tensorboard"), purge_step=first_step + 1)

    def write(self, line: dict[str, Any], probabilities: torch.Tensor | None = None) -> None:
        """One line of metrics, and the probabilities [N, C] as a picture of one pixel a layer and candidate."""
        if self._writer is None:
            return
        for name, value in line.items():
            if isinstance(value, (int, float)) and name != "step":
                self._writer.add_scalar(name, value, line["step"])
        if probabilities is not None:
            self._writer.add_image("probabilities", probabilities.unsqueeze(0), line["step"])

    def close(self) -> None:
        """Write what is buffered."""
        if self._writer is not None:
            self._writer.close()
