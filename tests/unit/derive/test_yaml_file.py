"""YAML read strictly: plain values, once each, of bounded size; what is written is read back equal."""

import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from derive.yaml_file import dump_yaml, read_yaml
from supernet.errors import UserError


def read(folder: Path, content: str | bytes) -> object:
    path = folder / "file.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return read_yaml(path)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: 3e-4", {"a": 0.0003}),
        ("a: -1E+5", {"a": -1e5}),
        ("a: .5e3", {"a": 500.0}),
        ("a: 1.5e-3", {"a": 0.0015}),
        ("a: '3e-4'", {"a": "3e-4"}),
        ("a: 2020-01-01", {"a": "2020-01-01"}),
        ("a: [1, two]", {"a": [1, "two"]}),
        ("", None),
        ("# only a comment", None),
        ("\ufeffa: 1", {"a": 1}),
        ("a: null", {"a": None}),
        ("a: 1\r\nb: 2", {"a": 1, "b": 2}),
        ("x: &x {a: 1}\ny: {<<: *x, b: 2}", {"x": {"a": 1}, "y": {"a": 1, "b": 2}}),
    ],
)
def test_values(tmp_path: Path, text: str, value: object) -> None:
    assert read(tmp_path, text) == value


BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "\n".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
REFUSED = {
    "twice": ("run:\n  seed: 1\n  seed: 2", "'seed' stands twice.* line 3"),
    "tag": ("a: !!python/object/apply:os.system ['true']", "plain values"),
    "two documents": ("a: 1\n---\nb: 1", "another document"),
    "syntax": ("a: [1", "line 1"),
    "tab": ("a:\n\tb: 1", "line 2"),
    "not utf-8": (b"a: \xff", "not UTF-8 at byte 3"),
    "nul": (b"a: \x00", "plain values"),
    "deep": ("[" * 5000, "nested"),
    "deep block": ("- " * 5000 + "a", "nested"),
    "bomb": (BOMB, "more than 50,000 values"),
    "itself": ("a: &a [*a]", "more than 50,000 values"),
    "digits": ("a: " + "9" * 9000, "plain values"),
    "list as key": ("? [a]\n: 1", "plain values"),
    "too large": ("#" * 2**21, "at most"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_one_line_that_names_the_file(tmp_path: Path, name: str) -> None:
    text, reason = REFUSED[name]
    started = time.perf_counter()
    with pytest.raises(UserError, match=reason) as error:
        read(tmp_path, text)
    assert "file.yaml" in str(error.value) and "\n" not in str(error.value)
    assert time.perf_counter() - started < 10


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(UserError, match=path.name):
            read_yaml(path)


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8", exclude_characters="\x85\ufeff"))
    | st.from_regex(r"[-+]?[0-9._]{1,6}([eE][-+]?[0-9]{1,3})?", fullmatch=True),
    lambda values: (
        st.lists(values, max_size=3) | st.dictionaries(st.text("abc_3e", min_size=1, max_size=4), values, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(value=PLAIN)
def test_written_values_are_read_back_equal(tmp_path_factory: pytest.TempPathFactory, value: object) -> None:
    assert read(tmp_path_factory.getbasetemp(), dump_yaml({"a": value})) == {"a": value}


@settings(max_examples=200, deadline=None)
@given(content=st.binary(max_size=60) | st.text("ab:-[]{}&*!|>'\"#%@ \n\t1e", max_size=60).map(str.encode))
def test_any_bytes_give_a_value_or_the_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    try:
        read(tmp_path_factory.getbasetemp(), content)
    except UserError as error:
        assert "file.yaml" in str(error)
