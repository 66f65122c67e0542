"""Every layout of a small space trained, and what each search method makes of that space: python
benchmarks/ground_truth.py

`truth WORK` trains each distinct layout of 4 layers with three seeds and writes the table `benchmarks/ground_truth.csv`
(41 minutes on two cores that other jobs used as well). `methods WORK` runs every method of METHODS with five seeds
against that table and prints regret, percentile and rank correlation. WORK keeps what has been trained, so a stopped
script goes on. `--steps 1200`: the same against trainings of the default length, in a table of their own.
"""

import argparse
import csv
import itertools
import math
import random
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import torch
from scipy.stats import kendalltau

from derive import Architecture, build, derive_architectures
from derive.strict_json import read_json, write_json
from nas.config.sections import Config, DataConfig, ModelConfig, RetrainConfig, RunConfig, SearchConfig
from nas.costs.costs_table import build_costs
from nas.machine.process import run_jobs
from nas.machine.stop import StopFlag
from nas.searching.search_loop import run_search
from nas.searching.search_state import build_state
from nas.stages.jobs import retrain_job
from nas.training.checkpoint import restore
from nas.training.evaluation import evaluate
from nas.training.optimizers import build_adamw
from nas.training.setup import open_setup
from nas.training.train import train_step
from nas.training.train_state import TrainState

LAYERS, LETTERS = 4, "sqfi"
BLOCKS = ["self_attention", "factorized_random_synthesizer", "feed_forward", "identity"]
STEPS = 500  # of a standalone training, unless said
BUDGET = 0.65
OFTEN = {"mixture": 0.25, "arch_every": 1, "arch_lr": 0.1}  # as the default was when these were compared
EARLIER = {"steps": 1100, "warmup_steps": 800, **OFTEN}
MIDDLE = {"steps": 800, "warmup_steps": 550, **OFTEN}
LATE = {"steps": 600, "warmup_steps": 400, **OFTEN}
SOFT = {"steps": 250, "arch_every": 2, "arch_lr": 0.1}
METHODS: dict[str, dict] = {  # what a search does, beside the defaults; steps for about equal cost
    "default": {},
    "1,100 steps": EARLIER,
    "800 steps": MIDDLE,
    "shorter": LATE,
    "no mixture": {**LATE, "mixture": 0.0},
    "mixture alone": {**LATE, "mixture": 1.0},
    "no warm-up": {**LATE, "warmup_steps": 0},
    "softmax (DARTS)": {
        **SOFT,
        "warmup_steps": 0,
        "relaxation": "softmax",
        "temperature_start": 1.0,
        "temperature_end": 1.0,
    },
    "softmax, late": {
        **SOFT,
        "warmup_steps": 125,
        "relaxation": "softmax",
        "temperature_start": 1.0,
        "temperature_end": 1.0,
    },
    "gumbel (PAR)": {**SOFT, "warmup_steps": 0, "relaxation": "gumbel", "active": None},
    "gumbel, late": {**SOFT, "warmup_steps": 125, "relaxation": "gumbel", "active": None},
    "gumbel_hard, late": {
        "steps": 500,
        "arch_every": 2,
        "arch_lr": 0.1,
        "warmup_steps": 250,
        "relaxation": "gumbel_hard",
    },
}


def table_of(steps: int) -> Path:
    """Where the losses after so many steps are kept."""
    return Path(__file__).with_name("ground_truth.csv" if steps == STEPS else f"ground_truth_{steps}.csv")


def configuration(steps: int = STEPS, **search) -> Config:
    """The space: the default widths, a quarter of the tokens for evaluation, trainings of so many steps, and a search's
    settings."""
    settings = SearchConfig(blocks=BLOCKS, seeds=1, **search)
    return Config(
        run=RunConfig(device="cpu", log_every=20, checkpoint_every=10**6),
        data=DataConfig(seq_len=64, batch_size=16),
        model=ModelConfig(layers=LAYERS),
        search=settings,
        retrain=RetrainConfig(steps=steps, evaluate_every=10**6, final_tokens=131072),
    )


def layouts() -> list[str]:
    """Each layout once: identities anywhere are the same network, so they stand at the end."""
    rows = itertools.chain.from_iterable(itertools.product("sqf", repeat=depth) for depth in range(1, LAYERS + 1))
    return ["".join(row).ljust(LAYERS, "i") for row in rows]


def train_truth(work: Path, seeds: int, workers: int, steps: int) -> None:
    """Train every layout with every seed, then write the table."""
    config, stop = configuration(steps), StopFlag().install()
    model = config.model.settings(256, config.data.seq_len)
    architectures = [Architecture.from_pattern(pattern, model=model) for pattern in layouts()]
    jobs = [(config, arch, work / f"{arch.pattern}-{seed}", seed) for seed in range(seeds) for arch in architectures]
    run_jobs(retrain_job, jobs, workers, stop)
    with table_of(steps).open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["pattern", "cost", *(f"loss_{seed}" for seed in range(seeds))])
        for arch in architectures:
            losses = [
                read_json(work / f"{arch.pattern}-{seed}" / "result.json")["held_out_loss"] for seed in range(seeds)
            ]
            writer.writerow(
                [arch.pattern, round(arch.relative_flops(config.data.seq_len), 6), *(f"{loss:.5f}" for loss in losses)]
            )


def read_truth(steps: int = STEPS) -> tuple[dict[str, tuple[float, float]], float]:
    """Layout -> (cost, mean loss over the seeds); and the noise, the median of the losses' standard deviations, in
    nats."""
    with table_of(steps).open(newline="") as file:
        _, *rows = csv.reader(file)
    losses = [[float(value) for value in row[2:]] for row in rows]
    truth = {row[0]: (float(row[1]), statistics.mean(values)) for row, values in zip(rows, losses, strict=True)}
    return truth, statistics.median(map(statistics.stdev, losses))


def timed_search(config: Config, home: Path, seed: int, *, slot: int, stop: StopFlag) -> None:
    """One search in this process, its CPU seconds beside its files; a finished one is left as it is."""
    if (home / "seconds.json").exists():
        return
    torch.set_num_threads(1)
    home.mkdir(parents=True, exist_ok=True)
    setup = open_setup(config)
    (home / "config.yaml").write_text(config.to_yaml())
    write_json(home / "data.json", setup.corpus.to_json())
    costs = build_costs(config, setup.settings)
    started = time.process_time()
    run_search(setup, costs, home, seed, stop=stop, slot=slot)
    write_json(home / "seconds.json", time.process_time() - started)


def standalone_seconds(config: Config) -> float:
    """CPU seconds of one training of the interleaved layout, of `retrain.steps`, from fifty of them."""
    torch.set_num_threads(1)
    setup = open_setup(config)
    model = build(Architecture.preset("interleaved", config.model.settings(256, config.data.seq_len), LAYERS))
    optimizer = build_adamw(model, config.retrain.lr, config.retrain.weight_decay)
    state = TrainState(model, optimizer, setup.machine.scaler())
    for step in range(60):
        if step == 10:
            started = time.process_time()
        train_step(state, setup, 0)
    return (time.process_time() - started) / 50 * config.retrain.steps


def rank_correlation(config: Config, home: Path, truth: dict) -> float:
    """Kendall's tau between the truth and the losses of all layouts with the weights at the end of a search."""
    setup = open_setup(config)
    state = build_state(setup, 0)
    with tempfile.TemporaryDirectory() as folder:
        shutil.copyfile(home / "checkpoint.pt", Path(folder) / "checkpoint.pt")
        restore(state, Path(folder))
    rows = [torch.tensor([LETTERS.index(letter) for letter in pattern]) for pattern in truth]
    gates = [torch.nn.functional.one_hot(row, len(LETTERS)).float() for row in rows]
    losses = [evaluate(state.model, setup, "alphas", limit=4096, gates=one).loss for one in gates]
    return float(kendalltau(losses, [loss for _, loss in truth.values()])[0])


def standing(pattern: str, truth: dict) -> tuple[float, float]:
    """Regret in nats and percentile (0 is the best) among the layouts of no greater cost than this one or the
    budget."""
    cost, loss = truth[pattern.replace("i", "").ljust(LAYERS, "i")] if pattern.strip("i") else (0.0, math.inf)
    peers = [other for price, other in truth.values() if price <= max(cost, BUDGET) + 1e-9]
    return loss - min(peers), 100 * sum(other < loss for other in peers) / len(peers)


def best_of_random(count: int, truth: dict, seed: int) -> float:
    """The lowest true loss among `count` different random layouts of about the budget's cost."""
    peers = [loss for cost, loss in truth.values() if 0.85 * BUDGET <= cost <= BUDGET]
    return min(random.Random(seed).sample(peers, min(count, len(peers))))


def compare_methods(work: Path, seeds: int, methods: list[str], workers: int, steps: int) -> None:
    """Search with these methods and every seed, then print the table."""
    stop = StopFlag().install()
    configs = {name: configuration(**METHODS[name]) for name in methods}
    jobs = [(config, work / name / f"seed-{seed}", seed) for name, config in configs.items() for seed in range(seeds)]
    run_jobs(timed_search, jobs, workers, stop)
    print_table(configs, work, seeds, steps)


def print_table(configs: dict[str, Config], work: Path, seeds: int, steps: int = STEPS) -> None:
    """A row a method and way to read it off, against trainings of so many steps."""
    truth, noise = read_truth(steps)
    alone = standalone_seconds(configuration(steps))
    affordable = sum(cost <= BUDGET for cost, _ in truth.values())
    print(
        f"{len(truth)} layouts, {affordable} within the budget {BUDGET}; noise {noise:.4f} nats; one training "
        f"{alone:.1f} CPU s"
    )
    print("method                 cost  read-off   regret (min to max)         percentile  wins  tau")
    for name, config in configs.items():
        homes = [work / name / f"seed-{seed}" for seed in range(seeds)]
        price = statistics.mean(read_json(home / "seconds.json") for home in homes) / alone
        tau = statistics.mean(rank_correlation(config, home, truth) for home in homes)
        for read_off in ("argmax", "average", "budget", "scored"):
            patterns = [derived_pattern(home, read_off) for home in homes]
            regrets, percentiles = zip(*(standing(pattern, truth) for pattern in patterns), strict=True)
            rivals = [best_of_random(math.ceil(price + 1), truth, seed) for seed in range(seeds)]
            best = min(loss for cost, loss in truth.values() if cost <= BUDGET)
            wins = sum(regret + best <= rival + noise for regret, rival in zip(regrets, rivals, strict=True))
            print(
                f"{name:<22} {price:4.2f}  {read_off:<8} {statistics.mean(regrets):7.4f} ({min(regrets):.4f} to "
                f"{max(regrets):.4f}) "
                f"{statistics.mean(percentiles):9.1f} %  {wins}/{seeds}  {tau:.2f}  {' '.join(patterns)}",
                flush=True,
            )


def derived_pattern(home: Path, read_off: str) -> str:
    """The layout that one seed's files give: a derived file (`average`: the argmax of averaged probabilities), or the
    best scored layout (the argmax where none was within the budget).
    """
    if read_off == "average":
        return derive_architectures(home, selection="average")["argmax"].pattern
    scored = read_json(home / "layouts.json")["layouts"]
    if read_off != "scored" or not scored:
        return derive_architectures(home)["budget" if read_off == "budget" else "argmax"].pattern
    return "".join(LETTERS[BLOCKS.index(label)] for label in scored[0]["layers"])


def main() -> None:
    """Parse the command and run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["truth", "methods"])
    parser.add_argument("work", type=Path)
    parser.add_argument("--seeds", type=int, help="3 for truth, 5 for methods")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--steps", type=int, default=STEPS, help="of the trainings that make the truth")
    parser.add_argument("--workers", type=int, default=2, help="trainings or searches at a time")
    options = parser.parse_args()
    if options.command == "truth":
        train_truth(options.work, options.seeds or 3, options.workers, options.steps)
    else:
        compare_methods(options.work, options.seeds or 5, options.methods, options.workers, options.steps)


if __name__ == "__main__":
    main()
