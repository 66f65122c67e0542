"""What a run found, on standard output."""

from pathlib import Path

from derive.strict_json import read_json
from nas.config.run_config import load_run_config
from nas.results.choice import choose_best, from_search, sentence, table
from nas.results.run_readers import read_timings
from nas.stages.derive_stage import print_verdicts
from nas.tasks.table import task_of


def print_timings(folder: Path) -> None:
    """Each stage's share of the time."""
    seconds = read_timings(folder / "timings.json")
    total = sum(seconds.values())
    shares = ", ".join(f"{stage} {value / total:.0%}" for stage, value in seconds.items())
    print(f"time: {total / 60:.1f} minutes ({shares})")


def print_comparison(folder: Path, derived: list[str]) -> None:
    """The table, and who won."""
    rows = read_json(folder / "comparison.json")
    choice = choose_best(rows)
    print(table(rows, choice, task_of(load_run_config(folder).model.task)))
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
