"""Throughput of one and of two processes: python benchmarks/scaling.py [--processes 2]

The rows of a step stay the same in all, shared out among the processes; each process has one thread. In turn,
`--rounds` times: a search's weight step (sampled, after the warm-up), its alpha step, a plain training step of the
interleaved layout, and for comparison the plain weight step with DistributedDataParallel's search for unused parameters
in place of ours. Prints tokens a second (medians over rounds) and the ratio to one process; then the share of a default
run's time that its checkpoints take.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from nas.config.sections import Config, DataConfig, ModelConfig, RunConfig, SearchConfig
from nas.costs.costs_table import build_costs
from nas.data.batches import Batch
from nas.data.corpus import load_corpus
from nas.machine.device import Machine, choose_machine
from nas.machine.distributed import joined
from nas.machine.exit_codes import without_teardown
from nas.searching.search_gates import weight_gates
from nas.searching.search_state import build_state
from nas.searching.search_steps import arch_step, weight_step
from nas.stages.estimate import baseline_of
from nas.tasks.causal_lm import next_tokens
from nas.training.setup import Setup, open_setup
from nas.training.train import build_training, train_step
from nas.training.train_state import save_state

STEPS = 20  # of each kind in a round


def configuration(options: argparse.Namespace, world: int) -> Config:
    """The size to measure, its rows shared out among `world` processes."""
    return Config(
        run=RunConfig(device=options.device),
        data=DataConfig(seq_len=options.seq_len, batch_size=options.rows // world),
        model=ModelConfig(layers=options.layers, d_model=options.d_model, heads=4, d_inner=4 * options.d_model),
        search=SearchConfig(steps=10**6, warmup_steps=1),
    )


def kinds_of_steps(config: Config, machine: Machine) -> dict[str, Callable[[], object]]:
    """Name -> one step of that kind."""
    setup = Setup(config, load_corpus(config.data), machine)
    state, costs = build_state(setup, 0), build_costs(config, setup.settings)
    state.step = 2  # past the warm-up
    plain = build_training(baseline_of(setup), setup, 0)
    steps: dict[str, Callable[[], object]] = {
        "search: weights": lambda: weight_step(state, setup, 0),
        "search: alphas": lambda: arch_step(state, setup, costs, 0),
        "retraining": lambda: train_step(plain, setup, 0),
    }
    if machine.world > 1:
        steps["search: weights, DDP"] = ddp_step(setup)
    return steps


def ddp_step(setup: Setup) -> Callable[[], None]:
    """The weight step with torch's wrapper around the whole supernet in place of our one message."""
    config, state = setup.config, build_state(setup, 0)
    state.model.alphas.requires_grad_(False)
    wrapped = DistributedDataParallel(state.model, find_unused_parameters=True)
    batches = torch.randint(256, (64, config.data.batch_size, config.data.seq_len + 1)).numpy()

    def step() -> None:
        state.step += 1
        gates = weight_gates(state.host_alphas(), config, 0, state.step)
        (inputs,), _, targets = next_tokens(Batch(batches[state.step % 64], fresh=True), setup.machine.device)
        logits: Tensor = wrapped(inputs, gates)
        state.optimizer.zero_grad(set_to_none=True)
        functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
        torch.nn.utils.clip_grad_norm_([p for p in state.model.parameters() if p.grad is not None], config.search.clip)
        state.optimizer.step()

    return step


def measure(options: argparse.Namespace) -> None:
    """In each process: seconds of every kind of step in every round, printed as JSON by the first."""
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        dist.init_process_group("nccl" if options.device == "cuda" else "gloo")
    machine = joined(choose_machine(RunConfig(device=options.device)))
    times: dict[str, list[float]] = {}
    steps = kinds_of_steps(configuration(options, machine.world), machine)
    for _ in range(options.rounds + 1):
        for name, step in steps.items():
            machine.wait()
            started = time.perf_counter()
            for _ in range(STEPS):
                step()
            machine.wait()
            times.setdefault(name, []).append((time.perf_counter() - started) / STEPS)
    if machine.rank == 0:
        print(json.dumps({name: values[1:] for name, values in times.items()}))  # the first round warms up
    if "RANK" in os.environ:
        dist.destroy_process_group()


def launched(options: argparse.Namespace, world: int) -> dict[str, list[float]]:
    """The times of one round of `world` processes, each with one thread."""
    program = [
        __file__,
        "--measure",
        *(f"--{name}={getattr(options, name)}" for name in ("layers", "d_model", "seq_len", "rows", "device")),
    ]
    launcher = [] if world == 1 else ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *launcher, *program, "--rounds=1"], env=environment, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def checkpoint_share() -> tuple[float, float]:
    """(ms of a checkpoint of the default search with its flush to disk, its share of the time of the steps between
    two)."""
    torch.set_num_threads(1)
    config = Config(run=RunConfig(device="cpu"))
    setup = open_setup(config)
    state, saving = build_state(setup, 0), []
    state.step = config.search.warmup_steps  # the cheapest steps, without the alphas'
    started = time.perf_counter()
    for _ in range(STEPS):
        weight_step(state, setup, 0)
    between = (time.perf_counter() - started) / STEPS * config.run.checkpoint_every
    with tempfile.TemporaryDirectory(dir=".") as folder:
        for _ in range(STEPS):
            started = time.perf_counter()
            save_state(state, Path(folder), setup.machine)
            saving.append(time.perf_counter() - started)
    return statistics.median(saving) * 1e3, statistics.median(saving) / (between + statistics.median(saving))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (
        ("layers", 8),
        ("d_model", 128),
        ("seq_len", 64),
        ("rows", 32),
        ("rounds", 9),
        ("processes", 2),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        with without_teardown():
            measure(options)
    times: dict[int, dict[str, list[float]]] = {1: {}, options.processes: {}}
    for _ in range(options.rounds):
        for world, found in times.items():
            for name, values in launched(options, world).items():
                found.setdefault(name, []).extend(values)
    tokens = options.rows * options.seq_len
    print(
        f"{options.layers} layers, d {options.d_model}, {options.rows} x {options.seq_len} tokens a step in all, one "
        f"thread a process, {options.rounds} rounds"
    )
    base = {name: statistics.median(values) for name, values in times[1].items()}
    for world, found in times.items():
        for name, values in found.items():
            low, middle, high = statistics.quantiles(values, n=4)
            alone = base[name.removesuffix(", DDP")]
            print(
                f"{world} process{'es' if world > 1 else '  '}  {name:<22} {tokens / middle:9.0f} tokens/s  "
                f"quartiles {tokens / high:9.0f} {tokens / low:9.0f}  "
                f"ratio {alone / middle:.2f}",
                flush=True,
            )
    milliseconds, share = checkpoint_share()
    print(f"a checkpoint of the default search: {milliseconds:.1f} ms, {share:.2%} of the time")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
