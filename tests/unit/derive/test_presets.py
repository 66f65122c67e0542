"""Presets: the published layouts and sizes, letter by letter."""

import pytest

from derive.architecture import Architecture
from derive.presets import PRESETS
from supernet.errors import SettingError

GOLDEN = {
    "transformer-xl-base": "sf" * 16,
    "transformer-xl-large": "sf" * 18,
    "par-base": "sfff" * 6 + "f" * 8,
    "par-large": "sfff" * 7 + "f" * 8,
    "par-24b": "sff" * 5 + "f" * 9,
    "par-bert-base": "sff" * 5 + "f" * 9,
    "bert-base": "sf" * 12,
    "sandwich-base": "s" * 6 + "sf" * 10 + "f" * 6,
    "distilbert": "sf" * 6,
}


@pytest.mark.parametrize("name", PRESETS)
def test_layout(name: str) -> None:
    preset = Architecture.preset(name)
    assert preset.name == name
    if name in GOLDEN:
        assert preset.pattern == GOLDEN[name]
    assert Architecture.from_json(preset.to_json()) == preset


def test_every_published_layout_is_golden() -> None:
    assert set(PRESETS) - set(GOLDEN) == {"interleaved", "par"}


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("transformer-xl-base", 191_950_298), ("par-base", 199_840_218), ("sandwich-base", 191_950_298)],
)
def test_published_sizes(name: str, parameters: int) -> None:
    preset = Architecture.preset(name)
    assert preset.parameters() == parameters
    assert (preset.model.vocab_size, preset.model.cutoffs) == (267735, (19997, 39997, 199997))


def test_bert_base_has_the_published_size_but_for_token_types_pooler_and_head_transform() -> None:
    whole = 109_482_240  # bert-base-uncased with pooler, as Hugging Face counts it
    token_types_and_norm_and_pooler = 2 * 768 + 2 * 768 + 768 * 768 + 768
    value_key_query_output_biases = 12 * 4 * 768
    assert (
        Architecture.preset("bert-base").parameters()
        == whole - token_types_and_norm_and_pooler - value_key_query_output_biases
    )


def test_par_bert_is_a_masked_model() -> None:
    assert Architecture.preset("par-bert-base").task == "masked_lm"


def test_interleaved_and_par_take_the_current_widths() -> None:
    model = {"vocab_size": 61, "d_model": 20, "heads": 5, "d_inner": 34, "max_len": 24, "layers": 10}
    assert Architecture.preset("interleaved", model=model).pattern == "sfsfsfsfsf"
    par = Architecture.preset("par", model=model, layers=24)
    assert par.pattern == "sff" * 5 + "f" * 9
    assert (par.model.d_model, par.model.vocab_size, par.name) == (20, 61, "par")
    assert Architecture.preset("par", model=model, cut=1.0, ratio=2).pattern == "sfsfsfsfsf"
    assert Architecture.preset("interleaved", model={"task": "masked_lm"}).task == "masked_lm"


def test_keys_of_the_model_replace_a_published_presets_own() -> None:
    small = Architecture.preset("par-base", model={"d_model": 64, "vocab_size": 256, "cutoffs": []})
    assert (small.model.d_model, small.model.d_inner, small.model.cutoffs) == (64, 2048, ())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"name": "par-bass"}, "did you mean 'par-base'"),
        ({"name": 3}, "unknown preset 3"),
        ({"name": "par-base", "layers": 31}, "has 32 layers, not 31"),
        ({"name": "par-base", "cut": 0.5}, "derive.cut: the published layout 'par-base' has its own"),
        ({"name": "bert-base", "ratio": 5}, "derive.ratio: the published layout 'bert-base' has its own"),
        ({"name": "interleaved", "layers": 0}, "model.layers"),
        ({"name": "par", "layers": 10**9}, "model.layers"),
        ({"name": "par", "model": {"layers": 10**9}}, "model.layers"),
        ({"name": "par", "cut": 2.0}, "derive.cut"),
        ({"name": "par", "model": {"heads": 3}}, "model.heads"),
        ({"name": "par", "model": {"hedas": 3}}, "did you mean 'heads'"),
        ({"name": "par", "model": 5}, "model: expected an object"),
    ],
)
def test_refusals(arguments: dict, words: str) -> None:
    with pytest.raises(SettingError) as caught:
        Architecture.preset(**arguments)
    assert words in str(caught.value)
