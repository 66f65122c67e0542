"""The stages in order; each reads the files of the one before, so each can be run alone and a stopped run goes on."""

import contextlib
import dataclasses
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from derive import Architecture, build
from derive.strict_json import read_json, write_atomic, write_json
from nas.agreement import write_agreement
from nas.architectures import architectures_against, check_fits, resolve_architecture, unique_by_name
from nas.batches import check_rows
from nas.compare import choose_best, sentence, table, write_comparison
from nas.config import Config
from nas.data import Corpus, load_corpus
from nas.derive_stage import derive_stage, print_verdicts
from nas.distributed import processes
from nas.estimate import minutes_after_search
from nas.halving import halving_stage
from nas.jobs import retrain_job, search_job
from nas.latency import measure_candidates
from nas.machine import Machine, choose_machine
from nas.memory import check_disk, check_latency_memory, check_search_memory, check_training_memory
from nas.preflight import check_derivable, check_run, from_search
from nas.process import count_workers, run_jobs
from nas.run_folder import choose_folder, open_run_folder, require_held
from nas.run_readers import read_timings
from nas.stop import StopFlag
from nas.train import evaluate, load_weights


def run_everything(config: Config, stop: StopFlag) -> None:
    """Search, derive, plot, retrain the candidates, compare, report."""
    config.check()
    corpus = load_corpus(config.data)
    against = check_run(config, corpus)
    folder = choose_folder(config)
    check_room(config, corpus, against, folder)
    with open_run_folder(config, folder, corpus.to_json()) as lock:
        note(f"run folder: {folder}")
        if page_follows(folder / "comparison.json"):
            note("the run is finished; nothing to do")
        else:
            # deferred, so that even a stop before the first step leaves a checkpoint
            with stop.deferred(), timed(folder, lock, "search"):
                search_stage(config, corpus, folder, stop, time_after_search(config, corpus))
            derived = derive_stage(folder, config.derive)
            wanted = [derived[name] for name in config.retrain.architectures]
            with timed(folder, lock, "halving"):
                contenders = halving_stage(config, folder, [*wanted, *against], stop)
            with timed(folder, lock, "retraining"):
                retrain_stage(config, [*wanted, *contenders, *against], folder, stop)
            with timed(folder, lock, "comparison and pictures"):
                compare_stage(config, corpus, folder, [*derived, *(arch.name for arch in contenders)])
                draw_pictures(folder)
            write_page(folder)
            require_held(lock, folder)
        print_result(folder)


def draw_pictures(folder: Path) -> None:
    """Every picture of the run; the libraries for it take a second to import, which no first step should wait for."""
    from nas.plots import draw_all

    draw_all(folder)


def write_page(folder: Path) -> None:
    """The run's page."""
    from nas.report import write_report

    write_report(folder)


def time_after_search(config: Config, corpus: Corpus) -> str:
    """For the progress bar; nothing for networks that one process may be unable to train."""
    if config.run.shard:
        return ""
    return f", then about {minutes_after_search(config, corpus, choose_machine(config.run)):.1f} min"


def search_only(config: Config, stop: StopFlag) -> None:
    """Train the supernet of every seed; leaves probabilities, not architectures."""
    config.check()
    corpus = load_corpus(config.data)
    folder = choose_folder(config)
    check_room(config, corpus, [], folder)
    with open_run_folder(config, folder, corpus.to_json()) as lock:
        note(f"run folder: {folder}")
        last = folder / ("probabilities.json" if config.search.seeds == 1 else "agreement.json")
        if not page_follows(last) or not all(map(search_finished, seed_folders(folder, config).values())):
            with stop.deferred():
                search_stage(config, corpus, folder, stop)
            draw_pictures(folder)
            write_page(folder)
            require_held(lock, folder)
        print_verdicts(folder)


def retrain_only(config: Config, names: list[str], stop: StopFlag) -> None:
    """Train the named architectures, and those of `retrain.against`, side by side from scratch."""
    config.check()
    corpus = load_corpus(config.data)
    choose_machine(config.run)
    wanted = [resolve_architecture(name, config, corpus.vocab_size) for name in names]
    against = architectures_against(config, corpus.vocab_size, like=wanted[0])
    architectures = unique_by_name([*wanted, *against])
    for arch in architectures:
        check_fits(arch, config, corpus)
        check_rows(corpus, ["weights"], config.data, arch.model.memory_len, processes())
    workers = count_workers(config.run, len(architectures) * config.retrain.seeds)
    check_training_memory(architectures, config, choose_machine(config.run).device, workers)
    check_latency_memory(config, wanted[0].model, choose_machine(config.run).device)
    folder = choose_folder(config)
    homes = [
        folder / "retrain" / arch.name / f"seed-{seed}" for arch in architectures for seed in retrain_seeds(config)
    ]
    with open_run_folder(config, folder, corpus.to_json()) as lock:
        note(f"run folder: {folder}")
        if not all((home / "result.json").exists() for home in homes) or not page_follows(folder / "comparison.json"):
            retrain_stage(config, architectures, folder, stop)
            compare_stage(config, corpus, folder, [arch.name for arch in wanted])
            draw_pictures(folder)
            write_page(folder)
            require_held(lock, folder)
        print_comparison(folder, [arch.name for arch in wanted])


def check_room(config: Config, corpus: Corpus, architectures: list[Architecture], folder: Path) -> None:
    """SettingError when device, memory or disk is not there for the search, or for training one of these."""
    device = choose_machine(config.run).device
    settings = config.model.settings(corpus.vocab_size, config.data.seq_len)
    check_latency_memory(config, settings, device)
    check_search_memory(config, settings, device, count_workers(config.run, config.search.seeds))
    check_rows(corpus, ("weights", "alphas"), config.data, config.model.memory_len, processes())
    for arch in architectures:
        check_rows(corpus, ["weights"], config.data, arch.model.memory_len, processes())
    if architectures:
        check_training_memory(architectures, config, device, 1)
    if not (folder / "config.yaml").exists():  # what is there of a run that goes on lies on the disk already
        check_disk(config, settings, architectures, folder)


def page_follows(path: Path) -> bool:
    """Whether the page beside a stage's file was written after it, as the end of a command does; before is the live
    one."""
    page = path.with_name("report.html")
    return page.exists() and path.exists() and page.stat().st_mtime_ns >= path.stat().st_mtime_ns


def seed_folders(folder: Path, config: Config) -> dict[int, Path]:
    """Where each search seed's files lie: the run folder itself for one seed, `seed-K/` for several."""
    seeds = range(config.run.seed, config.run.seed + config.search.seeds)
    return {seed: folder if config.search.seeds == 1 else folder / f"seed-{seed}" for seed in seeds}


def search_stage(config: Config, corpus: Corpus, folder: Path, stop: StopFlag, later: str = "") -> None:
    """Measure the candidates' latency once, then search with every seed that is not finished."""
    if not (folder / "latency.json").exists():
        machine = choose_machine(config.run)
        settings = config.model.settings(corpus.vocab_size, config.data.seq_len)
        measured = measure_candidates(config, settings, machine)
        check_derivable(config, settings, measured)  # a budget of measured time can only be checked now
        write_json(folder / "latency.json", measured)
    homes = seed_folders(folder, config)
    for home in homes.values():
        if home != folder:
            home.mkdir(exist_ok=True)
            for name in ("config.yaml", "data.json", "latency.json"):
                write_atomic(home / name, (folder / name).read_bytes())
    jobs = [
        (config, home, seed, later)
        for seed, home in homes.items()
        if not (search_finished(home) and (home == folder or page_is_current(home)))
    ]
    # workers by all jobs, not by those left: how many threads each has decides the last bits of its sums
    run_jobs(search_job, jobs, count_workers(config.run, len(homes)), stop)
    if config.search.seeds > 1:
        write_agreement(folder, list(homes.values()))


def search_finished(home: Path) -> bool:
    """Whether a search has written its verdict."""
    path = home / "probabilities.json"
    verdict = read_json(path).get("verdict") if path.exists() else None
    return isinstance(verdict, dict) and "figures" in verdict


def page_is_current(home: Path) -> bool:
    """Whether the page was written after the last probabilities."""
    page, source = home / "report.html", home / "probabilities.json"
    return page.exists() and page.stat().st_mtime_ns >= source.stat().st_mtime_ns


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
    left = [job for job in jobs if not (job[2] / "result.json").exists()]
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


def compare_stage(config: Config, corpus: Corpus, folder: Path, derived: list[str]) -> None:
    """Write the comparison and, for the layout to take, `architectures/best.json`."""
    seeds = list(retrain_seeds(config))
    homes = [home for home in sorted((folder / "retrain").iterdir()) if home.is_dir()]
    names = [home.name for home in homes if all((home / f"seed-{seed}" / "result.json").exists() for seed in seeds)]
    order = {name: position for position, name in enumerate(derived)}
    names.sort(key=lambda name: (order.get(name, len(order)), name))
    machine = choose_machine(config.run)
    rows = write_comparison(folder, names, seeds, config, corpus, machine)
    choice = choose_best(rows)
    arch = Architecture.load(folder / "retrain" / choice.name / f"seed-{seeds[0]}" / "architecture.json")
    latency = next(row["latency_ms"] for row in rows if row["name"] == choice.name)
    arch = arch if arch.cost else arch.with_cost(config.data.seq_len)
    dataclasses.replace(arch, cost={**arch.cost, "latency_ms": latency}).save(folder / "architectures" / "best.json")
    rival = min((name for name in names if name not in (*derived, choice.name)), key=choice.means.get, default=None)
    tested = [name for name in (choice.name, rival) if name is not None]
    write_json(folder / "test.json", test_losses(folder, tested, seeds, config, corpus, machine))


def test_losses(
    folder: Path, names: list[str], seeds: list[int], config: Config, corpus: Corpus, machine: Machine
) -> dict[str, float]:
    """Mean loss over the seeds on the `test` part, which nothing before has read: of the layout to take and its rival.

    The comparison's lowest loss is lowest partly by luck, since the choice was made on it; this one is not.
    """
    losses: dict[str, float] = {}
    for name in names:
        found = []
        for seed in seeds:
            home = folder / "retrain" / name / f"seed-{seed}"
            model = build(Architecture.load(home / "architecture.json"))
            load_weights(model, home / "model.safetensors")
            found.append(
                evaluate(
                    model.to(machine.device), corpus, "test", config, machine, limit=config.retrain.final_tokens
                ).loss
            )
        losses[name] = sum(found) / len(found)
    return losses


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


def print_timings(folder: Path) -> None:
    """Each stage's share of the time."""
    seconds = read_timings(folder / "timings.json")
    total = sum(seconds.values())
    shares = ", ".join(f"{stage} {value / total:.0%}" for stage, value in seconds.items())
    print(f"time: {total / 60:.1f} minutes ({shares})")


def note(message: str) -> None:
    """A line for the person, on standard error."""
    print(message, file=sys.stderr)


def print_comparison(folder: Path, derived: list[str]) -> None:
    """The table, and who won."""
    rows = read_json(folder / "comparison.json")
    choice = choose_best(rows)
    print(table(rows, choice))
    print(sentence(rows, choice, derived))
    tested = read_json(folder / "test.json")
    print(
        "test text, read once: " + ", ".join(f"{name} {loss:.4f}" for name, loss in tested.items() if loss is not None)
    )


def print_result(folder: Path) -> None:
    """What a finished run found."""
    print_verdicts(folder)
    print_comparison(folder, [row["name"] for row in read_json(folder / "comparison.json") if from_search(row["name"])])
    print_timings(folder)
    print(f"report: {folder / 'report.html'}")
