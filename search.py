"""The command line, parsing only: `python search.py COMMAND ...`, installed as `par-search`."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

ALL = ("run", "data", "model", "search", "derive", "retrain")


class Command(NamedTuple):
    """A command's help, its positional arguments ("" none, "NAME" one, "NAME..." one or more), sections and function."""

    help: str
    positional: str
    sections: tuple[str, ...]
    call: Callable


def run(config, arguments, stop) -> None:
    from nas.pipeline import run_everything

    run_everything(config, stop)


def search(config, arguments, stop) -> None:
    from nas.pipeline import search_only

    search_only(config, stop)


def derive(config, arguments, stop) -> None:
    from nas.commands import derive_run

    derive_run(Path(arguments.RUN), config.derive)


def plot(config, arguments, stop) -> None:
    from nas.commands import plot_run

    plot_run(Path(arguments.RUN))


def retrain(config, arguments, stop) -> None:
    from nas.pipeline import retrain_only

    retrain_only(config, arguments.ARCH, stop)


def evaluate(config, arguments, stop) -> None:
    from nas.commands import evaluate_checkpoint

    evaluate_checkpoint(Path(arguments.CHECKPOINT), config, config.data.split)


def latency(config, arguments, stop) -> None:
    from nas.commands import print_latency

    print_latency(config)


def show(config, arguments, stop) -> None:
    from nas.show import show_architecture

    show_architecture(arguments.ARCH, config, arguments.format)


def report(config, arguments, stop) -> None:
    from nas.commands import report_run

    report_run(Path(arguments.RUN))


COMMANDS = {
    "run": Command("search, derive, plot, retrain the candidates, report", "", ALL, run),
    "search": Command("train the supernet only", "", ALL, search),
    "derive": Command("probabilities -> architecture files", "RUN", ("derive",), derive),
    "plot": Command("redraw every picture from the run's files", "RUN", (), plot),
    "retrain": Command("train architectures from scratch, side by side", "ARCH...", ALL, retrain),
    "evaluate": Command("loss of a retrained model on a split", "CHECKPOINT", ALL, evaluate),
    "latency": Command("measure every candidate block on this device", "", ALL, latency),
    "show": Command("print an architecture: pattern, parameters, FLOPs, latency", "ARCH", ("model", "derive"), show),
    "report": Command("rebuild report.html from the run's files", "RUN", (), report),
}


def usage() -> str:
    """The list of commands."""
    lines = [f"  {name:<10}{command.help}" for name, command in COMMANDS.items()]
    return "\n".join([
        "usage: search.py [COMMAND] [--config FILE.yaml] [--section.key VALUE ...]", "",
        "Differentiable search for Transformer layouts. Without a command: run.", "", *lines, "",
        "search.py COMMAND --help lists the command's options.",
    ])  # fmt: skip


def parse(name: str, arguments: list[str]):
    """(config, namespace) of a command; UserError for a mistake."""
    from nas.options import build_command_parser, config_from_namespace, parse_arguments

    command = COMMANDS[name]
    parser = build_command_parser(name, command.help, command.sections, command.positional)
    namespace = parse_arguments(parser, arguments)
    return config_from_namespace(namespace), namespace


def main(arguments: list[str] | None = None) -> None:
    """Run one command and leave with the contract's exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and arguments[0] in ("-h", "--help"):
        print(usage())
        return
    if not arguments or arguments[0].startswith("-"):
        arguments = ["run", *arguments]
    name, *rest = arguments
    from nas.exit_codes import exit_codes
    from supernet.errors import UserError, did_you_mean

    with exit_codes():
        if name not in COMMANDS:
            raise UserError(f"{name}: unknown command{did_you_mean(name, COMMANDS)}")
        from nas.stop import StopFlag

        stop = StopFlag().install()
        config, namespace = parse(name, rest)
        COMMANDS[name].call(config, namespace, stop)


if __name__ == "__main__":
    main()
