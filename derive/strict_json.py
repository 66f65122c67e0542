"""Standard JSON only, read strictly and written the same way every time."""

import json
import math
import os
import re
import tempfile
from pathlib import Path
from typing import Any

from supernet.errors import UserError

LARGEST_FILE = 64 * 2**20  # bytes; a real run's largest file is a few megabytes
MOST_PARTS = 2_000_000  # lists and objects, of which each takes thirty times its text
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")


def loads(text: str | bytes, name: str = "text") -> Any:
    """The value in `text`. UserError, naming `name`, for bad syntax or UTF-8, NaN, Infinity, duplicate keys, too deep
    nesting."""
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        if text.count("[") + text.count("{") > MOST_PARTS:
            raise UserError(f"{name}: more than {MOST_PARTS:,} lists and objects, so not one of this tool's files")
        value = json.loads(
            text,
            object_pairs_hook=_no_duplicates,
            parse_constant=_no_constant,
            parse_float=_finite,
            parse_int=_bounded_int,
        )
        if _SURROGATE.search(text):
            _refuse_surrogates(value, "")
        return value
    except UnicodeDecodeError as error:
        raise UserError(f"{name}: not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{name}: not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise UserError(f"{name}: nested too deeply") from None
    except _BadValue as error:
        raise UserError(f"{name}: {error}") from None


def _refuse_surrogates(value: Any, path: str) -> None:
    """Text with half a surrogate pair could be read, but never written again."""
    if isinstance(value, dict):
        for key, item in value.items():
            _refuse_surrogates(key, path)
            _refuse_surrogates(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _refuse_surrogates(item, f"{path}[{index}]")
    elif isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value):
        raise _BadValue(
            f"{path}: holds a lone surrogate, which is no character"
            if path
            else "holds a lone surrogate, which is no character"
        )


def read_json(path: str | Path) -> Any:
    """The value in a file; UserError names the file when it is missing, too large or not strict JSON."""
    return loads(read_bytes(path), str(path))


def read_bytes(path: str | Path) -> bytes:
    """A file's bytes, at most LARGEST_FILE of them; UserError names the file when it cannot be read."""
    path = Path(path)
    try:
        if path.stat().st_size <= LARGEST_FILE:
            with open(path, "rb") as file:
                data = file.read(LARGEST_FILE + 1)  # a device or pipe has no size beforehand
            if len(data) <= LARGEST_FILE:
                return data
        raise UserError(f"{path}: larger than {LARGEST_FILE} bytes, so not one of this tool's files")
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None


def dumps(value: Any) -> str:
    """`value` as indented JSON with short lists on one line; a float that is not finite becomes null."""
    return _render(_without_nonfinite(value), "") + "\n"


def dumps_line(value: Any) -> str:
    """`value` on one line, for JSON lines; a float that is not finite becomes null."""
    return json.dumps(_without_nonfinite(value), ensure_ascii=False, allow_nan=False) + "\n"


def write_json(path: str | Path, value: Any) -> None:
    """Write `value` as JSON, atomically."""
    write_atomic(path, dumps(value).encode("utf-8"))


def write_atomic(path: str | Path, data: bytes) -> None:
    """Write bytes to a temporary name beside `path`, flush them to disk and rename: readers see the old file or the new
    one."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:  # a full disk does not say which file it was
            error.filename = str(path)
        raise


class _BadValue(Exception):
    pass


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))
        raise _BadValue(f"key {twice!r} stands twice in one object")
    return result


def _no_constant(word: str) -> None:
    raise _BadValue(f"{word} is not standard JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise _BadValue(f"number {digits[:40]} is too large")
    return number


def _bounded_int(digits: str) -> int:
    if len(digits) > 20:
        raise _BadValue(f"number {digits[:20]}... is too large")
    return int(digits)


def _without_nonfinite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _without_nonfinite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nonfinite(item) for item in value]
    return value


def _render(value: Any, indent: str) -> str:
    flat = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if not isinstance(value, (dict, list)) or not value or len(flat) + len(indent) <= 110:
        return flat
    deeper = indent + "  "
    if isinstance(value, dict):
        items = [
            f"{deeper}{json.dumps(key, ensure_ascii=False)}: {_render(item, deeper)}" for key, item in value.items()
        ]
        return "{\n" + ",\n".join(items) + f"\n{indent}}}"
    return "[\n" + ",\n".join(deeper + _render(item, deeper) for item in value) + f"\n{indent}]"
