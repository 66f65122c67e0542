"""The run folder: made once, never overwritten, one writer."""

import dataclasses
import fcntl
import os
import re
from pathlib import Path
from typing import Any, TextIO

from derive.strict_json import read_json, write_atomic, write_json
from nas.config.run_config import load_run_config
from nas.config.sections import Config
from nas.machine.distributed import processes
from nas.machine.messages import warn
from supernet.errors import RunFailed, SettingError, UserError

# Keys that may differ when a run goes on: they change no number of the result, on the same device to the bit.
HARMLESS = ("run.dir", "run.resume", "run.checkpoint_every", "run.device", "run.tensorboard")
ROWS = "rows_a_step"  # of data.json: data.batch_size times the processes of torchrun


def choose_folder(config: Config) -> Path:
    """`run.dir`, or the first free `runs/NAME-K` below the current folder. SettingError for a name that no folder can
    have."""
    if config.run.dir is not None:
        folder = Path(config.run.dir)
        try:
            folder.joinpath("config.yaml").exists()
        except OSError as error:
            raise SettingError("run.dir", f"{folder}: {error.strerror}; give a folder that can be made") from None
        return folder
    if config.run.resume:
        raise SettingError("run.resume", "needs run.dir, the folder of the run to go on with")
    number = 1
    while (folder := Path("runs") / f"{config.data.name}-{number}").exists():
        number += 1
    return folder


def open_run_folder(config: Config, folder: Path, data: dict[str, Any]) -> TextIO:
    """Make the folder, or check that it may go on; write `config.yaml`, then `data.json`. Returns the held lock.

    Raises UserError when the folder holds a run and `run.resume` is false, when a key differs from the run's that is
    not in HARMLESS, or when another process works on the run.
    """
    try:
        holds_run = (folder / "config.yaml").exists()
        if holds_run and not config.run.resume:
            raise SettingError(
                "run.dir", f"{folder} holds a run; give another folder, or --run.resume true to go on with it"
            )
        if not holds_run and folder.exists() and not all(path.name.startswith(".") for path in folder.iterdir()):
            raise SettingError("run.dir", f"{folder} is not empty and holds no run; give another folder")
        data = {**data, ROWS: config.data.batch_size * processes()}
        before = read_json(folder / "data.json") if (folder / "data.json").exists() else None
        if holds_run:
            _check_same(load_run_config(folder), config, folder, same_rows=_same_rows(before, data))
        folder.mkdir(parents=True, exist_ok=True)
        lock = _lock(folder)
        _remove_torn_files(folder)
        if not holds_run:
            stored = dataclasses.replace(config, run=dataclasses.replace(config.run, dir=str(config.run.dir or folder)))
            write_atomic(folder / "config.yaml", stored.to_yaml().encode("utf-8"))
        if before is None:
            write_json(folder / "data.json", data)
        else:
            _check_same_data(before, data)
        return lock
    except OSError as error:
        raise SettingError(
            "run.dir", f"cannot write to {folder}: {error.strerror or error}; give a folder that can be made"
        ) from None


def require_held(lock: TextIO, folder: Path) -> None:
    """RunFailed where the folder is not the one that `lock` is of: it was removed or moved away, and stages make
    folders anew."""
    path = folder / ".lock"
    if not path.exists() or not os.path.samestat(path.stat(), os.fstat(lock.fileno())):
        raise RunFailed(
            f"{folder}: the run folder was removed or moved away while the run went on; move it back and go on with "
            "--run.resume true, or start anew in another"
        )


def flat(config: Config) -> dict[str, Any]:
    """`section.key` -> value."""
    return {
        f"{section}.{key}": value for section, keys in dataclasses.asdict(config).items() for key, value in keys.items()
    }


def _same_rows(before: Any, now: dict[str, Any]) -> bool:
    """Whether a step takes as many rows as the run's steps did; a warning where it does not."""
    rows = before.get(ROWS) if isinstance(before, dict) else None
    if rows is not None and rows != now[ROWS]:
        warn(
            f"run.resume: a step took {rows} rows and now takes {now[ROWS]} (data.batch_size times the processes): "
            "not the same run any more"
        )
    return rows == now[ROWS]


def _check_same(old: Config, new: Config, folder: Path, same_rows: bool) -> None:
    before, after = flat(old), flat(new)
    harmless = (*HARMLESS, "data.batch_size", "data.micro_batch_size") if same_rows else HARMLESS
    changed = [key for key in before if before[key] != after[key] and key not in harmless]
    if changed:
        shown = ", ".join(f"{key} (was {before[key]!r}, now {after[key]!r})" for key in changed[:5])
        raise UserError(
            f"run.resume: the run was started with other settings: {shown}; only {', '.join(HARMLESS)} may change, and "
            "data.batch_size and data.micro_batch_size when with the number of processes they leave the rows of a "
            "step as they were "
            f"(--config {folder / 'config.yaml'} gives the run's own)"
        )


def _remove_torn_files(folder: Path) -> None:
    """Delete what a killed process had begun to write: `.NAME.` and eight letters or `tmp`."""
    for path in folder.rglob(".*"):
        if path.is_file() and re.fullmatch(r"\..+\.(tmp|[a-z0-9_]{8})", path.name):
            path.unlink()


def _check_same_data(before: Any, now: dict[str, Any]) -> None:
    changed = [
        key
        for key in ("sha256", "vocab_size", "parts")
        if not isinstance(before, dict) or before.get(key) != now.get(key)
    ]
    if changed:
        raise SettingError(
            "data.path",
            f"the text is not the one that the run was started with ({', '.join(changed)} of data.json differ)",
        )


def _lock(folder: Path) -> TextIO:
    lock = open(folder / ".lock", "a+", encoding="utf-8")  # noqa: SIM115 - closed by its owner
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise UserError(f"run.dir: another process works on {folder}; wait for it or give another folder") from None
    os.set_inheritable(lock.fileno(), False)
    return lock
