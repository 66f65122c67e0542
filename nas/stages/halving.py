"""Successive halving: many layouts train a little, the better ones a little more, one to the end (Jamieson and
Talwalkar 2016)."""

import shutil
from pathlib import Path
from typing import Any

from derive import Architecture, derive_contenders
from derive import file_checks as checks
from derive.strict_json import read_json, write_json
from nas.config.sections import Config
from nas.machine.process import count_workers, run_jobs
from nas.machine.stop import StopFlag
from nas.stages.jobs import rung_job
from supernet.errors import SettingError, UserError

KEEP = 3  # one of so many goes on after a rung, at least one
STAGE = "halving.json"


def halving_stage(config: Config, folder: Path, known: list[Architecture], stop: StopFlag) -> list[Architecture]:
    """The contenders that are left after the rungs, as architectures to train to the end; written to `architectures/`.

    Every rung trains what is left up to its share of `retrain.steps`, with the first seed, and ranks it by the loss on
    the `alphas` part: no training reads it, and nothing is reported on it. Layouts among `known` do not enter.
    `halving.json` keeps all rungs; a stopped run goes on from it and from the trainings' checkpoints.
    """
    path = folder / STAGE
    if not path.exists():
        layouts = {arch.layers for arch in known}
        choices = config.derive
        entered = (
            derive_contenders(
                folder,
                drawn=config.retrain.drawn,
                random=config.retrain.random,
                budget=choices.budget,
                rules=choices.rules,
                seed=config.run.seed,
                selection=choices.selection,
            ).values()
            if config.retrain.drawn or config.retrain.random
            else ()
        )
        left = [arch for arch in entered if arch.layers not in layouts]
        rungs: list[dict[str, Any]] = []
        for share in config.retrain.rungs if left else ():
            step = max(1, round(share * config.retrain.steps))
            rungs.append(_rung(config, folder, left, step, stop))
            kept = {row["name"] for row in rungs[-1]["rows"] if row["kept"]}
            left = [arch for arch in left if arch.name in kept]
        for arch in left:
            arch.save(folder / "architectures" / f"{arch.name}.json")
        write_json(path, {"part": "alphas", "rungs": rungs, "left": [arch.name for arch in left]})
    left_names, dropped = read_halving(path)
    for name in dropped:  # half-trained networks; their losses stay in the file
        shutil.rmtree(folder / "retrain" / name, ignore_errors=True)
    return [Architecture.load(folder / "architectures" / f"{name}.json") for name in left_names]


def read_halving(path: Path) -> tuple[list[str], set[str]]:
    """The names that are left and those that were dropped; UserError where one of them could not be a folder's."""
    try:
        done = checks.check_object(read_json(path), "")
        left = [
            checks.check_name(name, f"left[{at}]")
            for at, name in enumerate(checks.check_list(done.get("left"), "left"))
        ]
        entered = set()
        for at, rung in enumerate(checks.check_list(done.get("rungs"), "rungs")):
            where = f"rungs[{at}].rows"
            for number, row in enumerate(
                checks.check_list(checks.check_object(rung, f"rungs[{at}]").get("rows"), where)
            ):
                entered.add(
                    checks.check_name(
                        checks.check_object(row, f"{where}[{number}]").get("name"), f"{where}[{number}].name"
                    )
                )
    except SettingError as error:
        raise UserError(f"{path}: {error}") from None
    return left, entered - set(left)


def _rung(config: Config, folder: Path, architectures: list[Architecture], step: int, stop: StopFlag) -> dict[str, Any]:
    """Train all up to `step`; the better third is kept."""
    seed = config.run.seed
    homes = {arch.name: folder / "retrain" / arch.name / f"seed-{seed}" for arch in architectures}
    jobs = [(config, arch, homes[arch.name], seed, step) for arch in architectures]
    left = [job for job in jobs if not rung_file(job[2], step).exists()]
    run_jobs(rung_job, left, count_workers(config.run, len(jobs)), stop)
    losses = {arch.name: read_json(rung_file(homes[arch.name], step))["loss"] for arch in architectures}
    ranked = sorted(architectures, key=lambda arch: (losses[arch.name] is None, losses[arch.name] or 0.0, arch.name))
    kept = {arch.name for arch in ranked[: max(1, len(ranked) // KEEP)]}
    rows = [
        {
            "name": arch.name,
            "pattern": arch.pattern,
            "relative_flops": arch.cost["relative_to_interleaved"]["flops"],
            "loss": losses[arch.name],
            "kept": arch.name in kept,
        }
        for arch in ranked
    ]
    return {"step": step, "rows": rows}


def rung_file(home: Path, step: int) -> Path:
    """Where a training leaves its loss at a rung."""
    return home / f"rung-{step}.json"
