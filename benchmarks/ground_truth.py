"""Every layout of a small space trained, and what each search method makes of that space: python benchmarks/ground_truth.py

`truth WORK` trains each distinct layout of 4 layers with three seeds and writes the table `benchmarks/ground_truth.csv`
(`--seeds 3`, about 30 minutes on two cores). `methods WORK` runs every method of METHODS with five seeds against that table and
prints regret, percentile and rank correlation. WORK keeps what has been trained, so a stopped script goes on.
"""

import argparse
import csv
import itertools
from pathlib import Path

from derive import Architecture
from derive.strict_json import read_json
from nas.config import Config, DataConfig, ModelConfig, RetrainConfig, RunConfig, SearchConfig
from nas.jobs import retrain_job
from nas.process import run_jobs
from nas.stop import StopFlag

TABLE = Path(__file__).with_name("ground_truth.csv")
LAYERS, LETTERS = 4, "sqfi"
BLOCKS = ["self_attention", "factorized_random_synthesizer", "feed_forward", "identity"]
STEPS = 500  # of a standalone training


def configuration(**search) -> Config:
    """The space: the default widths, a quarter of the tokens for evaluation, and a search's settings."""
    return Config(
        run=RunConfig(device="cpu", workers=2, log_every=100, checkpoint_every=10**6),
        data=DataConfig(seq_len=64, batch_size=16),
        model=ModelConfig(layers=LAYERS),
        search=SearchConfig(blocks=BLOCKS, seeds=1, **search),
        retrain=RetrainConfig(steps=STEPS, evaluate_every=10**6, final_tokens=131072),
    )


def layouts() -> list[str]:
    """Each layout once: identities anywhere are the same network, so they stand at the end."""
    rows = itertools.chain.from_iterable(itertools.product("sqf", repeat=depth) for depth in range(1, LAYERS + 1))
    return ["".join(row).ljust(LAYERS, "i") for row in rows]


def train_truth(work: Path, seeds: int) -> None:
    """Train every layout with every seed, then write the table."""
    config, stop = configuration(), StopFlag().install()
    model = config.model.settings(256, config.data.seq_len)
    architectures = [Architecture.from_pattern(pattern, model=model) for pattern in layouts()]
    jobs = [(config, arch, work / f"{arch.pattern}-{seed}", seed) for seed in range(seeds) for arch in architectures]
    run_jobs(retrain_job, jobs, config.run.workers, stop)
    with TABLE.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["pattern", "cost", *(f"loss_{seed}" for seed in range(seeds))])
        for arch in architectures:
            losses = [read_json(work / f"{arch.pattern}-{seed}" / "result.json")["held_out_loss"] for seed in range(seeds)]
            writer.writerow([arch.pattern, round(arch.relative_flops(config.data.seq_len), 6), *(f"{loss:.5f}" for loss in losses)])


def main() -> None:
    """Parse the command and run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["truth"])
    parser.add_argument("work", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    train_truth(options.work, options.seeds)


if __name__ == "__main__":
    main()
