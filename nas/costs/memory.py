"""Whether what a run keeps in memory and on disk at least can fit at all: asked before anything is written."""

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from derive import Architecture
from nas.config.sections import Config
from nas.machine.distributed import processes
from supernet.blocks import candidate_cost
from supernet.costs import surroundings
from supernet.errors import SettingError
from supernet.settings import ModelSettings

SAVED_BYTES = 12  # a parameter in a checkpoint: the weight and Adam's two moments
BYTES_A_PARAMETER = 16  # fp32: the weight, its gradient and Adam's two moments
KEYS = "model.d_model, model.d_inner, model.layers, data.seq_len, data.batch_size or data.micro_batch_size"


def check_search_memory(config: Config, settings: ModelSettings, device: torch.device, workers: int) -> None:
    """SettingError when supernet, optimizer and the logits of a batch cannot fit `workers` times beside each other."""
    _check("the search", supernet_parameters(config, settings), settings, config, device, workers)


def check_disk(config: Config, settings: ModelSettings, architectures: Sequence[Architecture], folder: Path) -> None:
    """SettingError when the checkpoints of every search and the weights of every training cannot fit beside each other
    on the disk.

    `architectures` are those to train beside the derived ones; a derived one is taken to have the parameters of the
    largest.
    """
    # last, one before, one being written
    searches = SAVED_BYTES * supernet_parameters(config, settings) * (2 * config.search.seeds + 1)
    largest = max((arch.parameters() for arch in architectures), default=0)
    trainings = (len(architectures) + len(config.retrain.architectures)) * config.retrain.seeds
    needed = searches + largest * (4 * trainings + 3 * SAVED_BYTES)
    there = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    free = shutil.disk_usage(there).free
    if needed > free:
        raise SettingError(
            "run.dir",
            f"checkpoints and weights take at least {needed / 2**30:,.2f} GiB, and {free / 2**30:,.2f} GiB are free in "
            f"{there}; give another folder, or lower model.d_model, model.d_inner, model.layers or search.seeds",
        )


def supernet_parameters(config: Config, settings: ModelSettings) -> int:
    """Parameters of the supernet without the alphas."""
    layer = sum(
        candidate_cost(candidate, settings, config.data.seq_len)[0] for candidate in config.candidates(settings)
    )
    return surroundings(settings)[0] + config.model.layers * layer


def check_training_memory(
    architectures: Iterable[Architecture], config: Config, device: torch.device, workers: int
) -> None:
    """The same for the largest of the architectures."""
    largest = max(architectures, key=Architecture.parameters)
    _check(f"training {largest.name}", largest.parameters(), largest.model, config, device, workers)


def check_evaluation_memory(arch: Architecture, device: torch.device) -> None:
    """SettingError when the weights alone cannot fit."""
    needed, there = 4 * arch.parameters(), available_memory(device)
    if needed > there:
        raise SettingError(
            "model.d_model",
            f"the weights of {arch.name} take {needed / 2**30:,.1f} GiB, and {there / 2**30:,.1f} GiB are free",
        )


def check_latency_memory(config: Config, settings: ModelSettings, device: torch.device) -> None:
    """SettingError when the logits that measuring a network makes cannot fit."""
    rows, length = config.latency.batch_size, config.latency.seq_len or config.data.seq_len
    needed, there = 3 * 4 * rows * length * max(settings.vocab_size, settings.d_model), available_memory(device)
    if needed > there:
        raise SettingError(
            "latency.batch_size",
            f"{rows} rows of {length} tokens take at least {needed / 2**30:,.1f} GiB, and "
            f"{there / 2**30:,.1f} GiB are free; lower it or latency.seq_len",
        )


def available_memory(device: torch.device) -> int:
    """Bytes that a new process could take; a very large number where the system does not say."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    found = [2**62]
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        lines = dict(
            line.split(":", 1)
            for line in meminfo.read_text(encoding="ascii", errors="replace").splitlines()
            if ":" in line
        )
        found += [int(lines[key].split()[0]) * 1024 for key in ("MemAvailable",) if key in lines]
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        paths = [Path("/sys/fs/cgroup") / name for name in (limit, used)]
        if all(path.exists() for path in paths):
            numbers = [path.read_text(encoding="ascii").strip() for path in paths]
            found += [int(numbers[0]) - int(numbers[1])] if all(map(str.isdecimal, numbers)) else []
    return max(0, min(found))


def _check(
    what: str, parameters: int, settings: ModelSettings, config: Config, device: torch.device, workers: int
) -> None:
    rows = config.data.micro_batch_size or config.data.batch_size
    logits = 3 * 4 * rows * config.data.seq_len * settings.vocab_size  # logits, their softmax and gradient
    shares = processes() if config.run.shard else 1
    needed, there = workers * (BYTES_A_PARAMETER * parameters // shares + logits), available_memory(device)
    if needed > there:
        times = f"{workers} processes of " if workers > 1 else ""
        raise SettingError(
            "model.d_model",
            f"{what} takes at least {needed / 2**30:,.1f} GiB ({times}{parameters:,} parameters with their "
            "optimizer, and the "
            f"logits of a batch), and {there / 2**30:,.1f} GiB are free; lower {KEYS}",
        )
