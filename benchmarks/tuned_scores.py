"""How well a trained supernet ranks layouts once each is tuned for a few steps: python benchmarks/tuned_scores.py WORK

WORK is that of ground_truth.py, with searches of a method in it. Every layout of the table starts from the supernet's
weights, trains on the same text for up to 40 steps and is scored on the `alphas` part on the way.
"""

import argparse
import copy
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import torch
from ground_truth import BUDGET, LETTERS, STEPS, configuration, read_truth, standalone_seconds
from scipy.stats import kendalltau

from nas.data.batches import Place, training_batch
from nas.searching.search_state import build_state
from nas.training.checkpoint import restore
from nas.training.evaluation import evaluate
from nas.training.losses import part_losses
from nas.training.optimizers import build_adamw
from nas.training.setup import open_setup
from nas.training.train_state import TrainState

MARKS = (0, 5, 10, 20, 40)  # steps after which a layout is scored
TOKENS = 8192
SCORED = 24  # layouts that a search scores, for the cost


def tuned_losses(home: Path, patterns: list[str], rate: float) -> tuple[dict[str, list[float]], float]:
    """Layout -> losses at MARKS; and the CPU seconds of one tuning step of one layout."""
    config = configuration()
    setup = open_setup(config)
    trained = build_state(setup, 0)
    with tempfile.TemporaryDirectory() as folder:
        shutil.copyfile(home / "checkpoint.pt", Path(folder) / "checkpoint.pt")
        restore(trained, Path(folder))
    found: dict[str, list[float]] = {}
    seconds = 0.0
    for pattern in patterns:
        row = torch.tensor([LETTERS.index(letter) for letter in pattern])
        gates = torch.nn.functional.one_hot(row, len(LETTERS)).float()
        net = copy.deepcopy(trained.model)
        state = TrainState(net, build_adamw(net, rate, config.search.weight_decay), setup.machine.scaler())
        found[pattern] = []
        for step in range(MARKS[-1] + 1):
            if step in MARKS:
                found[pattern].append(evaluate(net, setup, "alphas", limit=TOKENS, gates=gates).loss)
                net.train()
            started = time.process_time()
            place = Place(0, "tuning", step, segment=0)
            batch = training_batch(setup.corpus, "weights", config.data, place, memory_len=0, share=setup.share)
            losses = part_losses(net, batch, setup, gates, memory=None)
            state.descend(losses, rate, config.search.clip, setup.machine, last=False)
            seconds += time.process_time() - started
    return found, seconds / len(patterns) / (MARKS[-1] + 1)


def main() -> None:
    """Tune and rank, then print a row a number of steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("--method", default="default")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=1e-3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    (truth, _), taus, near, prices = read_truth(), [], [], []
    within = [pattern for pattern, (cost, _) in truth.items() if cost <= BUDGET]
    for seed in range(options.seeds):
        losses, price = tuned_losses(options.work / options.method / f"seed-{seed}", list(truth), options.rate)
        taus.append([correlation(losses, truth, list(truth), mark) for mark in range(len(MARKS))])
        near.append([correlation(losses, truth, within, mark) for mark in range(len(MARKS))])
        prices.append(price)
    alone = standalone_seconds(configuration()) / STEPS
    print(
        f"{options.method}, rate {options.rate:g}, {options.seeds} seeds; a step "
        f"{statistics.mean(prices) / alone:.2f} of one of a training alone"
    )
    print(
        f"steps  tau of {len(truth)} layouts (seeds)    tau of the {len(within)} within the budget    trainings for "
        f"{SCORED} layouts"
    )
    for mark, steps in enumerate(MARKS):
        every, some = ([row[mark] for row in rows] for rows in (taus, near))
        told = " ".join(f"{tau:.2f}" for tau in every)
        price = SCORED * steps * statistics.mean(prices) / alone / STEPS
        print(f"{steps:5}  {statistics.mean(every):.2f} ({told})  {statistics.mean(some):.2f}  {price:.2f}", flush=True)


def correlation(losses: dict[str, list[float]], truth: dict, patterns: list[str], mark: int) -> float:
    """Kendall's tau between the truth and the losses at a mark."""
    return float(
        kendalltau([losses[pattern][mark] for pattern in patterns], [truth[pattern][1] for pattern in patterns])[0]
    )


if __name__ == "__main__":
    main()
