"""Searches and trainings of the smallest size, in this process and as real ones."""

import contextlib
import copy
import io
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml

import search
from nas.config.options import config_from_values
from nas.config.sections import Config
from nas.costs.costs_table import CostTable, build_costs
from nas.data.corpus import Corpus, load_corpus
from nas.machine.device import Machine
from nas.machine.stop import SIGNALS, StopFlag
from nas.searching.search_loop import run_search
from nas.searching.search_state import SearchState, build_state
from nas.training.setup import Setup

ROOT = Path(__file__).parents[1]
CPU = Machine(torch.device("cpu"), torch.float32)
BLOCKS = ["self_attention", "random_synthesizer", "feed_forward", "identity"]

TINY: dict[str, dict[str, Any]] = {  # nothing that the recorded curve depends on is left to the defaults
    "run": {"device": "cpu", "log_every": 3, "checkpoint_every": 4, "workers": 1},
    "data": {"seq_len": 16, "batch_size": 3},
    "model": {
        "layers": 2,
        "d_model": 8,
        "heads": 2,
        "d_inner": 10,
        "dropout": 0.0,
        "norm": "pre",
        "position": "learned",
        "tie_embeddings": True,
    },
    "search": {
        "blocks": BLOCKS,
        "steps": 20,
        "warmup_steps": 8,
        "mixture": 0.25,
        "relaxation": "softmax",
        "temperature_start": 1.0,
        "temperature_end": 1.0,
        "weight_lr": 3e-3,
        "weight_decay": 0.01,
        "arch_lr": 0.1,
        "arch_every": 1,
        "arch_samples": 2,
        "clip": 1.0,
        "cost": "flops",
        "cost_weight": 1.0,
        "budget": 0.3,
        "active": 3,
        "evaluate_every": 6,
        "evaluate_tokens": 256,
        "seeds": 1,
    },
    "retrain": {
        "steps": 16,
        "lr": 3e-3,
        "weight_decay": 0.01,
        "clip": 1.0,
        "evaluate_every": 6,
        "evaluate_tokens": 256,
        "final_tokens": 512,
        "seeds": 1,
        "architectures": ["argmax"],
        "against": ["interleaved"],
        "drawn": 0,
        "random": 0,
        "rungs": [0.4, 0.7],
        "rung_tokens": 256,
    },
}


_CONFIGS: dict[str, Config] = {}


def tiny_values(**changes: Any) -> dict[str, dict[str, Any]]:
    """The sections of a tiny configuration; changes as `search__steps=5`."""
    values = copy.deepcopy(TINY)
    for key, value in changes.items():
        section, _, name = key.partition("__")
        values.setdefault(section, {})[name] = value
    return values


def tiny(**changes: Any) -> Config:
    """A tiny configuration, checked."""
    known = repr(sorted(changes.items()))
    if known not in _CONFIGS:
        _CONFIGS[known] = config_from_values(tiny_values(**changes), Config(), source="tiny")
        _CONFIGS[known].check()
    return copy.deepcopy(_CONFIGS[known])


def tiny_yaml(path: Path, **changes: Any) -> Path:
    """A tiny configuration as a file."""
    path.write_text(yaml.safe_dump(tiny_values(**changes)), encoding="utf-8")
    return path


@dataclass
class Bench:
    """A search that is taken step by step."""

    setup: Setup
    config: Config
    corpus: Corpus
    costs: CostTable
    state: SearchState


def setup_of(config: Config, machine: Machine = CPU) -> Setup:
    """The configuration with its text, on one CPU."""
    return Setup(config, load_corpus(config.data), machine)


def bench(seed: int = 0, **changes: Any) -> Bench:
    """A new search on the built-in text."""
    config = tiny(**changes)
    corpus = load_corpus(config.data)
    setup = Setup(config, corpus, CPU)
    return Bench(setup, config, corpus, build_costs(config, setup.settings), build_state(setup, seed))


def search_in(folder: Path, config: Config, stop: StopFlag | None = None, seed: int = 0) -> None:
    """A whole search in this process, its progress bar unseen."""
    setup = setup_of(config)
    costs = build_costs(config, setup.settings)
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.redirect_stderr(io.StringIO()):
        run_search(setup, costs, folder, seed, stop=stop or StopFlag())


def assert_equal(one: Any, other: Any, path: str = "") -> None:
    """Equal to the bit, tensors within nested dicts and lists included."""
    assert type(one) is type(other), path
    if isinstance(one, dict):
        assert one.keys() == other.keys(), path
        for key in one:
            assert_equal(one[key], other[key], f"{path}.{key}")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), path
        for index, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_equal(a, b, f"{path}[{index}]")
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other), path
    else:
        assert one == other, path


class StopAt(StopFlag):
    """A stop that comes within the given call of the step's check."""

    def __init__(self, after: int):
        super().__init__()
        self.left = after

    @property
    def signal_number(self) -> int | None:
        self.left -= 1
        return 15 if self.left < 0 else None

    @signal_number.setter
    def signal_number(self, value: int | None) -> None:
        pass


def environment() -> dict[str, str]:
    """The environment of a real process: one thread, so that sums run in one order."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "COLUMNS": "120"}


def command(*arguments: object, cwd: Path, timeout: float = 120, **options: Any) -> subprocess.CompletedProcess:
    """`python search.py ...` as a real process, from another folder than the repository's."""
    line = [sys.executable, str(ROOT / "search.py"), *map(str, arguments)]
    return subprocess.run(line, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=timeout, **options)


def start(*arguments: object, cwd: Path, **options: Any) -> subprocess.Popen:
    """The same, not waited for."""
    line = [sys.executable, str(ROOT / "search.py"), *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(line, cwd=cwd, env=environment(), **pipes, **options)


class Called(NamedTuple):
    """How a command ended in this process."""

    returncode: int
    stdout: str
    stderr: str


def call(*arguments: object) -> Called:
    """`search.main` in this process: what it printed and its exit code."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    before = {number: signal.getsignal(number) for number in SIGNALS}
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            search.main([str(argument) for argument in arguments])
        except SystemExit as left:
            code = left.code or 0
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    return Called(code, out.getvalue(), err.getvalue())


def error_line(done: subprocess.CompletedProcess | Called, code: int = 2) -> str:
    """The one line on standard error of a process that failed with `code`; nothing else may be there."""
    assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: "), done.stderr
    return lines[0]
