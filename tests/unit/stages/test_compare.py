"""The comparison: which layout to take and what is said of it."""

import csv
import dataclasses
import io
import math
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import setup_of

from nas.config.run_config import load_run_config
from nas.results.choice import choose_best, sentence, table
from nas.stages.compare import COLUMNS, _csv, _row
from nas.tasks.causal_lm import CAUSAL_LM
from nas.training.setup import Setup
from supernet.errors import RunFailed

TIMES = {"latency_ms": 1.0, "predicted_latency_ms": 1.1}


def row(name: str, loss: float | None, flops: int, seed: int = 0, **more: Any) -> dict[str, Any]:
    values = {
        "name": name,
        "seed": seed,
        "pattern": "sf",
        "parameters": 1000,
        "flops_per_token": flops,
        "latency_ms": 0.5,
        "steps": 10,
        "held_out_loss": loss,
        "perplexity": None if loss is None else math.exp(loss),
        "bits_per_character": loss,
        "relative_flops": flops / 100,
        "standard_error": 0.01,
        "predicted_latency_ms": 0.6,
    }
    return {**values, **more}


def test_the_cheapest_within_the_noise_is_taken() -> None:
    rows = [row("dear", 2.0, 100), row("cheap", 2.028, 60), row("cheaper but worse", 2.05, 30)]
    choice = choose_best(rows)
    assert (choice.name, choice.noise) == (
        "cheap",
        pytest.approx(2 * math.sqrt(2) * 0.01),
    ) and "one seed" in choice.noise_source
    assert choose_best([row("dear", 2.0, 100), row("cheap", 2.029, 60)]).name == "dear"
    unknown = [row("dear", 2.0, 100), row("cheap", 2.5, 60, standard_error=None)]
    assert choose_best(unknown).noise == math.inf and "ties with" in sentence(unknown, choose_best(unknown), ["cheap"])


def test_with_seeds_the_noise_is_theirs() -> None:
    rows = [
        row(name, base + seed / 10, flops, seed)
        for name, base, flops in (("a", 2.0, 100), ("b", 2.1, 60))
        for seed in (0, 1)
    ]
    choice = choose_best(rows)
    assert choice.noise == pytest.approx(2 * math.sqrt(2 * 0.005 / 2)) and choice.means == {
        "a": 2.05,
        "b": pytest.approx(2.15),
    }
    assert choice.name == "b" and "2 seeds" in choice.noise_source


def test_equal_cost_goes_to_the_lower_loss() -> None:
    assert choose_best([row("a", 2.005, 50), row("b", 2.0, 50)]).name == "b"


def test_a_training_without_a_finite_loss_loses() -> None:
    rows = [row("fine", 2.0, 100), row("broken", None, 10, standard_error=None)]
    choice = choose_best(rows)
    assert choice.name == "fine"
    assert "broken" in table(rows, choice, CAUSAL_LM).splitlines()[-1] and "inf" in table(rows, choice, CAUSAL_LM)
    assert "reads below" in sentence(rows, choice, ["fine"]) and "LOST" in sentence(rows, choice, ["broken"])
    several = [row(name, loss, 10, seed) for name, loss in (("a", 2.0), ("b", None)) for seed in (0, 1)]
    assert choose_best(several).name == "a"
    with pytest.raises(RunFailed, match="no training ended with a finite loss"):
        choose_best(rows[1:])


def test_the_sentence_says_who_won_and_by_how_much() -> None:
    rows = [row("argmax", 2.0, 60), row("interleaved", 2.1, 100)]
    choice = choose_best(rows)
    assert "argmax (0.60 of the interleaved cost) reads below interleaved (1.00) by +0.1000 nats" in sentence(
        rows, choice, ["argmax"]
    )
    twice = rows + [{**one, "seed": 1} for one in rows]
    assert "beats interleaved (1.00) by +0.1000 nats" in sentence(twice, choose_best(twice), ["argmax"])
    rows = [row("argmax", 2.3, 60), row("interleaved", 2.1, 100)]
    assert "LOST to interleaved (1.00) by -0.2000 nats" in sentence(rows, choose_best(rows), ["argmax"])
    rows = [row("argmax", 2.005, 60), row("interleaved", 2.0, 100)]
    assert "ties with" in sentence(rows, choose_best(rows), ["argmax"])
    assert sentence(rows, choose_best(rows), []) == "Best: argmax at 0.60 of the interleaved cost."


def test_the_table_is_sorted_by_loss_and_marks_the_choice() -> None:
    rows = [row("worse", 2.5, 100), row("better", 2.0, 60)]
    lines = table(rows, choose_best(rows), CAUSAL_LM).splitlines()
    assert lines[0].split() == ["name", "pattern", "parameters", "cost", "ms", "loss", "spread", "perplexity"]
    assert lines[1].startswith("*  better") and lines[2].split()[0] == "worse" and "2.0000" in lines[1]


def test_the_csv_has_the_jsons_columns_and_order() -> None:
    rows = [row("a, b", 2.0, 60), row("c", None, 70)]
    read = list(csv.DictReader(io.StringIO(_csv(rows, CAUSAL_LM))))
    assert list(read[0]) == list(rows[0]) == [*COLUMNS[0], *CAUSAL_LM.figures, *COLUMNS[1]]
    worded = [{**one, "word_perplexity": 9.5} for one in rows]
    assert [one["word_perplexity"] for one in csv.DictReader(io.StringIO(_csv(worded, CAUSAL_LM)))] == ["9.5", "9.5"]
    assert read[0]["name"] == "a, b" and float(read[0]["held_out_loss"]) == 2.0 and read[1]["held_out_loss"] == ""


def of_kind(setup: Setup, kind: str) -> Setup:
    return dataclasses.replace(setup, corpus=dataclasses.replace(setup.corpus, kind=kind))


def test_only_tokens_that_make_words_have_a_perplexity_of_words(debug_run: Path) -> None:
    config = load_run_config(debug_run)
    setup, home = setup_of(config), debug_run / "retrain" / "par" / "seed-0"
    assert "word_perplexity" not in _row(home, 0, TIMES, setup)
    for kind in ("words", "pieces"):
        row = _row(home, 0, TIMES, of_kind(setup, kind))
        size = setup.corpus.size("held_out")
        assert row["word_perplexity"] == pytest.approx(math.exp(row["held_out_loss"] * size.tokens / size.words))
    assert _row(home, 0, TIMES, of_kind(setup, "numbers"))["bits_per_character"] is None
