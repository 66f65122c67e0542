"""Checkpoints that survive a kill at any moment, and metrics that hold each step once."""

import io
import zipfile
from pathlib import Path
from typing import Any

import torch

from derive.strict_json import dumps_line, loads, write_atomic
from nas.machine.messages import warn
from supernet.errors import UserError

PREVIOUS = "checkpoint.previous.pt"
CURRENT = "checkpoint.pt"


def save_checkpoint(folder: Path, state: dict[str, Any]) -> None:
    """Write `checkpoint.pt` whole or not at all; the one before it stays as `checkpoint.previous.pt`."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    current, new = folder / CURRENT, folder / f".{CURRENT}.tmp"
    write_atomic(new, buffer.getvalue())  # on disk before the last good one moves
    if current.exists():
        current.replace(folder / PREVIOUS)
    new.replace(current)


def restore(state: Any, folder: Path) -> None:
    """Give `state.load` the newest checkpoint that is whole, where there is one.

    A torn or foreign file (zip checksums, torch's own safe reader) is passed over with a warning on standard error.
    UserError when none of those there can be used.
    """
    found = [path for path in (folder / CURRENT, folder / PREVIOUS) if path.exists()]
    for path in found:
        saved = _read(path)
        if saved is None:
            warn(f"{path} is corrupt; looking for the checkpoint before it")
            continue
        try:
            state.load(saved)
        except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:200]
            raise UserError(
                f"{path}: not a checkpoint of this run: {reason}; start the run in another folder"
            ) from None
        if path.name == PREVIOUS:
            warn(f"going on from {path}, step {saved['step']}")
        return
    if found:
        raise UserError(
            f"{found[0]}: the checkpoint is corrupt, and there is no earlier one; start the run in another folder"
        )


def _read(path: Path) -> dict[str, Any] | None:
    """The state in a file that is a whole zip, nothing in it packed smaller than it is; None for any other."""
    try:
        with zipfile.ZipFile(path) as archive:
            if (
                any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist())
                or archive.testzip() is not None
            ):
                return None
        saved = torch.load(path, map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception:  # torch's safe reader lets through whatever a foreign pickle makes it stumble over
        return None
    return saved if isinstance(saved, dict) else None


class MetricsLog:
    """`metrics.jsonl`: one object a line, appended as it comes; lines after step `last_step` of a resumed run are
    cut."""

    def __init__(self, path: Path, last_step: int):
        self._path = path
        self._open(last_step)

    def cut(self, last_step: int) -> None:
        """Take back the lines after a step."""
        self._file.close()
        self._open(last_step)

    def _open(self, last_step: int) -> None:
        kept = [line for line in _whole_lines(self._path) if line["step"] <= last_step]
        write_atomic(self._path, "".join(map(dumps_line, kept)).encode("utf-8"))
        self._file = open(self._path, "a", encoding="utf-8")  # noqa: SIM115 - closed by its owner

    def write(self, **values: Any) -> None:
        """Append one line; a value that is not finite becomes null."""
        try:
            self._file.write(dumps_line(values))
            self._file.flush()
        except OSError as error:
            error.filename = error.filename or self._file.name
            raise

    def __enter__(self) -> "MetricsLog":
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()


def _whole_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of an earlier process up to the first that is torn."""
    if not path.exists():
        return []
    lines = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            values = loads(line)
            if not isinstance(values["step"], int):
                break
        except (UserError, KeyError, TypeError):
            break
        lines.append(values)
    return lines
