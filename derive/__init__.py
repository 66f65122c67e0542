"""Probabilities to architectures: pure functions and one record. Torch is imported only with `build`, numpy with deriving."""

import importlib
import sys
import types
from typing import Any

from derive.architecture import Architecture, ArchitectureError

__all__ = ["Architecture", "ArchitectureError", "build", "derive_architectures", "pareto_front"]

_LATER = {"build": "derive.build", "derive_architectures": "derive.derivation", "pareto_front": "derive.derivation"}


class _Package(types.ModuleType):
    """Keeps `derive.build` the function, also after the import system has set it to the submodule of that name."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "build" and isinstance(value, types.ModuleType):
            value = value.build
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(importlib.import_module(_LATER[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
