"""The run folder: never overwritten, one writer, and gone on with only under the same settings."""

import dataclasses
import json
import os
from pathlib import Path

import pytest
from tiny_runs import tiny

from nas.config.run_config import load_run_config
from nas.config.sections import Config
from nas.results.run_folder import HARMLESS, choose_folder, flat, open_run_folder
from supernet.errors import UserError

DATA = {"name": "sotu", "sha256": "5", "vocab_size": 256, "parts": {}}


def opened(config: Config, folder: Path) -> None:
    open_run_folder(config, folder, DATA).close()


def resumed(config: Config, **changes: object) -> Config:
    return dataclasses.replace(config, run=dataclasses.replace(config.run, resume=True, **changes))


def test_the_folder_is_run_dir_or_the_first_free_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert choose_folder(tiny(run__dir="here/there")) == Path("here/there")
    assert choose_folder(tiny()) == Path("runs/sotu-1")
    Path("runs/sotu-1").mkdir(parents=True)
    Path("runs/sotu-3").mkdir()
    assert choose_folder(tiny()) == Path("runs/sotu-2")
    with pytest.raises(UserError, match="^run.resume: needs run.dir"):
        choose_folder(tiny(run__resume=True))


def test_the_resolved_configuration_is_kept_and_is_read_back_equal(tmp_path: Path) -> None:
    config = tiny(run__dir=str(tmp_path / "run"), search__weight_lr=3e-5, search__budget=None)
    opened(config, tmp_path / "run")
    assert load_run_config(tmp_path / "run") == config
    assert json.loads((tmp_path / "run" / "data.json").read_text()) == {**DATA, "rows_a_step": 3}


def test_a_folder_that_holds_a_run_is_refused_unless_resumed(tmp_path: Path) -> None:
    opened(tiny(), tmp_path)
    before = (tmp_path / "config.yaml").read_bytes()
    with pytest.raises(UserError, match="^run.dir: .*holds a run.*--run.resume true"):
        opened(tiny(run__seed=1), tmp_path)
    opened(resumed(tiny()), tmp_path)
    assert (tmp_path / "config.yaml").read_bytes() == before


def test_resume_starts_where_there_is_no_run(tmp_path: Path) -> None:
    opened(resumed(tiny()), tmp_path / "new")
    assert (tmp_path / "new" / "config.yaml").exists()


def test_a_folder_with_other_files_is_refused_untouched(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    for config in (tiny(), resumed(tiny())):
        with pytest.raises(UserError, match="^run.dir: .*not empty and holds no run"):
            opened(config, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_what_a_kill_left_before_the_first_file_is_no_hindrance(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    (tmp_path / ".config.yaml.ab12cd34").write_text("half")
    opened(tiny(), tmp_path)
    assert not (tmp_path / ".config.yaml.ab12cd34").exists() and load_run_config(tmp_path)


def test_torn_files_are_removed_on_resume_and_others_are_not(tmp_path: Path) -> None:
    opened(tiny(), tmp_path)
    home = tmp_path / "retrain" / "par" / "seed-0"
    home.mkdir(parents=True)
    torn = [home / ".model.safetensors.tmp", tmp_path / ".checkpoint.pt.tmp", tmp_path / ".data.json.x_9abcde"]
    kept = [home / "model.safetensors", tmp_path / ".gitignore", tmp_path / ".hidden.notes.txt"]
    for path in (*torn, *kept):
        path.touch()
    opened(resumed(tiny()), tmp_path)
    assert not any(path.exists() for path in torn) and all(path.exists() for path in kept)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("started")
    opened(tiny(), folder)
    return folder


def other_value(key: str, value: object) -> object:
    special = {
        "run.device": "cpu:",
        "data.path": "x",
        "derive.rules": [{"block": "identity", "at_most": 2}],
        "run.precision": "fp32",
        "search.blocks": ["self_attention", "feed_forward"],
        "search.relaxation": "gumbel",
        "search.cost": "none",
        "model.norm": "post",
        "model.position": "none",
        "model.task": "causal_lm",
        "derive.selection": "average",
        "model.max_len": 20,
        "derive.cut": 0.5,
        "derive.ratio": 2.0,
        "derive.budget": 0.5,
        "data.name": "text",
        "data.tokens": "chars",
        "model.memory_len": 0,
        "retrain.against": [],
        "retrain.architectures": [],
        "search.warmup_steps": 7,
    }
    if key in special:
        return special[key]
    return not value if isinstance(value, bool) else value * 2 if value else 1


@pytest.mark.parametrize(
    "key",
    [
        key
        for key in flat(Config())
        if key not in ("model.task", "model.memory_len", "data.micro_batch_size", *HARMLESS)
    ],
)
def test_a_changed_key_is_refused_by_name(started: Path, key: str) -> None:
    section, name = key.split(".")
    config = resumed(tiny())
    value = other_value(key, getattr(getattr(config, section), name))
    changed = dataclasses.replace(config, **{section: dataclasses.replace(getattr(config, section), **{name: value})})
    with pytest.raises(UserError, match=rf"^run.resume: .*{key} \(was ") as error:
        opened(changed, started)
    assert repr(value) in str(error.value)


def test_several_changed_keys_are_all_named(tmp_path: Path) -> None:
    opened(tiny(), tmp_path)
    with pytest.raises(UserError) as error:
        opened(resumed(tiny(search__steps=30, retrain__lr=0.5)), tmp_path)
    assert "search.steps (was 20, now 30)" in str(error.value) and "retrain.lr (was 0.003, now 0.5)" in str(error.value)
    assert f"--config {tmp_path / 'config.yaml'}" in str(error.value)


def test_harmless_keys_may_change(tmp_path: Path) -> None:
    opened(tiny(run__dir="before"), tmp_path)
    opened(resumed(tiny(run__checkpoint_every=7), dir=str(tmp_path)), tmp_path)


def test_rows_may_run_in_other_parts_as_long_as_a_step_takes_as_many(tmp_path: Path) -> None:
    opened(tiny(data__batch_size=6, data__micro_batch_size=4), tmp_path)
    opened(resumed(tiny(data__batch_size=6, data__micro_batch_size=3)), tmp_path)
    with pytest.raises(UserError, match="data.batch_size .*data.micro_batch_size"):
        opened(resumed(tiny(data__batch_size=3, data__micro_batch_size=3)), tmp_path)


def test_one_writer(tmp_path: Path) -> None:
    busy = pytest.raises(UserError, match="^run.dir: another process works on")
    with open_run_folder(tiny(), tmp_path, DATA), busy:
        opened(resumed(tiny()), tmp_path)
    opened(resumed(tiny()), tmp_path)


def test_a_file_in_the_way_is_the_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UserError, match="^run.dir: cannot write to .*Not a directory"):
            opened(tiny(), folder)
    with pytest.raises(UserError, match="^run.dir: cannot write to .*name too long"):
        opened(tiny(), tmp_path / ("x" * 300))
    with pytest.raises(UserError, match="^run.dir: .*name too long; give a folder"):
        choose_folder(tiny(run__dir="x" * 300))


def test_a_folder_that_cannot_be_written_is_the_users_mistake(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    folder = closed / "run" if os.getuid() else Path("/proc/par-search")
    with pytest.raises(UserError, match="^run.dir: cannot write to"):
        opened(tiny(), folder)


def test_a_damaged_configuration_is_named_by_file_and_key(tmp_path: Path) -> None:
    for text, wanted in (
        ("search: 3", "search: expected keys"),
        ("search:\n  steps: -1", "search.steps: expected"),
        ("[", "not YAML"),
    ):
        (tmp_path / "config.yaml").write_text(text)
        with pytest.raises(UserError, match=f"config.yaml: .*{wanted}"):
            load_run_config(tmp_path)
    with pytest.raises(UserError, match="not a run folder"):
        load_run_config(tmp_path / "none")
