"""`--dry-run`: what a configuration would take, and its first steps at full width on a few rows. Writes nothing."""

import dataclasses
import time
from collections.abc import Callable

import numpy as np
import torch

from derive import Architecture, build
from nas.config.sections import Config
from nas.costs.costs_table import build_costs
from nas.costs.latency import measure_candidates
from nas.costs.memory import BYTES_A_PARAMETER, SAVED_BYTES, available_memory
from nas.data.batches import check_rows
from nas.data.corpus import Corpus, load_corpus
from nas.machine.device import Machine, choose_machine
from nas.machine.distributed import processes
from nas.searching.search_state import build_state, build_supernet
from nas.searching.search_steps import arch_step, weight_step
from nas.stages.estimate import baseline_of, count_trainings
from nas.stages.preflight import check_run
from nas.tasks.table import task_of
from nas.training.setup import Setup
from nas.training.train import build_training, train_step
from supernet.errors import SettingError

ROWS = 2  # of a batch, at most
TOKENS = 64  # of a row and of the memory, at most
STEPS = 2  # of each kind
STAND_IN = 100_000  # random tokens where the data set is not there
VOCABULARIES = {  # as published; bytes have 256
    ("wikitext-103", "words"): 267_735,
    ("wikitext-2", "words"): 33_278,
    ("text8", "chars"): 28,
    ("enwik8", "chars"): 5_459,
}


def dry_run(config: Config, whole: bool) -> None:
    """Print parameters and bytes at full size, then run STEPS steps of the search and of a training on at most ROWS
    rows of TOKENS tokens, and print what a step took and what the search, or the `whole` run, would take at that speed.

    SettingError where the configuration does not fit, or its parameters do not fit the memory.
    """
    config.check()
    task_of(config.model.task)
    setup = Setup(config, _corpus(config), choose_machine(config.run))
    check_rows(setup.corpus, ("weights", "alphas"), config.data, config.model.memory_len, processes())
    against = check_run(config, setup.corpus) if whole else []
    _print_sizes(setup, against)
    small = dataclasses.replace(setup, config=limited(config))
    weights, alphas, training = seconds_of_steps(small)
    rows = small.config.data
    print(
        f"{STEPS} steps on {rows.batch_size} x {rows.seq_len} tokens at full width: {weights:.2f} s of the weights, "
        f"{alphas:.2f} s of the alphas, {training:.2f} s of training the {setup.task.baseline} layout"
    )
    search = config.search
    seconds = search.seeds * (
        search.steps * weights + (search.steps - search.warmup_steps) / search.arch_every * alphas
    )
    seconds += count_trainings(config) * config.retrain.steps * training if whole else 0
    share = _tokens_a_step(small.config) / _tokens_a_step(config)
    print(
        f"on this device in one process {'all of it' if whole else 'the search'} would take about "
        f"{seconds / share / 3600:,.1f} hours, were all tokens as dear as these; large batches are cheaper"
    )


def limited(config: Config) -> Config:
    """The configuration with few and short rows; the widths stay."""
    data = dataclasses.replace(
        config.data, batch_size=min(config.data.batch_size, ROWS), seq_len=min(config.data.seq_len, TOKENS)
    )
    model = dataclasses.replace(
        config.model,
        max_len=config.model.max_len or config.data.seq_len,
        memory_len=min(config.model.memory_len, TOKENS),
    )
    search = dataclasses.replace(config.search, steps=2 * STEPS, warmup_steps=STEPS, arch_every=1)
    return dataclasses.replace(config, data=data, model=model, search=search)


def seconds_of_steps(setup: Setup) -> tuple[float, float, float]:
    """Seconds of a step of the weights and of the alphas, and of a training step of the baseline."""
    seed = setup.config.run.seed
    weights, alphas = _seconds_of_search(setup, seed)  # its supernet is gone before the next network is made
    trained = build_training(baseline_of(setup), setup, seed)
    return weights, alphas, _seconds(lambda: train_step(trained, setup, seed), setup.machine)


def _seconds_of_search(setup: Setup, seed: int) -> tuple[float, float]:
    """Seconds of a step of the weights, after the warm-up's, and of the alphas."""
    config, machine = setup.config, setup.machine
    measured = measure_candidates(config, setup.settings, machine) if config.search.cost == "latency" else None
    costs = build_costs(config, setup.settings, measured)
    state = build_state(setup, seed)
    for _ in range(STEPS):
        weight_step(state, setup, seed)
    weights = _seconds(lambda: weight_step(state, setup, seed), machine)
    return weights, _seconds(lambda: arch_step(state, setup, costs, seed), machine)


def _seconds(step: Callable[[], object], machine: Machine) -> float:
    machine.wait()
    started = time.perf_counter()
    for _ in range(STEPS):
        step()
    machine.wait()
    return (time.perf_counter() - started) / STEPS


def _tokens_a_step(config: Config) -> int:
    return config.data.batch_size * config.data.seq_len


def _print_sizes(setup: Setup, against: list[Architecture]) -> None:
    config, settings = setup.config, setup.settings
    with torch.device("meta"):
        net = build_supernet(setup)
        rows = [("supernet", sum(parameter.numel() for parameter in net.weight_parameters()))]
        rows += [(arch.name, sum(parameter.numel() for parameter in build(arch).parameters())) for arch in against]
    there = available_memory(setup.machine.device)
    print(
        f"vocabulary {settings.vocab_size:,}, {config.model.layers} layers, d {settings.d_model}, "
        f"{config.data.batch_size} x {config.data.seq_len} tokens a step"
    )
    for name, parameters in rows:
        print(
            f"{name:<20} {parameters:>13,} parameters  {parameters * BYTES_A_PARAMETER / 2**30:8.2f} GiB with "
            f"gradients and optimizer  {parameters * SAVED_BYTES / 2**30:7.2f} GiB a checkpoint"
        )
    if max(parameters for _, parameters in rows) * BYTES_A_PARAMETER > there:
        raise SettingError(
            "model.d_model",
            f"{there / 2**30:,.1f} GiB are free, too few for the parameters alone; lower model.d_model, "
            "model.d_inner or model.layers",
        )


def _corpus(config: Config) -> Corpus:
    """The configuration's text; random tokens over the published vocabulary where a named set is not there."""
    vocabulary = 256 if config.data.tokens == "bytes" else VOCABULARIES.get((config.data.name, config.data.tokens))
    if config.data.path is not None or config.data.name == "sotu" or vocabulary is None:
        return load_corpus(config.data)
    print(f"data.path is not given: {STAND_IN:,} random tokens stand in for {config.data.name}")
    tokens = np.random.default_rng(0).integers(0, vocabulary, STAND_IN, dtype=np.int32)
    borders = [0, *(STAND_IN * share // 100 for share in (72, 90, 95)), STAND_IN]
    parts = {name: (borders[at], borders[at + 1]) for at, name in enumerate(("weights", "alphas", "held_out", "test"))}
    return Corpus(config.data.name, "random tokens", "", 0, config.data.tokens, vocabulary, "", [], tokens, parts)
