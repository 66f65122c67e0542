"""The command line: `python search.py COMMAND ...`, `python -m nas COMMAND ...`, or `par-search COMMAND ...`."""

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from nas.machine.startup import loading, prepare, restart_prepared

if TYPE_CHECKING:  # loaded by those who need them, so that a command starts with what it uses
    from jsonargparse import Namespace

    from nas.config.options import Syntax
    from nas.config.sections import Config
    from nas.machine.stop import StopFlag

DRY = ("run", "search")  # commands that take --dry-run
ALL = ("run", "data", "model", "search", "derive", "retrain", "latency")


class Command(NamedTuple):
    """A command's help, sections, function, positional argument (name, help, whether several), formats, and whether it
    takes what `GenerateConfig` holds."""

    help: str
    sections: tuple[str, ...]
    call: Callable[["Config", "Namespace", "StopFlag"], None]
    positional: tuple[str, str, bool] | None = None
    formats: tuple[str, ...] = ()
    generates: bool = False

    def syntax(self, name: str) -> "Syntax":
        """What may stand behind the command's name."""
        from nas.config.options import GenerateConfig, Positional, Syntax

        return Syntax(
            name,
            self.help,
            self.sections,
            positional=Positional(*self.positional) if self.positional else None,
            formats=self.formats,
            own=GenerateConfig if self.generates else None,
        )


def run(config: "Config", arguments: "Namespace", stop: "StopFlag") -> None:
    with loading():
        from nas.stages.pipeline import run_everything

    run_everything(config, stop)


def search(config: "Config", arguments: "Namespace", stop: "StopFlag") -> None:
    with loading():
        from nas.stages.pipeline import search_only

    search_only(config, stop)


def derive(config: "Config", arguments: "Namespace", stop: "StopFlag") -> None:
    from nas.commands.commands import derive_run

    derive_run(Path(arguments.RUN), config.derive)


def plot(config: "Config", arguments: "Namespace", stop: "StopFlag") -> None:
    from nas.commands.commands import plot_run

    plot_run(Path(arguments.RUN))


def retrain(config: "Config", arguments: "Namespace", stop: "StopFlag") -> None:
    with loading():
        from nas.stages.pipeline import retrain_only

    retrain_only(config, arguments.ARCH, stop)


def evaluate(config: "Config", arguments: "Namespace", stop: "StopFlag") -> None:
    from nas.commands.trained import evaluate_checkpoint

    evaluate_checkpoint(Path(arguments.CHECKPOINT), config, config.data.split)


def generate(config: "Config", arguments: "Namespace", stop: "StopFlag") -> None:
    from nas.commands.trained import generate_text
    from nas.config.options import GenerateConfig

    wanted = GenerateConfig(arguments.prompt, arguments.tokens, arguments.temperature, arguments.top_k, arguments.seed)
    generate_text(Path(arguments.CHECKPOINT), config, wanted)


def latency(config: "Config", arguments: "Namespace", stop: "StopFlag") -> None:
    from nas.commands.commands import print_latency

    print_latency(config)


def show(config: "Config", arguments: "Namespace", stop: "StopFlag") -> None:
    from nas.commands.show import show_architecture

    show_architecture(arguments.ARCH, config, arguments.format)


def report(config: "Config", arguments: "Namespace", stop: "StopFlag") -> None:
    from nas.commands.commands import report_run

    report_run(Path(arguments.RUN))


def sweep(config: "Config", arguments: "Namespace", stop: "StopFlag") -> None:
    from nas.stages.sweep import print_sweep

    print_sweep(Path(arguments.RUN), config, stop)


def compare(config: "Config", arguments: "Namespace", stop: "StopFlag") -> None:
    from nas.page.compare_runs import write_comparison_page

    print(write_comparison_page([Path(run) for run in arguments.RUN], Path("comparison.html")))


def watch(config: "Config", arguments: "Namespace", stop: "StopFlag") -> None:
    from nas.page.watch import watch as follow

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


def usage(program: str) -> str:
    """The list of commands."""
    lines = [f"  {name:<10}{command.help}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            f"usage: {program} [COMMAND] [--config FILE.yaml] [--section.key VALUE ...]",
            "",
            "Differentiable search for Transformer layouts. Without a command: run.",
            "",
            *lines,
            "",
            f"{program} COMMAND --help lists the command's options; {program} --version prints the version.",
        ]
    )


def parse(name: str, arguments: list[str]) -> "tuple[Config, Namespace] | None":
    """(configuration, everything parsed) of a command; None where `--print_config` was answered."""
    from nas.config.options import parse_command, print_config
    from nas.config.ranges import check_ranges
    from nas.config.run_config import load_run_config, run_choices

    command = COMMANDS[name]
    syntax = command.syntax(name)
    config, parsed, wants_print = parse_command(syntax, arguments)
    if name in ("derive", "sweep"):  # what is not given is as in the run
        base = run_choices(Path(parsed.RUN)) if name == "derive" else load_run_config(Path(parsed.RUN))
        config, *_ = parse_command(syntax, arguments, base=base)
    check_ranges(config)
    if wants_print:
        if command.sections == ALL:
            config.check()
        print_config(config, name, command.sections)
        return None
    return config, parsed


def version() -> str:
    """Of the installed distribution, or that the clone is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("par-search")
    except PackageNotFoundError:
        return "of a clone that is not installed"


def command() -> None:
    """The command of this process: `main` in an environment made for it."""
    restart_prepared()
    main()


def main(arguments: list[str] | None = None) -> None:
    """Run one command, under torchrun in several processes, and leave with the contract's exit code."""
    prepare()
    from nas.machine.exit_codes import exit_codes, without_teardown
    from nas.machine.stop import StopFlag

    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - None where it was closed before the start
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    in_group = "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"
    with without_teardown() if in_group else contextlib.nullcontext(), exit_codes():
        stop = StopFlag().install()
        arguments = sys.argv[1:] if arguments is None else arguments
        if in_group:
            from nas.machine.distributed import work_together

            work_together(lambda: execute(arguments, stop), stop)
        else:
            execute(arguments, stop)


def execute(arguments: list[str], stop: "StopFlag") -> None:
    """Run one command."""
    from nas.config.options import program_name
    from supernet.errors import SettingError, UserError, did_you_mean

    if arguments and arguments[0] in ("-h", "--help"):
        print(usage(program_name()))
        return
    if arguments[:1] == ["--version"]:
        print(f"par-search {version()}")
        return
    if not arguments or arguments[0].startswith("-"):
        arguments = ["run", *arguments]
    name, *rest = arguments
    if name not in COMMANDS:
        raise UserError(f"{name}: unknown command{did_you_mean(name, COMMANDS)}")
    found = parse(name, ["--run.dry_run=true" if word == "--dry-run" else word for word in rest])
    if found is None:
        return
    config, namespace = found
    if not config.run.dry_run:
        COMMANDS[name].call(config, namespace, stop)
    elif name in DRY:
        from nas.stages.dry_run import dry_run

        dry_run(config, whole=name == "run")
    else:
        raise SettingError("run.dry_run", f"{' and '.join(DRY)} can be tried out, {name} cannot")
