"""Measured time of every candidate layer on this device, of what stands around the layers, and of whole networks.

The time of a network is close to the sum of its layers' and its surroundings', which is what makes a table of layers
worth having.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from derive import Architecture
from nas.config.sections import Config
from nas.machine.device import Machine, compile_each
from nas.tasks.table import task_of
from supernet.blocks import parse_candidate
from supernet.context import Context
from supernet.inference import for_inference
from supernet.layers import IdentityLayer, build_layer
from supernet.network import Network
from supernet.settings import ModelSettings

SECONDS = 0.05  # measured a candidate and mode
COPIES = (
    4  # of a layer in a row, each with weights of its own: one alone would find them in the processor's nearest cache
)
THREADS = 1  # on a CPU: several threads wait for each other whenever anything else runs, and the figure means nothing
Row = dict[str, float]


def measure_candidates(
    config: Config, settings: ModelSettings, machine: Machine, *, training: bool | None = None
) -> dict[str, Any]:
    """`latency.json`: median and spread (interquartile range) of each candidate with its norm and residual, in ms.

    Of what `latency.of` or `training` names: forward without gradient, of layers as `for_inference` makes them (batch 1
    by default, the setting of PAR's tables), or forward and backward. `surroundings` is a network of `model.layers`
    identities: embedding, memory, final norm and head.
    """
    backward = config.latency.of == "training" if training is None else training
    shape, compiled = shape_of(config), config.run.compile
    labels = [candidate.label for candidate in config.candidates(settings)]
    surroundings = measure_network(
        without_layers(settings, config.model.layers, machine), shape, machine, backward=backward
    )
    rows = {}
    for label in dict.fromkeys([*labels, *task_of(config.model.task).baseline_blocks]):
        layers = layer_stack(label, settings, machine, compiled=compiled, trains=backward)
        rows[label] = measure_layers(layers, settings, shape, machine, backward=backward)
    return {
        "device": device_name(machine.device),
        "threads": THREADS,
        "mode": f"{'compiled' if compiled else 'eager'} {'training' if backward else 'inference'}",
        "dtype": str(machine.dtype).removeprefix("torch."),
        "batch": shape[0],
        "lengths": {"seq_len": shape[1], "memory_len": settings.memory_len},
        "candidates": rows,
        "surroundings": surroundings,
    }


def shape_of(config: Config) -> tuple[int, int]:
    """Rows and tokens a row of what is measured."""
    return config.latency.batch_size, config.latency.seq_len or config.data.seq_len


def without_layers(settings: ModelSettings, depth: int, machine: Machine) -> Network:
    """What stands around the layers: a network of so many identities."""
    return Network(settings, [IdentityLayer() for _ in range(depth)]).to(machine.device)


def layer_stack(
    label: str, settings: ModelSettings, machine: Machine, *, compiled: bool = False, trains: bool = False
) -> nn.ModuleList:
    """COPIES layers of a candidate, unless it trains as `for_inference` makes them: none where they are identities."""
    small = bare(settings)
    model = Network(small, [build_layer(parse_candidate(label, settings), small, number) for number in range(COPIES)])
    layers = (model if trains else for_inference(model)).layers.to(machine.device)
    if compiled:
        compile_each(layers)
    return layers


def bare(settings: ModelSettings) -> ModelSettings:
    """The settings with a vocabulary of two: an embedding may be larger than all layers."""
    return dataclasses.replace(settings, vocab_size=2, cutoffs=())


def measure_layers(
    layers: nn.ModuleList, settings: ModelSettings, shape: tuple[int, int], machine: Machine, *, backward: bool = False
) -> Row:
    """A row for one of COPIES layers that run one after the other on [B, T, d] activations, with their memory full."""
    x = torch.randn(*shape, settings.d_model, device=machine.device, requires_grad=backward)
    memories = [full_memory(settings, shape[0], machine) for _ in layers]
    relative = without_layers(bare(settings), 0, machine).relative(settings.memory_len + shape[1], x.detach())

    def forward() -> Tensor:
        y = x
        for layer, memory in zip(layers, memories, strict=True):
            y = Context(None, memory, relative).run(layer, y)  # with what a network spends on each
        return y

    row = _measure(layers, forward, [x, *layers.parameters()], machine, backward=backward)
    return {
        "median_ms": round(row["median_ms"] / COPIES, 6),
        "spread_ms": round(row["spread_ms"] / COPIES, 6),
        "runs": row["runs"],
    }


def full_memory(settings: ModelSettings, batch: int, machine: Machine) -> Tensor | None:
    """A layer's memory [B, M, d], or None for models without."""
    return (
        torch.randn(batch, settings.memory_len, settings.d_model, device=machine.device)
        if settings.memory_len
        else None
    )


def measure_network(model: Network, shape: tuple[int, int], machine: Machine, *, backward: bool = False) -> Row:
    """A row for a network on [B, T] tokens, with its memory full."""
    tokens = torch.zeros(shape, dtype=torch.int64, device=machine.device)
    memory = full_memory(model.settings, shape[0], machine)
    options = {} if memory is None else {"memory": memory.repeat(len(model.layers), 1, 1, 1)}

    def forward() -> Tensor:
        output = model(tokens, **options)
        return output if memory is None else output[0]

    return _measure(model, forward, list(model.parameters()), machine, backward=backward)


@dataclass
class LayerTimes:
    """Medians in ms of layers and surroundings without gradient, measured when first asked for.

    Not those of the run's latency.json: a machine that other jobs use is another one by the time that networks are
    compared.
    """

    config: Config
    machine: Machine
    measured: dict[Any, float] = dataclasses.field(default_factory=dict)

    def predict(self, arch: Architecture) -> float:
        """The sum of an architecture's layers' times and of its surroundings'."""
        return math.fsum([self._around(arch), *(self._layer(layer.label, arch.model) for layer in arch.layers)])

    def _layer(self, label: str, settings: ModelSettings) -> float:
        if (label, settings) not in self.measured:
            layers = layer_stack(label, settings, self.machine, compiled=self.config.run.compile)
            self.measured[label, settings] = measure_layers(layers, settings, shape_of(self.config), self.machine)[
                "median_ms"
            ]
        return self.measured[label, settings]

    def _around(self, arch: Architecture) -> float:
        depth = len(arch.layers)
        if (depth, arch.model) not in self.measured:
            model = without_layers(arch.model, depth, self.machine)
            self.measured[depth, arch.model] = measure_network(model, shape_of(self.config), self.machine)["median_ms"]
        return self.measured[depth, arch.model]


def device_name(device: torch.device) -> str:
    """The GPU's name, or "cpu"."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def _measure(
    module: nn.Module, forward: Callable[[], Tensor], inputs: Iterable[Tensor], machine: Machine, *, backward: bool
) -> Row:
    """Time of `forward`, in training mode and with the gradient of `inputs` after it where that is asked for."""
    inputs = [tensor for tensor in inputs if tensor.requires_grad]

    def call() -> None:
        with machine.autocast():
            y = forward()
        if backward:
            torch.autograd.grad(y, inputs, torch.ones_like(y), allow_unused=True)

    module.train(backward)
    with torch.set_grad_enabled(backward):
        times = _times_on_gpu(call) if machine.device.type == "cuda" else _times_on_cpu(call)
    low, median, high = np.percentile(times, [25, 50, 75]).tolist()
    return {"median_ms": round(median, 6), "spread_ms": round(high - low, 6), "runs": len(times)}


def _times_on_cpu(call: Callable[[], None]) -> list[float]:
    """Milliseconds of calls, in blocks where one is too short to time: those of this process, which does not count
    while others run."""
    from torch.utils.benchmark import Timer  # two thirds of a second to import

    timer = Timer("call()", globals={"call": call}, num_threads=THREADS, timer=time.process_time)
    timed = timer.blocked_autorange(min_run_time=SECONDS)
    return [seconds * 1e3 for seconds in timed.times for _ in range(timed.number_per_run)]


def _times_on_gpu(call: Callable[[], None], runs: int = 30) -> list[float]:
    """Milliseconds between events before and after each call on the device's own clock, after as many that are not
    counted."""
    for _ in range(runs):
        call()
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(runs)]
    for before, after in events:
        before.record()
        call()
        after.record()
    torch.cuda.synchronize()
    return [before.elapsed_time(after) for before, after in events]
