"""Any bytes in a file that nobody vouches for give a valid object or the documented error, whichever reader they
meet."""

import contextlib
import json
import time
from pathlib import Path

import pytest
from hostile import MARKUP, PAGES, READERS, prepare
from hypothesis import HealthCheck, given, settings

from derive import strict_json
from derive.strict_json import loads, read_bytes
from supernet.errors import UserError


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare(tmp_path_factory.mktemp("hostile"))


@pytest.mark.parametrize("name", READERS)
def test_any_bytes_give_a_value_or_the_error(home: Path, name: str) -> None:
    reader = READERS[name]
    path = home / reader.file
    valid = path.read_bytes()
    reader.read(home)

    @settings(max_examples=30, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(content=reader.mutations(valid))
    def try_one(content: bytes) -> None:
        path.write_bytes(content)
        with contextlib.suppress(UserError):
            reader.read(home)

    try:
        try_one()
    finally:
        path.write_bytes(valid)


WRONG = {
    "sweep": ["baseline", "points", "seeds", "chosen"],
    "comparison": [],
    "best": ["evidence", "cost", "provenance", "name", "pattern", "model"],
    "latency": ["candidates", "lengths"],
    "data": ["bytes", "name"],
}


@pytest.mark.parametrize("name", WRONG)
def test_a_page_of_wrong_types_is_refused_or_shown_escaped(home: Path, name: str) -> None:
    reader = PAGES[f"{name}, page"]
    path = home / reader.file
    valid = path.read_bytes()
    try:
        for key in WRONG[name]:
            path.write_text(json.dumps({**json.loads(valid), key: [MARKUP]}))
            try:
                reader.read(home)  # it looks for the markup itself
            except UserError as error:
                assert path.name in str(error)
    finally:
        path.write_bytes(valid)


@pytest.mark.parametrize("text", [r'"\ud800"', r'{"\uDFFF": 1}', '["\udc80"]'])
def test_a_lone_surrogate_is_refused_since_it_could_not_be_written_again(text: str) -> None:
    with pytest.raises(UserError, match="surrogate"):
        loads(text, "file.json")
    assert loads(r'"\ud83d\ude42 \\ud800"') == "\U0001f642 \\ud800"


def test_what_has_no_end_is_not_read_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strict_json, "LARGEST_FILE", 1000)
    (tmp_path / "large").write_bytes(bytes(1001))
    for path in (tmp_path / "large", Path("/dev/zero")):
        with pytest.raises(UserError, match=f"{path.name}: larger than 1000 bytes"):
            read_bytes(path)
    (tmp_path / "large").write_bytes(bytes(1000))
    assert read_bytes(tmp_path / "large") == bytes(1000)


def test_millions_of_lists_are_refused_before_they_are_made() -> None:
    started = time.perf_counter()
    with pytest.raises(UserError, match="file.json: more than 2,000,000 lists and objects"):
        loads("[" + "[]," * 2_000_000 + "0]", "file.json")
    assert time.perf_counter() - started < 1
