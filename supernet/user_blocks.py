"""What can be known of a user's block class: its options, its parameters and its cost. Needs no torch to import."""

import inspect
import math
import re
from collections.abc import Mapping
from typing import Any

from supernet.errors import SettingError, UserError
from supernet.settings import ModelSettings


def option_parameters(cls: type) -> dict[str, inspect.Parameter]:
    """The named options of `__init__(self, config, **options)`, in order."""
    parameters = list(inspect.signature(cls.__init__).parameters.values())[2:]  # after self and config
    unnamed = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return {parameter.name: parameter for parameter in parameters if parameter.kind not in unnamed}


def accepts_any_option(cls: type) -> bool:
    """Whether `__init__` takes options that it does not name."""
    return any(p.kind is inspect.Parameter.VAR_KEYWORD for p in inspect.signature(cls.__init__).parameters.values())


def default_user_options(cls: type) -> dict[str, Any]:
    """The options that have a default, with it."""
    named = option_parameters(cls).items()
    return {name: parameter.default for name, parameter in named if parameter.default is not inspect.Parameter.empty}


def check_user_options(cls: type, given: Mapping[str, Any], path: str) -> dict[str, Any]:
    """The options themselves, when they can be written in a file and in a label; SettingError names the first that
    cannot."""
    for key, value in given.items():
        if not key.isidentifier():
            raise SettingError(f"{path}.{key}", "an option's name must be letters, digits and underscores")
        if not isinstance(value, (bool, int, float, str)) or (isinstance(value, float) and not math.isfinite(value)):
            raise SettingError(f"{path}.{key}", f"expected a finite number, text, true or false, got {value!r}")
        shown = show_option(value)
        if not re.fullmatch(r"[^,\[\]]+", shown) or read_option(key, shown.strip()) != value:
            raise SettingError(f"{path}.{key}", f"{value!r} cannot stand in a label; use a word, without , [ ]")
    for key, parameter in option_parameters(cls).items():
        if parameter.default is inspect.Parameter.empty and key not in given:
            raise SettingError(f"{path}.{key}", "is needed: the block gives it no default")
        wanted = _kind(parameter.default)
        if key in given and wanted and _kind(given[key]) != wanted:
            raise SettingError(f"{path}.{key}", f"expected {wanted}, as its default is, got {given[key]!r}")
    return dict(given)


def user_block_cost(cls: type, options: Mapping[str, Any], settings: ModelSettings, seq_len: int) -> tuple[int, int]:
    """(parameters without a norm, FLOPs a token at length `seq_len`): counted, and what `flops_per_token` says."""
    module = _build_unseen(cls, options, settings)
    declared = getattr(cls, "flops_per_token", 0)
    if inspect.isfunction(declared) and next(iter(inspect.signature(declared).parameters), "") == "self":
        declared = module.flops_per_token
    flops = declared(settings, seq_len) if callable(declared) else declared
    if isinstance(flops, bool) or not isinstance(flops, (int, float)) or not math.isfinite(flops) or flops < 0:
        raise UserError(f"{cls.__name__}.flops_per_token: expected a number from 0 on, got {flops!r}")
    return sum(parameter.numel() for parameter in module.parameters()), int(flops)


def show_option(value: Any) -> str:
    """An option's value as it stands in a label."""
    if isinstance(value, bool):
        return str(value).lower()
    return "+".join(value) if isinstance(value, tuple) else str(value)


def read_option(key: str, value: str) -> Any:
    """An option's value from a label."""
    if key == "parts":
        return value.split("+")
    if value in ("true", "false"):
        return value == "true"
    for read in (int, float):
        try:
            return read(value)
        except ValueError:
            continue
    return value


def _kind(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true or false"
    return "a number" if isinstance(value, (int, float)) else "text" if isinstance(value, str) else None


def _build_unseen(cls: type, options: Mapping[str, Any], settings: ModelSettings) -> Any:
    """The block on the meta device, without memory, or for real where it cannot be; random numbers are left as they
    were."""
    import torch  # a user's block is a torch module, so torch is there

    with torch.random.fork_rng(devices=[]):
        try:
            with torch.device("meta"):
                return cls(settings, **options)
        except Exception:  # such as a block that reads its own numbers; a fault of its own shows again below
            return cls(settings, **options)
