"""The battery: what stands in the tables of really trained layouts, setting by setting: python benchmarks/battery.py
[ID ...]

Prints for each setting how many layouts have been trained, the noise, the best within the budget, the interleaved one,
the spread, and what a random layout and the best of 3 and of 8 random ones would come to. Half-made tables are read as
they are. `load_truth`, `standing` and `random_search` are for whatever compares methods.
"""

import argparse
import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from battery_settings import SETTINGS, find_setting
from battery_tables import (
    TABLES,
    Truth,
    agreement,
    best_crossed,
    load_truth,
    random_search,
    spread_of,
    standing,
)

__all__ = ["load_truth", "random_search", "standing"]
RANDOM = (1, 3, 8)  # random layouts, of which the best is taken
HEAD = (
    "id  layouts  within  CPU s  noise   best    (fair)   interleaved  least to median to greatest  seeds agree  "
    "best of 1, 3, 8 random: regret and percentile"
)


def line_of(truth: Truth) -> str:
    """A setting's row of the table."""
    least, median, greatest = spread_of(truth.losses[pattern] for pattern in truth.within)
    plain = [truth.losses[pattern] for pattern in truth.origin("interleaved")]
    seconds = statistics.fmean(row.seconds for rows in truth.rows.values() for row in rows)
    found = [random_search(truth, count) for count in RANDOM]
    chances = "  ".join("-" if one is None else f"{one.regret:.4f} {one.percentile:4.1f} %" for one in found)
    return (
        f"{truth.setting.id:<3} {len(truth.rows):7d} {len(truth.within):7d} {seconds:6.1f} {truth.noise:6.4f} "
        f"{truth.best:7.4f} ({best_crossed(truth):.4f}) {plain[0] if plain else math.nan:9.4f}     "
        f"{least:.4f} to {median:.4f} to {greatest:.4f} {agreement(truth):10.2f}      {chances}"
    )


def describe(truth: Truth) -> str:
    """What a setting is, and its best layout so far."""
    setting = truth.setting
    letters = ", ".join(f"{letter} {label}" for letter, label in setting.space.labels.items())
    return (
        f"{setting.id}: {setting.corpus}, {setting.layers} layers, d {setting.d_model}, {setting.heads} heads, inner "
        f"{setting.d_inner}, {setting.batch_size} x {setting.seq_len} bytes, {setting.steps} steps at {setting.lr:g}, "
        f"budget {setting.budget}\n    {letters}; {setting.space.count(setting.budget):,} of "
        f"{setting.space.count():,} networks within the budget"
        + (f"; best so far {truth.within[0]}" if truth.within and not setting.held_out else "")
    )


def print_tables(names: Sequence[str], folder: Path = TABLES, *, details: bool = False) -> None:
    """A row a setting; one with fewer than two layouts within the budget says so."""
    truths = [load_truth(find_setting(name), folder) for name in names]
    for truth in truths if details else ():
        print(describe(truth))
    print(HEAD)
    for truth in truths:
        print(line_of(truth) if len(truth.within) > 1 else f"{truth.setting.id:<3} {len(truth.rows):7d} layouts so far")


def main() -> None:
    """Parse the command and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("settings", nargs="*", default=[setting.id for setting in SETTINGS], metavar="ID")
    parser.add_argument("--details", action="store_true", help="also what each setting is")
    parser.add_argument("--folder", type=Path, default=TABLES, help="of the tables")
    options = parser.parse_args()
    try:
        print_tables(options.settings, options.folder, details=options.details)
    except KeyError as error:
        parser.error(error.args[0])


if __name__ == "__main__":
    main()
