"""What speed.py and its helpers measure at: sizes, candidates, text and machine, and how a call is timed."""

import dataclasses
import json
import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import nas
from nas.config.sections import DEFAULT_BLOCKS, Config, DataConfig, ModelConfig, RetrainConfig, RunConfig, SearchConfig
from nas.data.batches import Place, training_batch
from nas.data.corpus import Corpus, load_corpus
from nas.machine.device import Machine, choose_machine
from nas.training.setup import Setup
from supernet.settings import ModelSettings

FAR = 10**6  # steps of a run of which only the first are taken, so that no schedule moves
STILL = 1e-12  # a learning rate of the alphas at which every layout stays as likely as at first
SEVEN = (
    "self_attention",
    "dense_synthesizer",
    "random_synthesizer",
    "factorized_dense_synthesizer",
    "factorized_random_synthesizer",
    "feed_forward",
    "identity",
)
CANDIDATES = {5: DEFAULT_BLOCKS, 7: SEVEN}
WARMING = 1  # rounds that are not counted
STEPS = 3  # of a kind in a round


@dataclass(frozen=True)
class Sizes:
    """One size of network, batch and space of candidates, on one device."""

    layers: int
    d_model: int
    seq_len: int
    batch_size: int
    blocks: tuple[str, ...]
    device: str

    @property
    def tokens(self) -> int:
        """Tokens a step."""
        return self.seq_len * self.batch_size

    def __str__(self) -> str:
        return (
            f"{self.layers} layers, d {self.d_model}, {self.batch_size} x {self.seq_len} tokens, {len(self.blocks)} "
            "candidates, "
            f"{self.device}"
        )

    def to_json(self) -> str:
        """For the command line of another process."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Sizes":
        """From `to_json`'s value."""
        values = json.loads(text)
        return cls(**{**values, "blocks": tuple(values["blocks"])})

    def configuration(self, **search: object) -> Config:
        """The configuration of a search and a training at these sizes; `search` sets keys of that section."""
        return Config(
            run=RunConfig(device=self.device),
            data=DataConfig(seq_len=self.seq_len, batch_size=self.batch_size),
            model=ModelConfig(layers=self.layers, d_model=self.d_model, heads=4, d_inner=4 * self.d_model),
            search=SearchConfig(blocks=list(self.blocks), steps=FAR, arch_lr=STILL, **search),
            retrain=RetrainConfig(steps=FAR),
        )


@dataclass(frozen=True)
class Bench:
    """What every step at these sizes shares; the text is the built-in one."""

    sizes: Sizes
    config: Config
    corpus: Corpus
    machine: Machine
    settings: ModelSettings

    @property
    def setup(self) -> Setup:
        """As our own steps take it."""
        return Setup(self.config, self.corpus, self.machine)

    def draw(self, part: str, step: int) -> Tensor:
        """A batch of a part, [B, T + 1], drawn as ours are."""
        place = Place(0, part, step, segment=step)
        batch = training_batch(self.corpus, part, self.config.data, place, memory_len=0, share=(0, 1))
        return torch.from_numpy(batch.tokens)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        """Mean cross-entropy of a batch [B, T + 1], in the precision of ours."""
        tokens = batch.to(self.machine.device)
        with self.machine.autocast():
            logits = model(tokens[:, :-1])
        return functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())


def build_bench(sizes: Sizes) -> Bench:
    """Text and machine, with one thread on a CPU."""
    torch.set_num_threads(1)
    config = sizes.configuration()
    corpus = load_corpus(config.data)
    return Bench(
        sizes, config, corpus, choose_machine(config.run), config.model.settings(corpus.vocab_size, sizes.seq_len)
    )


def child_environment(**more: str) -> dict[str, str]:
    """Of a process with one thread that finds our packages where this one found them."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(nas.__file__).parents[1]), **more}


def timed(call: Callable[[], object], machine: Machine) -> float:
    """Milliseconds of a call, with all that it started on a GPU."""
    machine.wait()
    started = time.perf_counter()
    call()
    machine.wait()
    return (time.perf_counter() - started) * 1e3


def in_turn(turns: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each kind in each round: the mean of STEPS after one that is not counted, which finds the caches,
    and what memory the process keeps, as another kind left them. Taken in turn, so that a busy moment hits all alike.
    """
    times: dict[str, list[float]] = {name: [] for name in turns}
    for _ in range(WARMING + rounds):
        for name, turn in turns.items():
            turn()
            times[name].append(statistics.fmean(turn() for _ in range(STEPS)))
    return {name: values[WARMING:] for name, values in times.items()}


def quartiles(values: list[float]) -> tuple[float, float, float]:
    """The lower quartile, the median and the upper quartile of at least two values."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high
