"""What worker processes do. Apart from the pipeline, so that a worker starts without the libraries of pictures and
pages."""

from pathlib import Path

from derive import Architecture
from derive.strict_json import read_json
from nas.config import Config
from nas.costs_table import build_costs
from nas.data import load_corpus
from nas.distributed import joined, share_files
from nas.machine import choose_machine
from nas.search_loop import run_search
from nas.stop import StopFlag
from nas.train import train_architecture, train_to_rung


def search_job(config: Config, home: Path, seed: int, later: str = "", *, slot: int, stop: StopFlag) -> None:
    """One seed's search, in this process; of several seeds each gets its own pictures and page.

    `later` is for the progress bar: what comes after the search.
    """
    machine = joined(choose_machine(config.run))
    share_files(machine, home, ["latency.json"])
    corpus = load_corpus(config.data)
    settings = config.model.settings(corpus.vocab_size, config.data.seq_len)
    costs = build_costs(config, settings, read_json(home / "latency.json"))
    run_search(config, corpus, costs, home, seed, machine, stop, slot, later)
    if config.search.seeds > 1 and machine.rank == 0:
        from nas.plots import draw_all
        from nas.report import write_report

        draw_all(home)
        write_report(home)


def rung_job(
    config: Config, arch: Architecture, home: Path, seed: int, step: int, *, slot: int, stop: StopFlag
) -> None:
    """The first `step` steps of one training, in this process."""
    train_to_rung(arch, config, home, seed, step, machine=joined(choose_machine(config.run)), slot=slot, stop=stop)


def retrain_job(config: Config, arch: Architecture, home: Path, seed: int, *, slot: int, stop: StopFlag) -> None:
    """One training, in this process."""
    train_architecture(arch, config, home, seed, machine=joined(choose_machine(config.run)), slot=slot, stop=stop)
