"""What a step costs: python benchmarks/step_cost.py

Weight steps and alpha steps of every relaxation against a plain interleaved Transformer's training step of the same depth, width and
tokens, alternating in one process, one thread. Prints medians with quartiles in ms, and ratios of medians.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from derive import Architecture, build
from nas.config import DEFAULT_BLOCKS, Config, DataConfig, ModelConfig, RunConfig, SearchConfig
from nas.costs_table import build_costs
from nas.data import load_corpus
from nas.machine import choose_machine
from nas.optimizers import build_adamw
from nas.search_loop import arch_step, build_state, weight_step
from nas.train import train_step
from nas.train_state import TrainState
from supernet.gates import RELAXATIONS

SEVEN = ["self_attention", "dense_synthesizer", "random_synthesizer", "factorized_dense_synthesizer",
         "factorized_random_synthesizer", "feed_forward", "identity"]  # fmt: skip


def configuration(options: argparse.Namespace, relaxation: str) -> Config:
    """The sizes to measure, with the default five candidates or with seven."""
    return Config(
        run=RunConfig(device="cpu"),
        data=DataConfig(seq_len=options.seq_len, batch_size=options.batch_size),
        model=ModelConfig(layers=options.layers, d_model=options.d_model, heads=4, d_inner=4 * options.d_model),
        search=SearchConfig(blocks=SEVEN if options.candidates == 7 else list(DEFAULT_BLOCKS), relaxation=relaxation, steps=10**6, warmup_steps=1),
    )


def measured(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each call, taken in turn so that a busy moment hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for round_number in range(rounds + 2):
        for name, call in calls.items():
            started = time.perf_counter()
            call()
            if round_number >= 2:  # two rounds to warm up
                times[name].append((time.perf_counter() - started) * 1e3)
    return times


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("layers", 12), ("d_model", 64), ("seq_len", 64), ("batch_size", 16), ("rounds", 40), ("candidates", 5)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    torch.set_num_threads(1)
    calls: dict[str, Callable[[], object]] = {}
    config = configuration(options, "sampled")
    corpus, machine = load_corpus(config.data), choose_machine(config.run)
    settings = config.model.settings(corpus.vocab_size, config.data.seq_len)
    plain = build(Architecture.preset("interleaved", settings, options.layers))
    trained = TrainState(plain, build_adamw(plain, 1e-3, 0.01), machine.scaler())
    calls["plain interleaved"] = lambda: train_step(trained, config, corpus, machine, 0)
    for relaxation in RELAXATIONS:
        config_of = configuration(options, relaxation)
        state = build_state(config_of, corpus, machine, 0)
        state.step = 2  # past the warm-up
        costs = build_costs(config_of, settings)
        calls[f"{relaxation}: weights"] = lambda s=state, c=config_of: weight_step(s, c, corpus, machine, 0)
        calls[f"{relaxation}: alphas"] = lambda s=state, c=config_of, t=costs: arch_step(s, c, corpus, t, machine, 0)
    times = measured(calls, options.rounds)
    base = statistics.median(times["plain interleaved"])
    print(f"{options.layers} layers, d {options.d_model}, {options.batch_size} x {options.seq_len} tokens, {len(config.search.blocks)} candidates")
    for name, values in times.items():
        low, middle, high = statistics.quantiles(values, n=4)
        print(f"{name:<22} median {middle:7.2f} ms  quartiles {low:7.2f} {high:7.2f}  ratio {middle / base:.2f}")


if __name__ == "__main__":
    main()
