"""Which keys of which sections a command reads."""

import dataclasses
from typing import Literal

from nas.config.sections import Config, DataConfig

SECTIONS = {field.name: field.type for field in dataclasses.fields(Config)}

# Of these sections these commands take only the keys that they read; in a file, the others are read over.
_OPENS = {
    "run": ("device", "precision", "deterministic"),
    "data": ("name", "path", "tokens", "eval_memory_len", "eval_clamp_len"),
}
KEYS_READ = {
    ("evaluate", "run"): _OPENS["run"],
    ("evaluate", "data"): (*_OPENS["data"], "seq_len", "eval_seq_len", "split"),
    ("generate", "run"): ("seed", *_OPENS["run"]),
    ("generate", "data"): _OPENS["data"],
}


@dataclasses.dataclass
class EvaluateDataConfig(DataConfig):
    """The text, and which part of it is evaluated."""

    split: Literal["held_out", "test"] = "held_out"
    """part of the text to evaluate on"""


def unread_keys(command: str, section: str) -> set[str]:
    """The keys of a section that a command does not read."""
    names = {field.name for field in dataclasses.fields(section_type(command, section))}
    return names - set(KEYS_READ.get((command, section), names))


def section_type(command: str, section: str) -> type:
    """The dataclass of a section; `evaluate` has one key more."""
    return EvaluateDataConfig if (command, section) == ("evaluate", "data") else SECTIONS[section]
