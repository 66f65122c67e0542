"""The model without input or output: candidate blocks, gates and the stack. Torch is imported only with `Supernet`."""

from typing import Any

from supernet.blocks import BLOCKS, BlockSpec, Candidate, candidate_cost, parse_candidate, register_block
from supernet.errors import RunFailed, SettingError, UserError
from supernet.settings import ModelSettings

__all__ = [
    "BLOCKS",
    "BlockSpec",
    "Candidate",
    "ModelSettings",
    "RunFailed",
    "SettingError",
    "Supernet",
    "UserError",
    "candidate_cost",
    "parse_candidate",
    "register_block",
]


def __getattr__(name: str) -> Any:
    if name == "Supernet":
        from supernet.supernet import Supernet

        return Supernet
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
