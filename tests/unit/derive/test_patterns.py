"""Patterns: every form expands to what one would write by hand, and wrong ones name the place."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from derive.patterns import MAX_LAYERS, compress, expand, interleaved, par_pattern, par_positions
from supernet.errors import SettingError


@pytest.mark.parametrize(
    ("pattern", "flat"),
    [
        ("sf", "sf"),
        ("(sfff)x6(f)x8", "sfff" * 6 + "f" * 8),
        ("(sfff)x6 (f)x8", "sfff" * 6 + "f" * 8),
        ("((sf)x2i)x3", "sfsfi" * 3),
        ("(s)(f)", "sf"),
        ("(sf)x", "sfx"),
        ("(sf)x2x", "sfsfx"),
        ("(sf)xx", "sfxx"),
        ("x(x)x3", "xxxx"),
        ("(s)x02", "ss"),
        ("drxeqmfi", "drxeqmfi"),
    ],
)
def test_expands(pattern: str, flat: str) -> None:
    assert expand(pattern) == flat


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("", "no layers"),
        ("  ", "no layers"),
        ("sfz", "position 2 (from 0)"),
        ("sS", "position 1 (from 0)"),
        ("s(f", "position 1 (from 0) of 's(f': '(' opens"),
        ("sf)", "position 2 (from 0) of 'sf)': ')' closes a group that was not"),
        ("s()x3", "empty group"),
        ("(s)x0", "0 times"),
        ("s3", "'3' is a number"),
        ("(s)x5000", "makes 5000 layers"),
        ("(s)x" + "9" * 300, "times"),
        ("s" * (MAX_LAYERS + 1), "makes 4097 layers"),
        ("s" * 20000, "longer than"),
        (7, "expected text"),
    ],
)
def test_names_what_is_wrong(pattern: str, words: str) -> None:
    with pytest.raises(SettingError) as caught:
        expand(pattern)
    assert words in str(caught.value) and str(caught.value).startswith("pattern: ") and "\n" not in str(caught.value)


def test_no_memory_is_taken_for_a_pattern_that_is_too_long() -> None:
    start = time.perf_counter()
    with pytest.raises(SettingError, match="at most 4096"):
        expand("(" * 60 + "sf" + ")x99" * 60)
    assert time.perf_counter() - start < 1


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="sfxi", min_size=1, max_size=40), st.integers(1, 4))
def test_compressed_form_expands_to_the_same(unit: str, times: int) -> None:
    flat = unit * times
    assert expand(compress(flat)) == flat
    assert len(compress(flat)) <= len(flat)


@pytest.mark.parametrize("pattern", ["(sfff)x6(f)x8", "(sff)x5(f)x9", "(sf)x16", "sfi", "(sfff)x7(f)x8"])
def test_compress_finds_the_published_form(pattern: str) -> None:
    assert compress(expand(pattern)) == pattern


def test_compress_is_fast_at_the_largest_size() -> None:
    start = time.perf_counter()
    assert expand(compress("sfffi" * 800)) == "sfffi" * 800
    assert time.perf_counter() - start < 2


def test_rule_gives_the_published_layouts_that_follow_it() -> None:
    assert par_pattern(32) == expand("(sfff)x6(f)x8")
    assert par_pattern(24) == expand("(sff)x5(f)x9")
    assert par_pattern(36) == "sff" * 7 + "f" * 15  # the published Large has stride 4: it breaks its own cut


@pytest.mark.parametrize(
    ("layers", "cut", "ratio", "positions"),
    [
        (12, 2 / 3, 5, [0, 4]),
        (12, 1, 2, [0, 2, 4, 6, 8, 10]),
        (12, 0.25, 3, [0, 1, 2, 3]),
        (10, 1, 4, [0, 5]),  # k = round(2.5) = 2, as Python rounds
        (3, 1, 2, [0, 2]),  # round(3 / 2) = 2
        (2, 0.5, 5, []),  # k = 0
        (7, 1, 1, [0, 1, 2, 3, 4, 5, 6]),
        (5, 1, 5 / 3, [0, 2, 4]),  # stride round(5/3) = 2
        (8, 1, 8 / 5, [0, 1, 2, 3, 4]),  # stride 2 would put the fifth at 8, past the last layer
        (1, 0.01, 1, [0]),
    ],
)
def test_positions_of_the_rule(layers: int, cut: float, ratio: float, positions: list[int]) -> None:
    assert par_positions(layers, cut, ratio) == positions


@given(st.integers(1, 200), st.floats(0.01, 1), st.floats(1, 50))
def test_positions_are_as_many_as_the_rule_says_and_inside(layers: int, cut: float, ratio: float) -> None:
    positions = par_positions(layers, cut, ratio)
    assert len(set(positions)) == round(layers / ratio)
    assert all(0 <= position < layers for position in positions)


@pytest.mark.parametrize(
    ("cut", "ratio", "key"), [(0, 5, "cut"), (1.1, 5, "cut"), (0.5, 0.9, "ratio"), (0.5, True, "ratio")]
)
def test_rule_refuses_what_it_cannot_mean(cut: float, ratio: float, key: str) -> None:
    with pytest.raises(SettingError, match=f"derive.{key}"):
        par_positions(12, cut, ratio)


def test_interleaved_of_an_odd_depth_ends_on_attention() -> None:
    assert interleaved(5) == "sfsfs"
