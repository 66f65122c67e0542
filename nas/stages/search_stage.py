"""The search as a stage: every seed, from measured latencies to verdicts."""

from pathlib import Path

from derive.strict_json import read_json, write_atomic, write_json
from nas.config.sections import Config
from nas.costs.latency import measure_candidates
from nas.machine.process import count_workers, run_jobs
from nas.machine.stop import StopFlag
from nas.searching.agreement import write_agreement
from nas.stages.jobs import search_job
from nas.stages.preflight import check_derivable
from nas.training.setup import Setup


def seed_folders(folder: Path, config: Config) -> dict[int, Path]:
    """Where each search seed's files lie: the run folder itself for one seed, `seed-K/` for several."""
    seeds = range(config.run.seed, config.run.seed + config.search.seeds)
    return {seed: folder if config.search.seeds == 1 else folder / f"seed-{seed}" for seed in seeds}


def search_stage(setup: Setup, folder: Path, stop: StopFlag, later: str = "") -> None:
    """Measure the candidates' latency once, then search with every seed that is not finished."""
    config = setup.config
    if not (folder / "latency.json").exists():
        measured = measure_candidates(config, setup.settings, setup.machine)
        check_derivable(config, setup.settings, measured)  # a budget of measured time can only be checked now
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
