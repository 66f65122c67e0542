"""Checkpoints that survive a kill at any moment, and metrics that hold each step once."""

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import torch

from derive.strict_json import dumps_line, write_atomic
from supernet.errors import UserError

PREVIOUS = "checkpoint.previous.pt"
CURRENT = "checkpoint.pt"


def save_checkpoint(folder: Path, state: dict[str, Any]) -> None:
    """Write `checkpoint.pt` whole or not at all; the one before it stays as `checkpoint.previous.pt`."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    current = folder / CURRENT
    if current.exists():
        current.replace(folder / PREVIOUS)
    write_atomic(current, buffer.getvalue())


def load_checkpoint(folder: Path) -> dict[str, Any] | None:
    """The newest state that is whole, or None where there is none; a corrupt file is passed over (zip checksums)."""
    found = [path for path in (folder / CURRENT, folder / PREVIOUS) if path.exists()]
    for path in found:
        if _is_whole(path):
            return torch.load(path, map_location="cpu", weights_only=True)
    if found:
        raise UserError(f"{found[0]}: the checkpoint is corrupt, and there is no earlier one; start the run in another folder")
    return None


def _is_whole(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except (zipfile.BadZipFile, OSError, EOFError):
        return False


class MetricsLog:
    """`metrics.jsonl`: one object a line, appended as it comes; lines after step `last_step` of a resumed run are cut."""

    def __init__(self, path: Path, last_step: int):
        kept = [line for line in _whole_lines(path) if line["step"] <= last_step]
        write_atomic(path, "".join(map(dumps_line, kept)).encode("utf-8"))
        self._file = open(path, "a", encoding="utf-8")

    def write(self, **values: Any) -> None:
        """Append one line; a value that is not finite becomes null."""
        self._file.write(dumps_line(values))
        self._file.flush()

    def __enter__(self) -> "MetricsLog":
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()


def _whole_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of an earlier process; its last one may be torn."""
    if not path.exists():
        return []
    lines = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            lines.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return lines
