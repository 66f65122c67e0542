"""The live view keeps to its share of the time; TensorBoard's log holds the metrics."""

from pathlib import Path

import torch
from made_runs import build_run

from nas.searching.live import DELAY, SHARE, LiveView, TensorBoardLog
from nas.stages.jobs import draw_picture, write_page


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_drawing_waits_until_it_is_within_its_share(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", layers=2, candidates=2, steps=4, stages=("search",))
    clock = Clock()
    drawers = {
        name: lambda folder, seconds=seconds: setattr(clock, "now", clock.now + seconds)
        for name, seconds in (("picture", 1.0), ("page", 5.0))
    }
    view = LiveView(run, drawers, clock)
    drawn = []
    for _ in range(4000):
        clock.now += 1.0
        drawn += view.refresh()
        assert sum(view.spent.values()) <= SHARE * clock.now + 6.0  # what the first of each costs is not known before
    assert sum(view.spent.values()) <= SHARE * clock.now
    assert drawn.count("picture") > 3 and drawn.count("page") >= 2


def test_the_first_picture_and_page_are_real_files(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run", layers=2, candidates=2, steps=4, stages=("search",))
    clock = Clock()
    view = LiveView(run, {"picture": draw_picture, "page": write_page}, clock)
    assert view.refresh() == []
    clock.now = 3 * DELAY
    assert view.refresh() == ["picture", "page"]
    assert (run / "plots" / "live.png").read_bytes()[:4] == b"\x89PNG"
    assert "<html" in (run / "report.html").read_text(encoding="utf-8")


def test_tensorboard_holds_scalars_and_the_heat_map(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = TensorBoardLog(tmp_path, True, 0)
    for step in (1, 2, 5):
        board.write({"step": step, "phase": "search", "loss": step / 4, "held_out_loss": None}, torch.full((3, 2), 0.5))
    board.close()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert events.Tags()["scalars"] == ["loss"] and events.Tags()["images"] == ["probabilities"]
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(1, 0.25), (2, 0.5), (5, 1.25)]


def test_no_tensorboard_unless_asked_for(tmp_path: Path) -> None:
    board = TensorBoardLog(tmp_path, False, 0)
    board.write({"step": 1, "loss": 1.0})
    board.close()
    assert list(tmp_path.iterdir()) == []
