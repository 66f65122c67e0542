"""The process around supernet and derive, in rooms: a room imports only those before it in ROOMS (tests/whole/
test_layering.py). `api` stands above them all and is what a person's own code uses."""

from typing import Any

ROOMS = (
    "config",
    "machine",
    "data",
    "tasks",
    "costs",
    "training",
    "searching",
    "results",
    "pictures",
    "page",
    "stages",
    "commands",
)
__all__ = ["Run"]


def __getattr__(name: str) -> Any:
    """The names of `nas.api`, loaded by those who ask for one."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from nas import api

    return getattr(api, name)
