"""Training as a stage: every architecture with every seed, side by side."""

import shutil
from pathlib import Path

from derive import Architecture
from nas.config.sections import Config
from nas.machine.process import count_workers, run_jobs
from nas.machine.stop import StopFlag
from nas.stages.jobs import retrain_job
from nas.training.train import is_trained


def retrain_seeds(config: Config) -> range:
    """Seeds of the trainings of each architecture."""
    return range(config.run.seed, config.run.seed + config.retrain.seeds)


def retrain_stage(config: Config, architectures: list[Architecture], folder: Path, stop: StopFlag) -> None:
    """Train every architecture with every seed; equal layouts are trained once and their files copied."""
    seeds = retrain_seeds(config)
    first_of: dict[tuple, Architecture] = {}
    for arch in architectures:
        first_of.setdefault((arch.layers, arch.model), arch)
    jobs = [
        (config, arch, folder / "retrain" / arch.name / f"seed-{seed}", seed)
        for seed in seeds
        for arch in first_of.values()
    ]
    left = [(config, arch, home, seed) for _, arch, home, seed in jobs if not is_trained(arch, home)]
    run_jobs(retrain_job, left, count_workers(config.run, len(jobs)), stop)
    for arch in architectures:
        twin = first_of[(arch.layers, arch.model)]
        if twin is not arch:
            for seed in seeds:
                copy_training(
                    folder / "retrain" / twin.name / f"seed-{seed}",
                    folder / "retrain" / arch.name / f"seed-{seed}",
                    arch,
                )


def copy_training(source: Path, target: Path, arch: Architecture) -> None:
    """The files of an equal layout's training, under this architecture's name."""
    target.mkdir(parents=True, exist_ok=True)
    for name in ("metrics.jsonl", "model.safetensors", "result.json"):
        shutil.copyfile(source / name, target / name)
    arch.save(target / "architecture.json")
