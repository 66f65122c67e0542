"""The battery's tables of trained layouts: rows, how they are appended and read, and what stands where in them. Needs
no torch.

`battery/ID.csv` has a row a training, `battery/ID.json` beside it what was trained on what. *Truth* is the mean
held-out loss of a layout's seeds; a search sees only `rung_30`, `rung_60` and `rung_100`, the losses on the `alphas`
part after these shares of the steps, in per cent.
"""

import csv
import fcntl
import io
import itertools
import math
import os
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from battery_layouts import SLACK
from battery_settings import Setting, find_setting

TABLES = Path(__file__).with_name("battery")
RUNGS = (30, 60, 100)  # per cent of the steps
ORIGINS = ("interleaved", "random", "above", "local", "asked")


@dataclass(frozen=True)
class Row:
    """One training. Losses are nats a byte, infinite where it failed; `seconds` are of CPU: the steps and the rungs,
    which a search would pay for, without the final evaluation.
    """

    pattern: str
    cost: float
    origin: str
    seed: int
    loss: float
    standard_error: float
    rung_30: float
    rung_60: float
    rung_100: float
    seconds: float


COLUMNS = tuple(field.name for field in fields(Row))
FORMS = {"cost": "{:.6f}", "seconds": "{:.2f}"}


def append_row(path: Path, row: Row) -> None:
    """Add a row as one write that is on the disk when this returns; half a row that a killed process left is cut
    first."""
    line = io.StringIO()
    values = [getattr(row, name) for name in COLUMNS]
    shown = [
        FORMS.get(name, "{:.6f}").format(value) if isinstance(value, float) else value
        for name, value in zip(COLUMNS, values, strict=True)
    ]
    csv.writer(line, lineterminator="\n").writerow(shown)
    with path.open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        content = file.read()
        whole = content.rfind(b"\n") + 1
        file.truncate(whole)
        file.write(("" if whole else ",".join(COLUMNS) + "\n").encode() + line.getvalue().encode())
        file.flush()
        os.fsync(file.fileno())


def read_rows(path: Path) -> list[Row]:
    """The whole rows of a table, the first of each layout and seed, in the order trained; none where there is no
    file."""
    if not path.exists():
        return []
    text = path.read_text(encoding="utf-8")
    found: dict[tuple[str, int], Row] = {}
    for values in csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1])):
        row = Row(**{field.name: field.type(values[field.name]) for field in fields(Row)})
        found.setdefault((row.pattern, row.seed), row)
    return list(found.values())


class Standing(NamedTuple):
    """Where a layout stands within the budget: nats above the best, and per cent of the table's that are better."""

    regret: float
    percentile: float


@dataclass(frozen=True)
class Truth:
    """A setting and its layouts that have been trained with all seeds: pattern -> rows in the order of seeds."""

    setting: Setting
    rows: dict[str, list[Row]]

    @cached_property
    def losses(self) -> dict[str, float]:
        """Mean loss of each layout."""
        return {pattern: statistics.fmean(row.loss for row in rows) for pattern, rows in self.rows.items()}

    @cached_property
    def noise(self) -> float:
        """Standard deviation of a training's loss between seeds, pooled over layouts, without failed ones."""
        found = [[row.loss for row in rows] for rows in self.rows.values()]
        spread = [statistics.variance(each) for each in found if len(each) > 1 and all(map(math.isfinite, each))]
        return math.sqrt(statistics.fmean(spread)) if spread else math.nan

    def origin(self, *names: str) -> list[str]:
        """The layouts that came to the table in one of these ways."""
        return [pattern for pattern, rows in self.rows.items() if rows[0].origin in names]

    @cached_property
    def within(self) -> list[str]:
        """The layouts within the budget, best first."""
        budget = self.setting.budget + SLACK
        return sorted((p for p, rows in self.rows.items() if rows[0].cost <= budget + 1e-6), key=self.losses.get)

    @cached_property
    def drawn(self) -> list[str]:
        """The random layouts within the budget, in the order drawn."""
        return self.origin("random")

    @property
    def best(self) -> float:
        """The lowest mean loss within the budget; it is the best of many noisy ones, so a little too low."""
        return self.losses[self.within[0]]


def load_truth(name: str | Setting, folder: Path = TABLES) -> Truth:
    """What has been trained of a setting so far; layouts that lack a seed are left out."""
    setting = find_setting(name) if isinstance(name, str) else name
    found: dict[str, list[Row]] = {}
    for row in read_rows(folder / f"{setting.id}.csv"):
        found.setdefault(row.pattern, []).append(row)
    whole = {pattern: rows for pattern, rows in found.items() if len(rows) >= setting.seeds}
    return Truth(setting, {pattern: sorted(rows, key=lambda row: row.seed) for pattern, rows in whole.items()})


def standing(pattern: str, truth: Truth) -> Standing | None:
    """Where a layout stands among those in the table within the budget; None where it has not been trained.

    A layout above the budget has regret infinity and percentile 100, as it is no answer.
    """
    network = truth.setting.space.network(pattern)
    if network not in truth.losses:
        return None
    return standing_of(truth.losses[network], truth) if network in truth.within else Standing(math.inf, 100.0)


def standing_of(loss: float, truth: Truth) -> Standing:
    """The same for the mean loss of a layout within the budget."""
    better = sum(truth.losses[other] < loss for other in truth.within)
    return Standing(loss - truth.best, 100 * better / len(truth.within))


def random_search(truth: Truth, count: int) -> Standing | None:
    """What to expect of `count` different random layouts within the budget, each trained once, of which the one with
    the lowest `rung_100` is taken; None where there are not so many in the table.

    Exact: the mean over all choices of `count` of the table's random layouts, and over the seeds.
    """
    if not 1 <= count <= len(truth.drawn):
        return None
    chances = chances_of_first(len(truth.drawn), count)
    found = []
    for seed in range(truth.setting.seeds):
        ranked = sorted(truth.drawn, key=lambda pattern: truth.rows[pattern][seed].rung_100)
        places = [standing(pattern, truth) for pattern in ranked]
        found.append([sum(map(math.prod, zip(chances, values, strict=True))) for values in zip(*places, strict=True)])
    return Standing(*(statistics.fmean(values) for values in zip(*found, strict=True)))


def chances_of_first(size: int, count: int) -> list[float]:
    """The chance of each of `size` ranked things to be the first among `count` of them drawn without repetition."""
    return [math.comb(size - 1 - rank, count - 1) / math.comb(size, count) for rank in range(size)]


def best_crossed(truth: Truth) -> float:
    """The loss of the best layout within the budget, chosen by each seed and read off the others: an estimate without
    the luck of having been chosen."""
    seeds = range(truth.setting.seeds)
    found = []
    for chosen, read in itertools.permutations(seeds, 2):
        best = min(truth.within, key=lambda pattern: truth.rows[pattern][chosen].loss)
        found.append(truth.rows[best][read].loss)
    return statistics.fmean(found)


def agreement(truth: Truth, values: Sequence[str] = ("loss", "loss")) -> float:
    """Spearman's correlation, within the budget, of one column of the first seed and one of the second: the most that
    a method which sees one training each can be expected to reach."""
    from scipy.stats import spearmanr

    one, other = (
        [getattr(truth.rows[pattern][seed], name) for pattern in truth.within] for seed, name in enumerate(values)
    )
    return float(spearmanr(one, other).statistic)


def spread_of(losses: Iterable[float]) -> tuple[float, float, float]:
    """Least, median and greatest of the finite ones."""
    finite = [loss for loss in losses if math.isfinite(loss)]
    return min(finite), statistics.median(finite), max(finite)
