"""Measured time of every candidate layer on this device, and of whole models."""

from typing import Any

import torch
from torch import nn
from torch.utils.benchmark import Timer

from nas.config import Config
from nas.costs_table import BASELINE
from nas.machine import Machine
from supernet.attention import Relative
from supernet.backbone import sinusoids
from supernet.blocks import parse_candidate
from supernet.layers import Context, build_layer
from supernet.settings import ModelSettings

SECONDS = 0.1  # measured a candidate and mode
THREADS = 1  # on a CPU: several threads wait for each other whenever anything else runs, and the figure means nothing


def measure_candidates(config: Config, settings: ModelSettings, machine: Machine) -> dict[str, Any]:
    """`latency.json`: median and spread (interquartile range) of each candidate with its norm and residual, in ms.

    Forward without gradient ("inference"), at batch 1 and length data.seq_len: the setting of PAR's tables.
    """
    labels = [candidate.label for candidate in config.candidates(settings)]
    rows = {}
    for label in dict.fromkeys([*labels, *BASELINE]):
        layer = build_layer(parse_candidate(label, settings), settings, 0).to(machine.device).eval()
        if config.run.compile:
            layer.compile()
        rows[label] = _time_layer(layer, settings, config.data.seq_len, machine)
    return {
        "device": device_name(machine.device),
        "threads": THREADS,
        "mode": "compiled inference" if config.run.compile else "eager inference",
        "dtype": str(machine.dtype).removeprefix("torch."),
        "batch": 1,
        "lengths": {"seq_len": config.data.seq_len, "memory_len": settings.memory_len},
        "candidates": rows,
    }


def measure_model(model: nn.Module, seq_len: int, machine: Machine) -> float:
    """Median forward time of a network at batch 1, length seq_len and with its memory full, in ms."""
    tokens = torch.zeros(1, seq_len, dtype=torch.int64, device=machine.device)
    model.eval()
    options = {}
    if model.settings.memory_len:
        shape = (len(model.layers), 1, model.settings.memory_len, model.settings.d_model)
        options["memory"] = torch.randn(shape, device=machine.device)
    return _measure(lambda: model(tokens, **options), machine)["median_ms"]


def device_name(device: torch.device) -> str:
    """The GPU's name, or "cpu"."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def _time_layer(layer: nn.Module, settings: ModelSettings, seq_len: int, machine: Machine) -> dict[str, float]:
    x = torch.randn(1, seq_len, settings.d_model, device=machine.device)
    memory = torch.randn(1, settings.memory_len, settings.d_model, device=machine.device) if settings.memory_len else None
    relative = None
    if settings.position == "relative":
        distances = torch.arange(seq_len + settings.memory_len - 1, -1, -1, device=machine.device)
        zero = torch.zeros(settings.d_model, device=machine.device)
        relative = Relative(sinusoids(distances, settings.d_model), zero, zero)
    context = Context(None, memory, relative)
    return _measure(lambda: layer(x, context), machine)


def _measure(call: Any, machine: Machine) -> dict[str, float]:
    with torch.no_grad(), machine.autocast():
        timer = Timer("call()", globals={"call": call}, num_threads=THREADS)
        result = timer.blocked_autorange(min_run_time=SECONDS)
    return {
        "median_ms": round(result.median * 1e3, 6),
        "spread_ms": round(result.iqr * 1e3, 6),
        "runs": len(result.times) * result.number_per_run,
    }
