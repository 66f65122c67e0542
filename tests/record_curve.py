"""`python tests/record_curve.py` records the loss curve of the smallest preset, on a CPU with one thread.

A search of `tiny_runs.TINY` with relaxation sampled and dropout; only a change that should alter results may alter it.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from tiny_runs import search_in, tiny

PATH = Path(__file__).with_name("recorded_curve.json")
KEYS = ("step", "loss", "arch_loss", "held_out_loss", "derived_loss", "temperature", "entropy", "expected_cost")


def curve(folder: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl without timings."""
    config = tiny(search__relaxation="sampled", search__temperature_end=0.5, model__dropout=0.1)
    search_in(folder, config)
    lines = map(json.loads, (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [{key: line[key] for key in KEYS if key in line} for line in lines]


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        made = {"made_by": "python tests/record_curve.py", "torch": torch.__version__, "curve": curve(Path(name))}
    PATH.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
