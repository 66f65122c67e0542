"""Checkpoints: whole or not at all, the one before kept, torn ones passed over, no code run; metrics hold each step
once."""

import json
import pickle
import resource
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from nas.training.checkpoint import CURRENT, PREVIOUS, MetricsLog, restore, save_checkpoint
from supernet.errors import UserError


class State:
    """What a loop keeps."""

    def __init__(self) -> None:
        self.step, self.weights = -1, torch.zeros(3)

    def load(self, saved: dict[str, Any]) -> None:
        self.step, self.weights = saved["step"], saved["weights"]


def save(folder: Path, step: int) -> None:
    save_checkpoint(folder, {"step": step, "weights": torch.arange(3.0) + step})


def loaded(folder: Path) -> State:
    state = State()
    restore(state, folder)
    return state


@pytest.fixture
def two(tmp_path: Path) -> Path:
    save(tmp_path, 4)
    save(tmp_path, 8)
    return tmp_path


def test_the_newest_is_loaded_and_the_one_before_is_kept(two: Path, capsys: pytest.CaptureFixture) -> None:
    assert sorted(path.name for path in two.iterdir()) == sorted([CURRENT, PREVIOUS])
    state = loaded(two)
    assert state.step == 8 and state.weights.tolist() == [8, 9, 10]
    assert torch.load(two / PREVIOUS, weights_only=True)["step"] == 4
    assert capsys.readouterr().err == ""


def test_nothing_is_loaded_where_there_is_none(tmp_path: Path) -> None:
    assert loaded(tmp_path).step == -1


def damage(path: Path, kind: str) -> None:
    data = path.read_bytes()
    if kind == "flipped":  # one bit of the weights
        place = data.index(torch.arange(8.0, 11.0).numpy().tobytes())
        data = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
    else:
        data = {
            "empty": b"",
            "half": data[: len(data) // 2],
            "short": data[:-1],
            "text": b"not a zip",
            "zeros": bytes(len(data)),
        }[kind]
    path.write_bytes(data)


@pytest.mark.parametrize("kind", ["flipped", "half", "short", "empty", "text", "zeros"])
def test_a_torn_file_is_passed_over_with_a_warning(two: Path, kind: str, capsys: pytest.CaptureFixture) -> None:
    damage(two / CURRENT, kind)
    assert loaded(two).step == 4
    err = capsys.readouterr().err
    assert err.startswith("warning: ") and CURRENT in err and "corrupt" in err and "step 4" in err


def test_when_both_are_torn_it_is_said_in_one_line(two: Path) -> None:
    damage(two / CURRENT, "half")
    damage(two / PREVIOUS, "short")
    with pytest.raises(
        UserError, match=r"checkpoint\.pt: the checkpoint is corrupt, and there is no earlier one"
    ) as error:
        loaded(two)
    assert "\n" not in str(error.value)


def test_a_kill_between_the_two_renames_loses_nothing(two: Path, capsys: pytest.CaptureFixture) -> None:
    (two / CURRENT).replace(two / PREVIOUS)
    assert loaded(two).step == 8 and "going on from" in capsys.readouterr().err


def test_a_failed_write_leaves_the_last_good_one_in_place(two: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))  # the file may not grow, as on a full disk
    try:
        with pytest.raises(OSError, match="File too large.*checkpoint.pt"):
            save(two, 12)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert loaded(two).step == 8 and torch.load(two / PREVIOUS)["step"] == 4
    assert sorted(path.name for path in two.iterdir()) == sorted([CURRENT, PREVIOUS])


class Hostile:
    """Unpickles by making a file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple:
        return Path.touch, (self.path,)


def test_no_code_of_a_checkpoint_is_run(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    torch.save({"step": 1, "x": Hostile(tmp_path / "ran")}, tmp_path / CURRENT)
    with pytest.raises(UserError, match="corrupt"):
        loaded(tmp_path)
    (tmp_path / CURRENT).write_bytes(pickle.dumps(Hostile(tmp_path / "ran")))
    with pytest.raises(UserError, match="corrupt"):
        loaded(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_a_packed_zip_is_not_unpacked(two: Path) -> None:
    """A few kilobytes that stand for gigabytes never reach memory: torch stores, it does not pack."""
    with zipfile.ZipFile(two / CURRENT) as whole, zipfile.ZipFile(two / "packed", "w", zipfile.ZIP_DEFLATED) as packed:
        for entry in whole.infolist():
            packed.writestr(entry.filename, whole.read(entry))
    (two / "packed").replace(two / CURRENT)
    assert loaded(two).step == 4


@pytest.mark.parametrize(
    "stumble", [b"\x80\x02h\x05.", b"\x80\x02.", b"\x80\x02}}K\x01s.", b"\x80\x02cos\nsystem\n.", b"\x80\x02K"]
)
def test_a_pickle_over_which_the_reader_stumbles_is_passed_over(two: Path, stumble: bytes) -> None:
    """Its checksums are right: somebody made it so."""
    with zipfile.ZipFile(two / CURRENT) as whole, zipfile.ZipFile(two / "made", "w") as made:
        for entry in whole.infolist():
            made.writestr(entry.filename, stumble if entry.filename.endswith("data.pkl") else whole.read(entry))
    (two / "made").replace(two / CURRENT)
    assert loaded(two).step == 4


@pytest.mark.parametrize("content", [{"step": 3}, [1, 2], {}, {"step": 3, "weights": None, "more": 1}])
def test_a_file_of_something_else_is_refused_in_one_line(tmp_path: Path, content: Any) -> None:
    class Strict(State):
        def load(self, saved: dict[str, Any]) -> None:
            super().load(saved)
            self.weights.sum()

    torch.save(content, tmp_path / CURRENT)
    with pytest.raises(UserError, match=r"checkpoint\.pt: ") as error:
        restore(Strict(), tmp_path)
    assert "\n" not in str(error.value)


def log(path: Path, steps: range, last: int = 0) -> None:
    with MetricsLog(path, last) as metrics:
        for step in steps:
            metrics.write(step=step, loss=step / 2)


def steps(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def test_lines_after_the_checkpoint_are_cut(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log(path, range(1, 9))
    log(path, range(5, 11), last=4)
    assert steps(path) == list(range(1, 11))


@pytest.mark.parametrize(
    "torn",
    [
        '{"step": 3, "lo',
        "\x00\x00\x00",
        "[1]",
        '{"loss": 2}',
        '{"step": "x"}',
        "[" * 9999,
        r'{"step": 3, "a": "\ud800"}',
    ],
)
def test_a_torn_line_ends_what_is_kept(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "metrics.jsonl"
    log(path, range(1, 3))
    path.write_text(path.read_text() + torn)
    log(path, range(3, 5), last=8)
    assert steps(path) == [1, 2, 3, 4]


def test_lines_are_on_file_as_soon_as_they_are_written_and_strict_json(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path, 0) as metrics:
        metrics.write(step=1, loss=float("nan"), held_out_loss=float("inf"), other=None)
        assert json.loads(path.read_text(), parse_constant=pytest.fail) == {
            "step": 1,
            "loss": None,
            "held_out_loss": None,
            "other": None,
        }
