"""What worker processes do. Apart from the pipeline, so that a worker starts without the libraries of pictures and
pages."""

import dataclasses
from pathlib import Path

from derive import Architecture
from derive.strict_json import read_json
from nas.config.sections import Config
from nas.costs.costs_table import build_costs
from nas.machine.distributed import joined, share_files
from nas.machine.stop import StopFlag
from nas.searching.search_loop import run_search
from nas.training.setup import Setup, open_setup
from nas.training.train import train_architecture, train_to_rung


def search_job(config: Config, home: Path, seed: int, later: str = "", *, slot: int, stop: StopFlag) -> None:
    """One seed's search, in this process; of several seeds each gets its own pictures and page.

    `later` is for the progress bar: what comes after the search.
    """
    setup = open_joined(config)
    share_files(setup.machine, home, ["latency.json"])
    costs = build_costs(config, setup.settings, read_json(home / "latency.json"))
    drawers = {"picture": draw_picture, "page": write_page}
    run_search(setup, costs, home, seed, stop=stop, slot=slot, later=later, drawers=drawers)
    if config.search.seeds > 1 and setup.machine.rank == 0:
        draw_pictures(home)
        write_page(home)


def rung_job(
    config: Config, arch: Architecture, home: Path, seed: int, step: int, *, slot: int, stop: StopFlag
) -> None:
    """The first `step` steps of one training, in this process."""
    train_to_rung(arch, open_joined(config), home, seed, step=step, slot=slot, stop=stop)


def retrain_job(config: Config, arch: Architecture, home: Path, seed: int, *, slot: int, stop: StopFlag) -> None:
    """One training, in this process."""
    train_architecture(arch, open_joined(config), home, seed, slot=slot, stop=stop)


def open_joined(config: Config) -> Setup:
    """The setup of a job that the processes of torchrun, where there are any, do together."""
    setup = open_setup(config)
    return dataclasses.replace(setup, machine=joined(setup.machine))


# The libraries of pictures and pages take a second to import, which no first step should wait for.


def draw_picture(folder: Path) -> None:
    """The picture of a running search."""
    from nas.pictures.plots import draw_live

    draw_live(folder)


def draw_pictures(folder: Path) -> None:
    """Every picture of a run."""
    from nas.pictures.plots import draw_all

    draw_all(folder)


def write_page(folder: Path) -> None:
    """The run's page."""
    from nas.page.report import write_report

    write_report(folder)
