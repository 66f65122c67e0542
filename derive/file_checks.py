"""Checks of values read from JSON or YAML that nobody has vouched for; each error names the path of what is wrong."""

import math
import re
from collections.abc import Collection, Mapping
from typing import Any

from supernet.errors import SettingError, did_you_mean
from supernet.settings import check_int

# A name becomes a folder: no separators, no control or lone surrogate characters, no leading dot, at most 120
# characters.
NAME = re.compile(r"(?!\.)[^/\\\x00-\x1f\x7f\ud800-\udfff]{1,120}")
LARGEST_COUNT = 10**20  # of parameters, FLOPs and the like


def check_object(value: Any, path: str, known: Collection[str] | None = None) -> Mapping[str, Any]:
    """The value itself when it is an object, with no keys but `known` where those are given."""
    if not isinstance(value, Mapping):
        raise SettingError(path or "file", f"expected an object, got {_kind(value)}")
    for key in value:
        if known is not None and key not in known:
            raise SettingError(join(path, key), f"unknown key{did_you_mean(key, known)}")
    return value


def check_list(value: Any, path: str) -> list[Any]:
    """The value itself when it is a list."""
    if not isinstance(value, list):
        raise SettingError(path, f"expected a list, got {_kind(value)}")
    return value


def check_text(value: Any, path: str) -> str:
    """The value itself when it is text that can be written as UTF-8."""
    if not isinstance(value, str):
        raise SettingError(path, f"expected text, got {_kind(value)}")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise SettingError(path, "holds a lone surrogate, which is no character")
    return value


def check_name(value: Any, path: str) -> str:
    """The value itself when it is text that can be the name of a folder."""
    if not NAME.fullmatch(check_text(value, path)):
        raise SettingError(
            path, f"expected 1 to 120 characters without / and \\ and no dot in front, got {value[:130]!r}"
        )
    return value


def check_bool(value: Any, path: str) -> bool:
    """The value itself when it is true or false."""
    if not isinstance(value, bool):
        raise SettingError(path, f"expected true or false, got {_kind(value)}")
    return value


def check_count(value: Any, path: str) -> int:
    """The value itself when it is an integer from 0 to 10^20."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGEST_COUNT:
        raise SettingError(path, f"expected an integer from 0 on, got {_kind(value)}")
    return value


def check_number(value: Any, path: str, *, least: float = 0.0) -> float:
    """The value itself when it is a finite number, not a bool, from `least` on."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < least:
        raise SettingError(path, f"expected a finite number from {least:g} on, got {_kind(value)}")
    return value


def check_number_or_null(value: Any, path: str) -> float | None:
    """The value itself when it is null or a finite number from 0 on."""
    return None if value is None else check_number(value, path)


def join(path: str, key: Any) -> str:
    """`path.key`, or the key alone at the top; a key that would break the line is quoted."""
    shown = str(key) if str(key).isprintable() else repr(key)
    return f"{path}.{shown}" if path else shown


def check_evidence(value: Any, layers: int) -> None:
    """An architecture file's "evidence" for that many layers; keys beside the known ones are let through."""
    evidence = check_object(value, "evidence")
    candidates = [check_text(v, f"evidence.candidates[{i}]") for i, v in _items(evidence, "candidates")]
    rows = list(_items(evidence, "probabilities"))
    if rows and len(rows) != layers:
        raise SettingError("evidence.probabilities", f"has {len(rows)} rows, but there are {layers} layers")
    for row, values in rows:
        path = f"evidence.probabilities[{row}]"
        if len(check_list(values, path)) != len(candidates):
            raise SettingError(path, f"has {len(values)} numbers, but there are {len(candidates)} candidates")
        for column, number in enumerate(values):
            if check_number(number, f"{path}[{column}]") > 1:
                raise SettingError(f"{path}[{column}]", f"expected a probability from 0 to 1, got {number}")
    for index, rule in _items(evidence, "rules"):
        _check_texts(rule, f"evidence.rules[{index}]", needed=("rule",), optional=("reason",))
        if "supported" in rule and rule["supported"] is not None:
            check_bool(rule["supported"], f"evidence.rules[{index}].supported")
    for index, entry in _items(evidence, "overruled"):
        path = f"evidence.overruled[{index}]"
        _check_texts(entry, path, needed=("preferred", "chosen", "rule"))
        if check_int(entry.get("layer"), f"{path}.layer", least=0) >= layers:
            raise SettingError(f"{path}.layer", f"expected a layer from 0 to {layers - 1}, got {entry['layer']}")
    if "verdict" in evidence:
        verdict = check_object(evidence["verdict"], "evidence.verdict")
        check_bool(verdict.get("converged"), "evidence.verdict.converged")
        for index, reason in enumerate(check_list(verdict.get("reasons", []), "evidence.verdict.reasons")):
            check_text(reason, f"evidence.verdict.reasons[{index}]")


def check_cost(value: Any) -> None:
    """An architecture file's "cost"."""
    cost = check_object(value, "cost", ("parameters", "flops_per_token", "latency_ms", "relative_to_interleaved"))
    for key in ("parameters", "flops_per_token"):
        if key in cost:
            check_count(cost[key], f"cost.{key}")
    check_number_or_null(cost.get("latency_ms"), "cost.latency_ms")
    if "relative_to_interleaved" in cost:
        path = "cost.relative_to_interleaved"
        for key, number in check_object(cost["relative_to_interleaved"], path, ("flops", "latency")).items():
            check_number_or_null(number, f"{path}.{key}")


def check_retrain(value: Any) -> None:
    """An architecture file's "retrain"."""
    retrain = check_object(value, "retrain", ("steps", "lr", "batch_size", "seq_len"))
    for key in ("steps", "batch_size", "seq_len"):
        if key in retrain:
            check_int(retrain[key], f"retrain.{key}", least=0)
    if "lr" in retrain:
        check_number(retrain["lr"], "retrain.lr")


def check_provenance(value: Any) -> None:
    """An architecture file's "provenance"; keys beside the known ones are let through."""
    provenance = check_object(value, "provenance")
    for key in ("run", "selection"):
        if key in provenance:
            check_text(provenance[key], f"provenance.{key}")
    for key in ("seed", "step"):
        if provenance.get(key) is not None:
            check_int(provenance[key], f"provenance.{key}", least=0)
    for key in ("data", "versions"):
        if key in provenance:
            check_object(provenance[key], f"provenance.{key}")
    for key, entry in provenance.get("data", {}).items():
        if key in ("name", "sha256"):
            check_text(entry, f"provenance.data.{key}")


def _items(values: Mapping[str, Any], key: str) -> list[tuple[int, Any]]:
    return list(enumerate(check_list(values.get(key, []), f"evidence.{key}")))


def _check_texts(value: Any, path: str, *, needed: tuple[str, ...], optional: tuple[str, ...] = ()) -> None:
    entry = check_object(value, path)
    for key in needed:
        if key not in entry:
            raise SettingError(path, f"has no {key!r}")
    for key in (*needed, *optional):
        if key in entry:
            check_text(entry[key], f"{path}.{key}")


def _kind(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{type(value).__name__} {shown[:50]}..."
