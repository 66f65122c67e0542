"""The model's settings: one record for the supernet, for an architecture file's "model" and for every block."""

import dataclasses
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from supernet.errors import SettingError, did_you_mean

TASKS = {"causal_lm": True, "masked_lm": False}  # task -> whether a token attends to those before it alone
NORMS = ("pre", "post")
POSITIONS = ("learned", "sinusoidal", "relative", "none")
LARGEST = 2**31 - 1  # bounds every size, so that a hostile file cannot ask for more memory than a count can hold


@dataclass(frozen=True)
class ModelSettings:
    """Widths and kinds that all layers share. `task` stands beside "model" in an architecture file, the rest inside it.

    `cutoffs` are the adaptive softmax's cluster borders (Grave et al. 2017; empty: one plain softmax). `share_biases`:
    relative positions' u and v are one pair for all layers, as in the published Transformer-XL, or a pair a layer.
    Raises SettingError naming `model.KEY` when a value has the wrong type or does not fit the others.
    """

    vocab_size: int = 256
    d_model: int = 128
    heads: int = 4
    d_inner: int = 512
    max_len: int = 128
    memory_len: int = 0
    dropout: float = 0.0
    norm: str = "pre"
    position: str = "learned"
    tie_embeddings: bool = True
    cutoffs: tuple[int, ...] = ()  # a list becomes a tuple
    share_biases: bool = True
    task: str = "causal_lm"

    def __post_init__(self) -> None:
        for key in ("vocab_size", "d_model", "heads", "d_inner", "max_len"):
            check_int(getattr(self, key), f"model.{key}", least=1)
        check_int(self.memory_len, "model.memory_len", least=0)
        _check_number(self.dropout, "model.dropout")
        for key in ("tie_embeddings", "share_biases"):
            if not isinstance(getattr(self, key), bool):
                raise SettingError(f"model.{key}", f"expected true or false, got {getattr(self, key)!r}")
        check_choice(self.task, "task", TASKS)
        check_choice(self.norm, "model.norm", NORMS)
        check_choice(self.position, "model.position", POSITIONS)
        if self.d_model % self.heads:
            raise SettingError("model.heads", f"{self.heads} does not divide d_model {self.d_model}")
        if self.position == "sinusoidal" and self.d_model % 2:
            raise SettingError("model.d_model", f"sinusoidal positions need an even width, got {self.d_model}")
        if self.memory_len and not self.causal:
            raise SettingError("model.memory_len", f"task {self.task!r} has no memory; use 0")
        if self.memory_len and self.position in ("learned", "sinusoidal"):
            raise SettingError(
                "model.memory_len",
                f"memory needs position 'relative' or 'none', not {self.position!r}; or use memory_len 0",
            )
        if not isinstance(self.cutoffs, (list, tuple)):
            raise SettingError("model.cutoffs", f"expected a list of integers, got {self.cutoffs!r}")
        object.__setattr__(self, "cutoffs", tuple(self.cutoffs))
        _check_cutoffs(self.cutoffs, self.vocab_size)

    @property
    def causal(self) -> bool:
        """Whether position i may look only at positions up to i."""
        return TASKS[self.task]

    @classmethod
    def from_mapping(
        cls, values: Mapping[str, Any], *, task: str = "causal_lm", path: str = "model"
    ) -> "ModelSettings":
        """Settings from a file's "model" mapping; keys left out take the defaults, unknown ones are refused."""
        if not isinstance(values, Mapping):
            raise SettingError(path, f"expected an object, got {type(values).__name__}")
        known = [field.name for field in dataclasses.fields(cls) if field.name != "task"]
        for key in values:
            if key not in known:
                raise SettingError(f"{path}.{key}", f"unknown key{did_you_mean(key, known)}")
        return cls(**values, task=task)

    def to_mapping(self) -> dict[str, Any]:
        """The file's "model" mapping; `cutoffs` is left out where there are none, `share_biases` where they are
        shared."""
        values = dataclasses.asdict(self)
        del values["task"]
        values["cutoffs"] = list(self.cutoffs)
        if not self.cutoffs:
            del values["cutoffs"]
        if self.share_biases:
            del values["share_biases"]
        return values


def check_int(value: Any, path: str, *, least: int) -> int:
    """The value itself when it is an integer (not a bool) from `least` to 2^31 - 1; SettingError otherwise."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise SettingError(path, f"expected an integer, got {value!r}")
    if not least <= value <= LARGEST:
        raise SettingError(path, f"expected an integer from {least} to {LARGEST}, got {value}")
    return value


def check_choice(value: Any, path: str, choices: tuple[str, ...]) -> str:
    """The value itself when it is one of `choices`; SettingError otherwise."""
    if not isinstance(value, str) or value not in choices:
        raise SettingError(path, f"expected one of {', '.join(choices)}, got {value!r}")
    return value


def _check_number(value: Any, path: str) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or not 0 <= value < 1:
        raise SettingError(path, f"expected a number from 0 up to, not including, 1, got {value!r}")


def _check_cutoffs(cutoffs: tuple[int, ...], vocab_size: int) -> None:
    for index, cutoff in enumerate(cutoffs):
        check_int(cutoff, f"model.cutoffs[{index}]", least=1)
    rising = [*cutoffs, vocab_size]
    if any(low >= high for low, high in itertools.pairwise(rising)):
        raise SettingError(
            "model.cutoffs", f"expected rising values below vocab_size {vocab_size}, got {list(cutoffs)}"
        )
