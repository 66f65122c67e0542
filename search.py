"""The command line, parsing only: `python search.py COMMAND ...`, installed as `par-search`."""

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from nas.startup import loading, prepare, restart_prepared

DRY = ("run", "search")  # commands that take --dry-run
ALL = ("run", "data", "model", "search", "derive", "retrain", "latency")


class Command(NamedTuple):
    """A command's help, sections, function, positional argument (name, help, whether several), formats, and whether it
    takes what `GenerateConfig` holds.
    """

    help: str
    sections: tuple[str, ...]
    call: Callable
    positional: tuple[str, str, bool] | None = None
    formats: tuple[str, ...] = ()
    generates: bool = False


def run(config, arguments, stop) -> None:
    with loading():
        from nas.pipeline import run_everything

    run_everything(config, stop)


def search(config, arguments, stop) -> None:
    with loading():
        from nas.pipeline import search_only

    search_only(config, stop)


def derive(config, arguments, stop) -> None:
    from nas.commands import derive_run

    derive_run(Path(arguments.RUN), config.derive)


def plot(config, arguments, stop) -> None:
    from nas.commands import plot_run

    plot_run(Path(arguments.RUN))


def retrain(config, arguments, stop) -> None:
    with loading():
        from nas.pipeline import retrain_only

    retrain_only(config, arguments.ARCH, stop)


def evaluate(config, arguments, stop) -> None:
    from nas.commands import evaluate_checkpoint

    evaluate_checkpoint(Path(arguments.CHECKPOINT), config, config.data.split)


def generate(config, arguments, stop) -> None:
    from nas.commands import generate_text
    from nas.options import GenerateConfig

    wanted = GenerateConfig(arguments.prompt, arguments.tokens, arguments.temperature, arguments.top_k, arguments.seed)
    generate_text(Path(arguments.CHECKPOINT), config, wanted)


def latency(config, arguments, stop) -> None:
    from nas.commands import print_latency

    print_latency(config)


def show(config, arguments, stop) -> None:
    from nas.show import show_architecture

    show_architecture(arguments.ARCH, config, arguments.format)


def report(config, arguments, stop) -> None:
    from nas.commands import report_run

    report_run(Path(arguments.RUN))


def sweep(config, arguments, stop) -> None:
    from nas.sweep import print_sweep

    print_sweep(Path(arguments.RUN), config, stop)


def compare(config, arguments, stop) -> None:
    from nas.compare_runs import write_comparison_page

    print(write_comparison_page([Path(run) for run in arguments.RUN], Path("comparison.html")))


def watch(config, arguments, stop) -> None:
    from nas.watch import watch as follow

    follow(Path(arguments.RUN))


A_RUN = ("RUN", "run folder", False)
A_CHECKPOINT = ("CHECKPOINT", "model.safetensors of a retraining, or its folder", False)
ARCH_HELP = "architecture file, preset, or pattern such as (sfff)x6(f)x8"
COMMANDS = {
    "run": Command("search, derive, plot, retrain the candidates, report", ALL, run),
    "search": Command("train the supernet only", ALL, search),
    "derive": Command("probabilities -> architecture files", ("derive",), derive, A_RUN),
    "plot": Command("redraw every picture from the run's files", (), plot, A_RUN),
    "retrain": Command("train architectures from scratch, side by side", ALL, retrain, ("ARCH", ARCH_HELP, True)),
    "evaluate": Command("loss of a retrained model on a split", ("run", "data"), evaluate, A_CHECKPOINT),
    "generate": Command(
        "text that a retrained model goes on with", ("run", "data"), generate, A_CHECKPOINT, generates=True
    ),
    "latency": Command(
        "measure every candidate block on this device", ("run", "data", "model", "search", "latency"), latency
    ),
    "show": Command(
        "print an architecture: pattern, parameters, FLOPs, latency",
        ("model", "derive"),
        show,
        ("ARCH", ARCH_HELP, False),
        ("text", "table", "picture", "json", "pattern", "tuple"),
    ),
    "report": Command("rebuild report.html from the run's files", (), report, A_RUN),
    "sweep": Command(
        "rule-built layouts over ratio and cut, trained beside the baseline", ("sweep", "retrain"), sweep, A_RUN
    ),
    "compare": Command("several runs on one page, comparison.html", (), compare, ("RUN", "run folders", True)),
    "watch": Command("follow a running search in the terminal", (), watch, A_RUN),
}


def usage() -> str:
    """The list of commands."""
    lines = [f"  {name:<10}{command.help}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "usage: search.py [COMMAND] [--config FILE.yaml] [--section.key VALUE ...]",
            "",
            "Differentiable search for Transformer layouts. Without a command: run.",
            "",
            *lines,
            "",
            "search.py COMMAND --help lists the command's options.",
        ]
    )


def parse(name: str, arguments: list[str]):
    """(configuration, everything parsed) of a command; None for both where `--print_config` was answered."""
    from nas.config import load_run_config
    from nas.options import GenerateConfig, Positional, parse_command, print_config, run_choices
    from nas.ranges import check_ranges

    command = COMMANDS[name]
    positional = Positional(*command.positional) if command.positional else None
    config, parsed, wants_print = parse_command(
        name,
        command.help,
        command.sections,
        arguments,
        positional=positional,
        formats=command.formats,
        own=GenerateConfig if command.generates else None,
    )
    if name in ("derive", "sweep"):  # what is not given is as in the run
        base = run_choices(Path(parsed.RUN)) if name == "derive" else load_run_config(Path(parsed.RUN))
        config, *_ = parse_command(name, command.help, command.sections, arguments, positional=positional, base=base)
    check_ranges(config)
    if wants_print:
        if command.sections == ALL:
            config.check()
        print_config(config, name, command.sections)
        return None, None
    return config, parsed


def command() -> None:
    """The command of this process: `main` in an environment made for it."""
    restart_prepared()
    main()


def main(arguments: list[str] | None = None) -> None:
    """Run one command, under torchrun in several processes, and leave with the contract's exit code."""
    prepare()
    from nas.exit_codes import exit_codes, without_teardown
    from nas.stop import StopFlag

    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - None where it was closed before the start
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    in_group = "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"
    with without_teardown() if in_group else contextlib.nullcontext(), exit_codes():
        stop = StopFlag().install()
        arguments = sys.argv[1:] if arguments is None else arguments
        if in_group:
            from nas.distributed import work_together

            work_together(lambda: execute(arguments, stop), stop)
        else:
            execute(arguments, stop)


def execute(arguments: list[str], stop) -> None:
    """Run one command."""
    from supernet.errors import SettingError, UserError, did_you_mean

    if arguments and arguments[0] in ("-h", "--help"):
        print(usage())
        return
    if not arguments or arguments[0].startswith("-"):
        arguments = ["run", *arguments]
    name, *rest = arguments
    if name not in COMMANDS:
        raise UserError(f"{name}: unknown command{did_you_mean(name, COMMANDS)}")
    config, namespace = parse(name, ["--run.dry_run=true" if word == "--dry-run" else word for word in rest])
    if config is not None and config.run.dry_run:
        if name not in DRY:
            raise SettingError("run.dry_run", f"{' and '.join(DRY)} can be tried out, {name} cannot")
        from nas.dry_run import dry_run

        dry_run(config, whole=name == "run")
    elif config is not None:
        COMMANDS[name].call(config, namespace, stop)


if __name__ == "__main__":
    command()
