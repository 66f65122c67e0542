"""The small commands: each reads a folder or file and prints or redraws."""

from pathlib import Path

from nas.config.sections import Config, DeriveConfig
from nas.tasks.table import task_of
from supernet.errors import SettingError


def derive_run(folder: Path, choices: DeriveConfig) -> None:
    """Write the architectures of a finished search."""
    from nas.stages.derive_stage import derive_stage, print_derived

    print_derived(derive_stage(folder, choices))


def plot_run(folder: Path) -> None:
    """Redraw every picture of a run."""
    from nas.pictures.plots import draw_all

    for path in draw_all(folder):
        print(path)


def report_run(folder: Path) -> None:
    """Rebuild `report.html`."""
    from nas.page.report import write_report

    print(write_report(folder))


def print_latency(config: Config) -> None:
    """Print the latency table; write `latency.json` where run.dir is given."""
    from derive.strict_json import write_json
    from nas.costs.latency import measure_candidates
    from nas.costs.memory import check_latency_memory
    from nas.data.corpus import load_corpus
    from nas.machine.device import choose_machine

    config.check()
    task_of(config.model.task)
    folder = None if config.run.dir is None else Path(config.run.dir)
    if folder is not None:
        _prepare(folder)
    machine = choose_machine(config.run)
    settings = config.model.settings(load_corpus(config.data).vocab_size, config.data.seq_len)
    check_latency_memory(config, settings, machine.device)
    table, training = (measure_candidates(config, settings, machine, training=backward) for backward in (False, True))
    print(
        f"{table['device']}, {table['mode']}, {table['dtype']}, batch {table['batch']}, "
        f"{table['lengths']['seq_len']} tokens"
    )
    rows = {label: (row, training["candidates"][label]) for label, row in table["candidates"].items()}
    rows["(embedding, norm, head)"] = table["surroundings"], training["surroundings"]
    width = max(map(len, rows))
    print(f"{'':<{width}}  {'forward':>12}  {'spread':>9}  {'with backward':>13}  {'spread':>9}")
    for label, both in rows.items():
        print(
            f"{label:<{width}}  " + "  ".join(f"{row['median_ms']:10.4f} ms  {row['spread_ms']:9.4f}" for row in both)
        )
    if folder is not None:
        write_json(
            folder / "latency.json",
            {**table, "training": {key: training[key] for key in ("candidates", "surroundings")}},
        )


def _prepare(folder: Path) -> None:
    """Make the folder that a table goes into; SettingError where it cannot be written or holds a run, which has its
    own."""
    if (folder / "config.yaml").exists():
        raise SettingError("run.dir", f"{folder} holds a run with a table of its own; give another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingError("run.dir", f"cannot write to {folder}: {error.strerror or error}") from None
