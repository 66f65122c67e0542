"""The model's settings: every wrong value is refused by its key, and what is right comes through unchanged."""

import dataclasses

import pytest
from by_hand import SIZES, small

from supernet.errors import SettingError
from supernet.settings import LARGEST, ModelSettings, check_choice, check_int

WRONG = [
    *[
        ({key: value}, f"model.{key}")
        for key in ("vocab_size", "d_model", "heads", "d_inner", "max_len")
        for value in (0, -1, True, 2.0, "4", None, 2**31)
    ],
    *[({"memory_len": value, "position": "none"}, "model.memory_len") for value in (-1, False, 1.0, None, 2**31)],
    *[({"dropout": value}, "model.dropout") for value in (-0.1, 1, 1.0, float("nan"), float("inf"), "0.1", True, None)],
    *[({"norm": value}, "model.norm") for value in ("Pre", "", None, 1, ["pre"])],
    *[({"position": value}, "model.position") for value in ("rotary", None, [])],
    *[({"tie_embeddings": value}, "model.tie_embeddings") for value in (1, 0, "true", None)],
    ({"heads": 3}, "model.heads"),
    ({"heads": 20}, "model.heads"),
    ({"position": "sinusoidal", "d_model": 15, "heads": 3}, "model.d_model"),
    ({"memory_len": 1}, "model.memory_len"),
    ({"memory_len": 1, "position": "sinusoidal"}, "model.memory_len"),
    ({"cutoffs": [0]}, "model.cutoffs[0]"),
    ({"cutoffs": [5, 7.0]}, "model.cutoffs[1]"),
    ({"cutoffs": [7, 5]}, "model.cutoffs"),
    ({"cutoffs": [5, 5]}, "model.cutoffs"),
    ({"cutoffs": [23]}, "model.cutoffs"),
    ({"cutoffs": 5}, "model.cutoffs"),
    ({"cutoffs": "57"}, "model.cutoffs"),
    ({"layers": 3}, "model.layers"),
    ({"width": 3}, "model.width"),
    ({"d_modle": 3}, "model.d_modle"),
    ({7: 3}, "model.7"),
]


@pytest.mark.parametrize(("change", "path"), WRONG)
def test_wrong_values_name_their_key(change: dict, path: str) -> None:
    with pytest.raises(SettingError) as caught:
        ModelSettings.from_mapping({**SIZES, **change})
    assert caught.value.path == path and str(caught.value).startswith(f"{path}: ") and "\n" not in str(caught.value)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("value", [None, [], "model", 3])
def test_a_model_that_is_no_object(value: object) -> None:
    with pytest.raises(SettingError, match="^here: expected an object"):
        ModelSettings.from_mapping(value, path="here")


@pytest.mark.parametrize("task", ["causal", None, 3])
def test_wrong_tasks(task: object) -> None:
    with pytest.raises(SettingError, match="^task: expected one of"):
        ModelSettings.from_mapping(SIZES, task=task)


def test_masked_lm_has_no_memory() -> None:
    with pytest.raises(SettingError, match="^model.memory_len: task 'masked_lm' has no memory"):
        ModelSettings.from_mapping({**SIZES, "memory_len": 3, "position": "none"}, task="masked_lm")


def test_a_near_miss_is_suggested() -> None:
    with pytest.raises(SettingError, match="did you mean 'd_model'"):
        ModelSettings.from_mapping({"d_modle": 3})


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"memory_len": 11, "position": "relative"},
        {"memory_len": 11, "position": "none"},
        {"dropout": 0},
        {"cutoffs": [5, 11]},
        {"heads": 10},
        {"norm": "post"},
        {"tie_embeddings": False},
        {"vocab_size": 1, "max_len": 1},
        {"position": "relative", "d_model": 15, "heads": 3},
        {"max_len": LARGEST},
    ],
)
def test_a_mapping_comes_back_as_it_was(change: dict) -> None:
    settings = ModelSettings.from_mapping({**SIZES, **change})
    written = settings.to_mapping()
    assert {key: written[key] for key in {**SIZES, **change}} == {**SIZES, **change}
    assert ModelSettings.from_mapping(written) == settings
    assert ModelSettings(**written) == settings and {ModelSettings(**written): 1}[settings] == 1
    assert ("cutoffs" in written) == bool(settings.cutoffs) and "task" not in written


def test_the_file_keys_are_those_of_the_contract() -> None:
    assert list(ModelSettings().to_mapping()) == [
        "vocab_size",
        "d_model",
        "heads",
        "d_inner",
        "max_len",
        "memory_len",
        "dropout",
        "norm",
        "position",
        "tie_embeddings",
    ]


def test_settings_are_constant_and_can_be_keys() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        small().heads = 5
    assert {small(): 1}[small()] == 1 and small() != small(heads=5)


@pytest.mark.parametrize(("task", "causal"), [("causal_lm", True), ("masked_lm", False)])
def test_causal(task: str, causal: bool) -> None:
    assert small(task=task).causal is causal


def test_checks_return_the_value() -> None:
    assert check_int(7, "x", least=7) == 7 and check_choice("a", "x", ("a", "b")) == "a"
    for wrong in (6, LARGEST + 1, True, 7.5, "7"):
        with pytest.raises(SettingError, match="^x: expected an integer"):
            check_int(wrong, "x", least=7)
    with pytest.raises(SettingError, match="^x: expected one of a, b, got 'c'"):
        check_choice("c", "x", ("a", "b"))
