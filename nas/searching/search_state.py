"""What a search changes from step to step."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nas.machine.device import compile_each
from nas.machine.process import seed_from
from nas.machine.sharding import gathered_rows, scattered_rows, shard
from nas.training.optimizers import build_adamw
from nas.training.setup import Setup
from nas.training.train_state import TrainState
from supernet.supernet import Supernet


@dataclass
class SearchState(TrainState):
    """All that a search changes, and what a resume needs; `optimizer` is that of the weights."""

    model: Supernet
    arch_optimizer: torch.optim.Optimizer = dataclasses.field(kw_only=True)
    recorded_steps: list[int] = dataclasses.field(default_factory=list)
    recorded: list[Tensor] = dataclasses.field(default_factory=list)  # probabilities [N, C] of those steps
    arch_memory: Tensor | None = None  # that of the alphas' rows

    _copied: tuple[int, Tensor] | None = None

    def host_alphas(self) -> Tensor:
        """The alphas [N, C] on the CPU, where layouts are drawn; from a GPU copied once after they have moved, so that
        no other step waits."""
        alphas = self.model.alphas.detach()
        if alphas.device.type == "cpu":
            return alphas
        if self._copied is None or self._copied[0] != alphas._version:
            self._copied = alphas._version, alphas.cpu()
        return self._copied[1]

    def to_checkpoint(self) -> dict[str, Any]:
        """Tensors and plain values only, so that it loads with weights_only=True."""
        return super().to_checkpoint() | {
            "arch_optimizer": self.arch_optimizer.state_dict(),
            "candidates": self.model.labels,
            "recorded_steps": list(self.recorded_steps),
            "recorded": torch.stack(self.recorded) if self.recorded else None,
            "arch_memory": gathered_rows(self.arch_memory),
        }

    def load(self, saved: dict[str, Any]) -> None:
        """Continue from `to_checkpoint`'s value."""
        super().load(saved)
        self.arch_optimizer.load_state_dict(saved["arch_optimizer"])
        self.arch_memory = scattered_rows(saved["arch_memory"], self.model)
        self.recorded_steps = list(saved["recorded_steps"])
        self.recorded = list(saved["recorded"]) if saved["recorded"] is not None else []


def build_state(setup: Setup, seed: int) -> SearchState:
    """A new supernet and its optimizers."""
    config, machine = setup.config, setup.machine
    torch.manual_seed(seed_from(seed, "initial weights"))
    net = build_supernet(setup).to(machine.device)
    if config.run.compile:
        compile_each(candidate for layer in net.layers for candidate in layer.candidates)
    if config.run.shard:
        shard(net, machine)
    return SearchState(
        net,
        build_adamw(net, config.search.weight_lr, config.search.weight_decay),
        machine.scaler(),
        arch_optimizer=torch.optim.Adam([net.alphas], lr=config.search.arch_lr, betas=(0.5, 0.999)),
    )


def build_supernet(setup: Setup) -> Supernet:
    """The supernet of the configuration, on torch's default device."""
    config, settings = setup.config, setup.settings
    values = {**settings.to_mapping(), "task": settings.task, "layers": config.model.layers}
    return Supernet(values, config.candidates(settings), share_values=config.search.share_values)
