"""From what a person names (file, preset, pattern) to architectures. Needs no torch."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from derive import Architecture
from nas.config.sections import Config, DataConfig
from nas.tasks.table import TASKS
from supernet.errors import SettingError, UserError
from supernet.settings import ModelSettings

if TYPE_CHECKING:
    from nas.data.corpus import Corpus


def architectures_against(config: Config, vocab_size: int, like: Architecture | None = None) -> list[Architecture]:
    """`retrain.against` on the configuration's widths, or on those of another architecture."""
    return [resolve_architecture(name, config, vocab_size, like, "retrain.against") for name in config.retrain.against]


def resolve_architecture(
    name: str, config: Config, vocab_size: int, like: Architecture | None = None, key: str = "ARCH"
) -> Architecture:
    """An architecture from a file, a preset or a pattern of letters, in this order."""
    if name.endswith(".json") or "/" in name or os.path.isfile(name):
        return Architecture.load(name)
    if like is not None:
        model, layers = {**like.model.to_mapping(), "task": like.task}, len(like.layers)
    else:
        settings = config.model.settings(vocab_size, config.data.seq_len)
        model, layers = {**settings.to_mapping(), "task": settings.task}, config.model.layers
    if name in ("interleaved", "par"):
        return Architecture.preset(name, model, layers, cut=config.derive.cut, ratio=config.derive.ratio)
    try:
        return Architecture.preset(name)
    except UserError:
        pass
    try:
        return Architecture.from_pattern(name, model)
    except SettingError as error:
        raise SettingError(key, f"{name!r} is no file, no preset and no pattern: {error}") from None


def unique_by_name(architectures: list[Architecture]) -> list[Architecture]:
    """The architectures without exact repetitions; UserError for two different ones of one name."""
    found: dict[str, Architecture] = {}
    for arch in architectures:
        other = found.setdefault(arch.name, arch)
        if (other.layers, other.model) != (arch.layers, arch.model):
            raise UserError(
                f"two architectures are named {arch.name!r}: {other.pattern} and {arch.pattern}; rename one in its file"
            )
    return list(found.values())


def check_fits(arch: Architecture, config: Config, corpus: Corpus) -> None:
    """UserError when an architecture cannot be trained on this text."""
    if arch.model.vocab_size != corpus.vocab_size:
        raise UserError(
            f"{arch.name}: model.vocab_size is {arch.model.vocab_size}, but the text's vocabulary (data.name "
            f"{corpus.name}, "
            f"data.tokens {config.data.tokens}) has {corpus.vocab_size}"
        )
    if config.data.seq_len > arch.model.max_len:
        raise SettingError("data.seq_len", f"{config.data.seq_len} exceeds max_len {arch.model.max_len} of {arch.name}")
    if (config.latency.seq_len or 0) > arch.model.max_len:
        raise SettingError(
            "latency.seq_len", f"{config.latency.seq_len} exceeds max_len {arch.model.max_len} of {arch.name}"
        )
    if arch.task not in TASKS:
        raise UserError(f"{arch.name}: this version trains {' and '.join(TASKS)}, not {arch.task}")
    if arch.task != config.model.task:
        raise SettingError("model.task", f"{config.model.task}, but {arch.name} is a {arch.task}; give that task")
    check_span({layer.block for layer in arch.layers}, arch.model, config.data, arch.name)


def check_span(blocks: set[str], model: ModelSettings, data: DataConfig, name: str) -> None:
    """SettingError when a network of these blocks cannot be trained, or evaluated, with the rows and the memory that
    `data` asks for."""
    if model.memory_len and not data.contiguous(model.memory_len):
        raise SettingError(
            "data.order", f"{name} has a memory, and random crops have no text before them; use contiguous"
        )
    if (data.eval_seq_len or 0) > model.max_len:
        raise SettingError("data.eval_seq_len", f"{data.eval_seq_len} exceeds max_len {model.max_len} of {name}")
    if data.eval_clamp_len is not None and model.position != "relative":
        raise SettingError(
            "data.eval_clamp_len", f"{name} has model.position {model.position}; only relative positions are distances"
        )
    if data.eval_memory_len in (None, model.memory_len):
        return
    if not model.memory_len:
        raise SettingError("data.eval_memory_len", f"{name} has model.memory_len 0 and takes no memory")
    sized = sorted(block for block in blocks if block.endswith("synthesizer"))
    if sized:
        raise SettingError(
            "data.eval_memory_len",
            f"{name} has or may have {', '.join(sized)}, whose maps are made for model.memory_len "
            f"{model.memory_len}; leave it out",
        )
