"""The planted corpora follow the rule that they are named for."""

from pathlib import Path

import numpy as np
import planted
import pytest

from derive import Architecture


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planted, "SIZE", 20_000)


def share_told_by(text: np.ndarray, context: np.ndarray) -> float:
    """How often the next byte is the likeliest one after its context."""
    table: dict[int, np.ndarray] = {}
    for seen, byte in zip(context.tolist(), text.tolist(), strict=True):
        table.setdefault(seen, np.zeros(256, dtype=int))[byte] += 1
    return sum(counts.max() for counts in table.values()) / len(text)


def test_each_rule_tells_nine_bytes_in_ten_and_less_context_does_not() -> None:
    make = np.random.default_rng
    current, behind, two = (rule(make(2)) for rule in (planted.from_current, planted.from_behind, planted.from_two))
    assert share_told_by(current[1:], current[:-1]) > 0.88
    assert share_told_by(behind[5:], behind[:-5]) > 0.88 and share_told_by(behind[5:], behind[4:-1]) < 0.4
    both = two[3:-2] * 8 + two[:-5]
    assert share_told_by(two[5:], both) > 0.88 and share_told_by(two[5:], two[3:-2]) < 0.6


def test_recall_answers_with_the_value_that_its_sequence_gave_the_key() -> None:
    rows = planted.recall(np.random.default_rng(2)).reshape(-1, 4 + 16)
    assert rows.max() < 256 and len(rows) == 1000
    for row in rows[:50]:
        values = {int(pair) // 8: int(pair) % 8 for pair in row[:4]}
        assert len(values) == 4  # four different keys
        for question, answer in row[4:].reshape(-1, 2):
            assert answer - 128 - 16 == values[question - 128]
    keys = [tuple(row[:4] // 8) for row in rows]
    assert len(set(keys)) > 500  # fresh ones in each sequence


@pytest.mark.parametrize(
    ("name", "yes", "no"),
    [
        ("current", ["fffi", "iifi"], ["rfii", "iiii", "sfff"]),
        ("behind", ["rrif", "iiri"], ["srii", "ffff"]),
        ("two", ["rfii", "isif"], ["frri", "ffff"]),
        ("recall", ["isff"], ["rrff"]),
    ],
)
def test_answers(name: str, yes: list[str], no: list[str]) -> None:
    right = planted.CORPORA[name].right
    assert all(right(pattern, True) for pattern in yes) and not any(right(pattern, True) for pattern in no)
    assert planted.CORPORA["nothing"].right("ssss", False) and not planted.CORPORA["nothing"].right("ssss", True)


def test_the_budget_of_current_has_room_for_feed_forward_and_for_no_map(tmp_path: Path) -> None:
    config = planted.configuration("current", tmp_path)
    model = config.model.settings(256, config.data.seq_len)
    costs = {
        pattern: Architecture.from_pattern(pattern, model).relative_flops(config.data.seq_len)
        for pattern in ("ffii", "riii", "siii")
    }
    assert costs["ffii"] <= config.search.budget < min(costs["riii"], costs["siii"])
