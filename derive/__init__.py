"""Probabilities to architectures: pure functions and one record. Torch is imported only with `build`, numpy with
deriving."""

import importlib
from typing import Any

from derive.architecture import Architecture, ArchitectureError
from derive.rule_file import RuleFile

__all__ = [
    "Architecture",
    "ArchitectureError",
    "RuleFile",
    "build",
    "derive_architectures",
    "derive_contenders",
    "derive_rule",
    "pareto_front",
]

_LATER = {
    "build": "derive.building",
    "derive_architectures": "derive.derivation",
    "derive_contenders": "derive.contenders",
    "derive_rule": "derive.derivation",
    "pareto_front": "derive.derivation",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(importlib.import_module(_LATER[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
