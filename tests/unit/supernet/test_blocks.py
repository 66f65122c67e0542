"""The registry: names and letters as users know them, labels that read back, and errors that name the option."""

import subprocess
import sys
from pathlib import Path

import pytest
from by_hand import small

from supernet.blocks import (
    BLOCKS,
    Candidate,
    all_options,
    block_class,
    candidate_to_json,
    default_options,
    letters,
    nearest_divisors,
    parse_candidate,
)
from supernet.errors import SettingError

TABLE = {  # as documented: letter and options
    "self_attention": ("s", ("heads",)),
    "dense_synthesizer": ("d", ("heads", "d_hidden")),
    "random_synthesizer": ("r", ("heads",)),
    "fixed_random_synthesizer": ("x", ("heads", "seed")),
    "factorized_dense_synthesizer": ("e", ("heads", "a", "b")),
    "factorized_random_synthesizer": ("q", ("heads", "rank")),
    "mixture_synthesizer": ("m", ("heads", "parts")),
    "feed_forward": ("f", ("d_inner",)),
    "identity": ("i", ()),
}

LABELS = {  # label -> the options that differ from the defaults
    **{name: {} for name in TABLE},
    "self_attention[heads=5]": {"heads": 5},
    "dense_synthesizer[heads=5,d_hidden=35]": {"heads": 5, "d_hidden": 35},
    "fixed_random_synthesizer[seed=7]": {"seed": 7},
    "factorized_dense_synthesizer[a=7,b=3]": {"a": 7, "b": 3},
    "factorized_dense_synthesizer[a=1,b=21]": {"a": 1, "b": 21},
    "factorized_random_synthesizer[heads=1,rank=3]": {"heads": 1, "rank": 3},
    "mixture_synthesizer[parts=dense+random]": {"parts": ("dense", "random")},
    "mixture_synthesizer[heads=1,parts=self_attention+dense+factorized_random]": {
        "heads": 1,
        "parts": ("self_attention", "dense", "factorized_random"),
    },
    "feed_forward[d_inner=29]": {"d_inner": 29},
}

ALIASES = {  # other ways to write a candidate -> its label
    "self_attention[heads=2]": "self_attention",
    " self_attention ": "self_attention",
    "self_attention[]": "self_attention",
    "self_attention[ heads = 5 ]": "self_attention[heads=5]",
    "dense_synthesizer[d_hidden=35,heads=5]": "dense_synthesizer[heads=5,d_hidden=35]",
    "factorized_dense_synthesizer[a=7]": "factorized_dense_synthesizer[a=7,b=3]",
    "factorized_dense_synthesizer[b=3]": "factorized_dense_synthesizer[a=7,b=3]",
    "factorized_dense_synthesizer[b=7]": "factorized_dense_synthesizer",
    "fixed_random_synthesizer[seed=0]": "fixed_random_synthesizer",
    "mixture_synthesizer[parts=random+self_attention]": "mixture_synthesizer",
    "mixture_synthesizer[parts=random+dense]": "mixture_synthesizer[parts=dense+random]",
    "feed_forward[d_inner=17]": "feed_forward",
}

WRONG = [
    ("attention", "here.block"),
    ("", "here"),
    ("self_attention[", "here"),
    ("self_attention[heads]", "here"),
    ("self_attention[heads=]", "here"),
    ("self_attention[=2]", "here"),
    ("self_attention[heads=2,heads=5]", "here"),
    ("self_attention[heads=2]x", "here"),
    ("s elf_attention", "here"),
    ("self_attention[heads=0]", "here.heads"),
    ("self_attention[heads=-2]", "here.heads"),
    ("self_attention[heads=3]", "here.heads"),
    ("self_attention[heads=2.0]", "here.heads"),
    ("self_attention[heads=two]", "here.heads"),
    ("self_attention[heads=true]", "here.heads"),
    ("self_attention[rank=2]", "here.rank"),
    ("identity[heads=2]", "here.heads"),
    ("feed_forward[d_inner=0]", "here.d_inner"),
    ("feed_forward[d_iner=3]", "here.d_iner"),
    ("dense_synthesizer[d_hidden=7]", "here.d_hidden"),
    ("dense_synthesizer[heads=5,d_hidden=12]", "here.d_hidden"),
    ("fixed_random_synthesizer[seed=-1]", "here.seed"),
    ("factorized_dense_synthesizer[a=2]", "here.a"),
    ("factorized_dense_synthesizer[b=2]", "here.b"),
    ("factorized_dense_synthesizer[a=3,b=3]", "here.a"),
    ("factorized_dense_synthesizer[a=42]", "here.a"),
    ("factorized_random_synthesizer[rank=0]", "here.rank"),
    ("factorized_random_synthesizer[rank=2147483648]", "here.rank"),
    ("mixture_synthesizer[parts=random]", "here.parts"),
    ("mixture_synthesizer[parts=random+random]", "here.parts"),
    ("mixture_synthesizer[parts=random+fixed_random]", "here.parts"),
    ({}, "here"),
    ({"heads": 2}, "here"),
    ({"block": None}, "here.block"),
    ({"block": ["identity"]}, "here.block"),
    ({"block": "identity", "x": 1}, "here.x"),
    ({"block": "self_attention", "heads": None}, "here.heads"),
    ({"block": "mixture_synthesizer", "parts": "random+dense"}, "here.parts"),
    ({"block": "mixture_synthesizer", "parts": [["random"], "dense"]}, "here.parts"),
    ({"block": "mixture_synthesizer", "parts": {"random": 1}}, "here.parts"),
    (None, "here"),
    (3, "here"),
    (["identity"], "here"),
    (Candidate("nothing"), "here.block"),
    (Candidate("self_attention", (("heads", 3),)), "here.heads"),
]


def test_names_letters_and_options_are_the_documented_ones() -> None:
    assert {name: (spec.letter, spec.options) for name, spec in BLOCKS.items()} == TABLE
    assert letters() == {letter: name for name, (letter, _) in TABLE.items()}
    assert [name for name, spec in BLOCKS.items() if not spec.attention_like] == ["feed_forward", "identity"]


@pytest.mark.parametrize("label", LABELS)
def test_labels_read_back(label: str) -> None:
    settings = small()
    candidate = parse_candidate(label, settings)
    assert candidate.label == label and dict(candidate.options) == LABELS[label]
    assert candidate.letter == TABLE[candidate.block][0]
    as_object = {
        "block": candidate.block,
        **{k: list(v) if isinstance(v, tuple) else v for k, v in LABELS[label].items()},
    }
    assert parse_candidate(as_object, settings) == parse_candidate(candidate, settings) == candidate
    assert parse_candidate(candidate_to_json(candidate, settings), settings) == candidate
    assert {candidate: 1}[parse_candidate(label, settings)] == 1


@pytest.mark.parametrize("written", ALIASES)
def test_other_ways_to_write_a_candidate(written: str) -> None:
    assert parse_candidate(written, small()).label == ALIASES[written]


@pytest.mark.parametrize(("value", "path"), WRONG)
def test_errors_name_the_option(value: object, path: str) -> None:
    with pytest.raises(SettingError) as caught:
        parse_candidate(value, small(), "here")
    assert caught.value.path == path and str(caught.value).startswith(f"{path}: ") and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("self_atention", "did you mean 'self_attention'"),
        ("feed_forward[d_iner=3]", "did you mean 'd_inner'"),
        ("identity[heads=2]", "identity has none"),
        ("mixture_synthesizer[parts=random+dens]", "did you mean 'dense'"),
        ("self_attention[heads=3]", "does not divide d_model 10"),
        ("factorized_dense_synthesizer[a=3,b=3]", "must be max_len 21"),
    ],
)
def test_errors_say_what_would_be_right(value: str, hint: str) -> None:
    with pytest.raises(SettingError) as caught:
        parse_candidate(value, small())
    assert hint in str(caught.value)


def test_defaults_come_from_the_settings() -> None:
    settings = small()
    assert {name: default_options(name, settings) for name in BLOCKS} == {
        "self_attention": {"heads": 2},
        "dense_synthesizer": {"heads": 2, "d_hidden": 10},
        "random_synthesizer": {"heads": 2},
        "fixed_random_synthesizer": {"heads": 2, "seed": 0},
        "factorized_dense_synthesizer": {"heads": 2, "a": 3, "b": 7},
        "factorized_random_synthesizer": {"heads": 2, "rank": 8},
        "mixture_synthesizer": {"heads": 2, "parts": ("self_attention", "random")},
        "feed_forward": {"d_inner": 17},
        "identity": {},
    }


def test_a_mixture_brings_what_its_parts_need() -> None:
    options = all_options(parse_candidate("mixture_synthesizer[heads=5]", small()), small())
    assert options == {"heads": 5, "parts": ("self_attention", "random"), "d_hidden": 10, "rank": 8, "a": 3, "b": 7}


@pytest.mark.parametrize(
    ("length", "divisors"),
    [
        (1, (1, 1)),
        (2, (1, 2)),
        (16, (4, 4)),
        (21, (3, 7)),
        (512, (16, 32)),
        (97, (1, 97)),
        (2**31 - 1, (1, 2**31 - 1)),
    ],
)
def test_nearest_divisors(length: int, divisors: tuple[int, int]) -> None:
    assert nearest_divisors(length) == divisors


def test_files_hold_what_does_not_follow_from_the_model() -> None:
    settings = small()
    assert {name: candidate_to_json(Candidate(name), settings) for name in BLOCKS} == {
        name: {"block": name, **extra}
        for name, extra in {
            "self_attention": {},
            "dense_synthesizer": {},
            "random_synthesizer": {},
            "fixed_random_synthesizer": {"seed": 0},
            "factorized_dense_synthesizer": {"a": 3, "b": 7},
            "factorized_random_synthesizer": {"rank": 8},
            "mixture_synthesizer": {"parts": ["self_attention", "random"]},
            "feed_forward": {},
            "identity": {},
        }.items()
    }


@pytest.mark.parametrize("name", TABLE)
def test_classes_are_found(name: str) -> None:
    assert block_class(name).__name__.lower() == name.replace("_", "")


def test_reading_candidates_needs_no_torch() -> None:
    code = (
        "import sys; from supernet import BLOCKS, ModelSettings, parse_candidate, candidate_cost; m = ModelSettings(); "
        "print([candidate_cost(parse_candidate(b, m), m, 7) for b in BLOCKS]); sys.exit('torch' in sys.modules)"
    )
    root = Path(__file__).parents[3]
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True, stdout=subprocess.DEVNULL)
