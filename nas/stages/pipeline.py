"""The stages in order; each reads the files of the one before, so each can be run alone and a stopped run goes on."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from derive import Architecture
from derive.strict_json import write_json
from nas.config.sections import Config
from nas.costs.memory import check_disk, check_latency_memory, check_search_memory, check_training_memory
from nas.data.batches import check_rows
from nas.machine.distributed import processes
from nas.machine.messages import note
from nas.machine.process import count_workers
from nas.machine.stop import StopFlag
from nas.results.run_folder import choose_folder, open_run_folder, require_held
from nas.results.run_readers import read_timings
from nas.stages.architectures import architectures_against, check_fits, resolve_architecture, unique_by_name
from nas.stages.compare import compare_stage
from nas.stages.derive_stage import derive_stage, print_verdicts
from nas.stages.estimate import minutes_after_search
from nas.stages.halving import halving_stage
from nas.stages.jobs import draw_pictures, write_page
from nas.stages.preflight import check_run
from nas.stages.retrain_stage import retrain_seeds, retrain_stage
from nas.stages.search_stage import search_finished, search_stage, seed_folders
from nas.stages.told import print_comparison, print_result
from nas.training.setup import Setup, open_setup


def run_everything(config: Config, stop: StopFlag) -> None:
    """Search, derive, plot, retrain the candidates, compare, report."""
    config.check()
    setup = open_setup(config)
    against = check_run(config, setup.corpus)
    folder = choose_folder(config)
    check_room(setup, against, folder)
    with open_run_folder(config, folder, setup.corpus.to_json()) as lock:
        note(f"run folder: {folder}")
        if page_follows(folder / "comparison.json"):
            note("the run is finished; nothing to do")
        else:
            # deferred, so that even a stop before the first step leaves a checkpoint
            with stop.deferred(), timed(folder, lock, "search"):
                search_stage(setup, folder, stop, time_after_search(setup))
            derived = derive_stage(folder, config.derive)
            wanted = [derived[name] for name in config.retrain.architectures]
            with timed(folder, lock, "halving"):
                contenders = halving_stage(config, folder, [*wanted, *against], stop)
            with timed(folder, lock, "retraining"):
                retrain_stage(config, [*wanted, *contenders, *against], folder, stop)
            with timed(folder, lock, "comparison and pictures"):
                compare_stage(setup, folder, [*derived, *(arch.name for arch in contenders)])
                draw_pictures(folder)
            write_page(folder)
            require_held(lock, folder)
        print_result(folder)


def time_after_search(setup: Setup) -> str:
    """For the progress bar; nothing for networks that one process may be unable to train."""
    return "" if setup.config.run.shard else f", then about {minutes_after_search(setup):.1f} min"


def search_only(config: Config, stop: StopFlag) -> None:
    """Train the supernet of every seed; leaves probabilities, not architectures."""
    config.check()
    setup = open_setup(config)
    folder = choose_folder(config)
    check_room(setup, [], folder)
    with open_run_folder(config, folder, setup.corpus.to_json()) as lock:
        note(f"run folder: {folder}")
        last = folder / ("probabilities.json" if config.search.seeds == 1 else "agreement.json")
        if not page_follows(last) or not all(map(search_finished, seed_folders(folder, config).values())):
            with stop.deferred():
                search_stage(setup, folder, stop)
            draw_pictures(folder)
            write_page(folder)
            require_held(lock, folder)
        print_verdicts(folder)


def retrain_only(config: Config, names: list[str], stop: StopFlag) -> None:
    """Train the named architectures, and those of `retrain.against`, side by side from scratch."""
    config.check()
    setup = open_setup(config)
    corpus, device = setup.corpus, setup.machine.device
    wanted = [resolve_architecture(name, config, corpus.vocab_size) for name in names]
    against = architectures_against(config, corpus.vocab_size, like=wanted[0])
    architectures = unique_by_name([*wanted, *against])
    for arch in architectures:
        check_fits(arch, config, corpus)
        check_rows(corpus, ["weights"], config.data, arch.model.memory_len, processes())
    workers = count_workers(config.run, len(architectures) * config.retrain.seeds)
    check_training_memory(architectures, config, device, workers)
    check_latency_memory(config, wanted[0].model, device)
    folder = choose_folder(config)
    homes = [
        folder / "retrain" / arch.name / f"seed-{seed}" for arch in architectures for seed in retrain_seeds(config)
    ]
    with open_run_folder(config, folder, corpus.to_json()) as lock:
        note(f"run folder: {folder}")
        if not all((home / "result.json").exists() for home in homes) or not page_follows(folder / "comparison.json"):
            retrain_stage(config, architectures, folder, stop)
            compare_stage(setup, folder, [arch.name for arch in wanted])
            draw_pictures(folder)
            write_page(folder)
            require_held(lock, folder)
        print_comparison(folder, [arch.name for arch in wanted])


def check_room(setup: Setup, architectures: list[Architecture], folder: Path) -> None:
    """SettingError when device, memory or disk is not there for the search, or for training one of these."""
    config, corpus, device = setup.config, setup.corpus, setup.machine.device
    check_latency_memory(config, setup.settings, device)
    check_search_memory(config, setup.settings, device, count_workers(config.run, config.search.seeds))
    check_rows(corpus, ("weights", "alphas"), config.data, config.model.memory_len, processes())
    for arch in architectures:
        check_rows(corpus, ["weights"], config.data, arch.model.memory_len, processes())
    if architectures:
        check_training_memory(architectures, config, device, 1)
    if not (folder / "config.yaml").exists():  # what is there of a run that goes on lies on the disk already
        check_disk(config, setup.settings, architectures, folder)


def page_follows(path: Path) -> bool:
    """Whether the page beside a stage's file was written after it, as the end of a command does; before is the live
    one."""
    page = path.with_name("report.html")
    return page.exists() and path.exists() and page.stat().st_mtime_ns >= path.stat().st_mtime_ns


@contextlib.contextmanager
def timed(folder: Path, lock: TextIO, stage: str) -> Iterator[None]:
    """Add the seconds of a stage to `timings.json`, whether it ends or is stopped; RunFailed where it ends in a folder
    that is not the run's."""
    started = time.perf_counter()
    try:
        yield
        require_held(lock, folder)
    finally:
        path = folder / "timings.json"
        seconds = read_timings(path)
        seconds[stage] = round(seconds.get(stage, 0.0) + time.perf_counter() - started, 3)
        write_json(path, seconds)
