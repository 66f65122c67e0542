"""Device and precision of a process, chosen once."""

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from nas.config.sections import RunConfig
from supernet.errors import SettingError


@dataclass(frozen=True)
class Machine:
    """Device and compute dtype of this process, and which it is of how many that work on one network together.

    What a training counts on the device is read every `read_every` steps, since a GPU has to be waited for.
    """

    device: torch.device
    dtype: torch.dtype
    rank: int = 0
    world: int = 1
    read_every: int = 1

    def wait(self) -> None:
        """Until the device has done all that it was given, for whoever measures time."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def autocast(self) -> contextlib.AbstractContextManager:
        """Mixed precision where the dtype is not fp32."""
        return torch.autocast(self.device.type, dtype=self.dtype, enabled=self.dtype != torch.float32)

    def scaler(self) -> torch.amp.GradScaler:
        """A gradient scaler; it does nothing except in fp16."""
        return torch.amp.GradScaler(self.device.type, enabled=self.dtype == torch.float16)


def compile_each(modules: Iterable[nn.Module]) -> None:
    """torch.compile each module in place. Its limit of variants of one function counts all modules of a class together,
    and beyond it they run eager without a word; so it grows with them: each is run in training, in evaluation and
    without gradient.
    """
    from torch._dynamo import config as limits

    modules = list(modules)
    limits.recompile_limit += 4 * len(modules)
    limits.accumulated_recompile_limit = max(limits.accumulated_recompile_limit, 4 * limits.recompile_limit)
    for module in modules:
        module.compile()


def choose_machine(run: RunConfig) -> Machine:
    """The device and dtype that `run` asks for; SettingError when the device is not there."""
    name = run.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, index = name.partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdigit()) or (kind == "cpu" and index):
        raise SettingError("run.device", f"expected auto, cpu, cuda or cuda:N, got {run.device!r}")
    if kind == "cuda" and not torch.cuda.is_available():
        raise SettingError("run.device", f"{run.device} asks for a GPU and torch sees none; use cpu")
    if name == "cuda" and "LOCAL_RANK" in os.environ:  # torchrun: one process a GPU
        index = os.environ["LOCAL_RANK"]
        name = f"cuda:{index}"
    if kind == "cuda" and index and int(index) >= torch.cuda.device_count():
        raise SettingError("run.device", f"{run.device}: torch sees {torch.cuda.device_count()} GPUs, counted from 0")
    if run.shard and int(os.environ.get("WORLD_SIZE", "1")) == 1:
        raise SettingError(
            "run.shard",
            "the weights can be shared out among several processes only: torchrun --nproc-per-node K search.py ...",
        )
    if (
        torch.are_deterministic_algorithms_enabled() != run.deterministic
    ):  # setting it imports torch's compiler, whatever the value
        torch.use_deterministic_algorithms(run.deterministic)
    precision = run.precision if run.precision != "auto" else ("bf16" if kind == "cuda" else "fp32")
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    return Machine(torch.device(name), dtype, read_every=10 if kind == "cuda" else 1)
