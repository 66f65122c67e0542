"""Patterns such as `(sfff)x6(f)x8`: letters of blocks, and groups that repeat. Pure text in, pure text out.

Grammar: items one after the other; an item is a block's letter, or `( items )` with `xK` behind it, K a number. Spaces
are skipped. `x` is also a letter: right behind `)` and before a digit it repeats, everywhere else it is the block.
"""

from supernet.blocks import BLOCKS, letters
from supernet.errors import SettingError

MAX_LAYERS = 4096  # bounds what a short pattern or a hostile file can ask for
LONGEST_UNIT = 32  # letters in a repeated group of the compressed form


def expand(pattern: str, path: str = "pattern") -> str:
    """The flat string of letters, one a layer. SettingError names `path` and the position (from 0) of what is wrong."""
    if not isinstance(pattern, str):
        raise SettingError(path, f"expected text, got {pattern!r}")
    if len(pattern) > 4 * MAX_LAYERS:
        raise SettingError(path, f"longer than {4 * MAX_LAYERS} characters")
    known = letters()
    opened: list[tuple[int, str]] = []  # of each group still open: its position, and the letters before it
    flat, position = "", 0
    while position < len(pattern):
        character, here = pattern[position], position
        position += 1
        if character == "(":
            opened.append((here, flat))
            flat = ""
        elif character == ")":
            if not opened:
                raise _wrong(path, pattern, here, "closes a group that was not opened")
            if not flat:
                raise _wrong(path, pattern, here, "closes an empty group")
            start, before = opened.pop()
            times, position = _repeats(pattern, position, path)
            _check_length(len(before) + times * len(flat), path, pattern, start)
            flat = before + times * flat
        elif character in known:
            flat += character
            _check_length(len(flat), path, pattern, here)
        elif not character.isspace():
            raise _wrong(path, pattern, here, _why_unknown(character))
    if opened:
        raise _wrong(path, pattern, opened[-1][0], "opens a group that is not closed")
    if not flat:
        raise SettingError(path, "has no layers; expected letters such as 'sfsf' or '(sfff)x6(f)x8'")
    return flat


def compress(flat: str) -> str:
    """The shortest form with groups (not nested) of at most 32 letters; `expand` gives `flat` back."""
    size = len(flat)
    repeats = [_repeat_counts(flat, unit) for unit in range(1, min(LONGEST_UNIT, size // 2) + 1)]
    best: list[tuple[int, str, int]] = [(0, "", size)] * (size + 1)  # from here on: length, first piece, where it ends
    for start in range(size - 1, -1, -1):
        best[start] = (1 + best[start + 1][0], flat[start], start + 1)
        for unit, counts in enumerate(repeats, start=1):
            times = counts[start]
            if times > 1:
                piece, end = f"({flat[start : start + unit]})x{times}", start + times * unit
                if len(piece) + best[end][0] < best[start][0]:
                    best[start] = (len(piece) + best[end][0], piece, end)
    pieces, start = [], 0
    while start < size:
        pieces.append(best[start][1])
        start = best[start][2]
    return "".join(pieces)


INTERLEAVED = ("self_attention", "feed_forward")  # the two blocks of the baseline, which costs are fractions of


def interleaved(layers: int) -> str:
    """`sfsf...`, the baseline that costs are compared with; an odd last layer is attention."""
    return ("sf" * layers)[:layers]


def par_positions(layers: int, cut: float, ratio: float) -> list[int]:
    """Where the rule puts its k = round(N / ratio) attention blocks: stride max(1, round(cut N / k)), the first at 0.

    Where the last one would fall behind the last layer, the largest stride that fits is taken. Raises SettingError for
    a cut outside (0, 1] or a ratio below 1.
    """
    check_cut(cut)
    check_ratio(ratio)
    count = round(layers / ratio)
    if count == 0:
        return []
    return spread(0, layers, count, stride=max(1, round(cut * layers / count)))


def spread(start: int, end: int, count: int, *, stride: int) -> list[int]:
    """`count` layers from `start` on, `stride` apart, or as far apart as keeps the last one before `end`."""
    if count > 1:
        stride = max(1, min(stride, (end - 1 - start) // (count - 1)))
    return [start + index * stride for index in range(count)]


def par_pattern(layers: int, cut: float = 2 / 3, ratio: float = 5) -> str:
    """The PAR rule's layout (Mandava et al. 2020): self-attention at `par_positions`, the rest feed-forward."""
    positions = set(par_positions(layers, cut, ratio))
    return "".join("s" if layer in positions else "f" for layer in range(layers))


def check_cut(cut: float, path: str = "derive.cut") -> float:
    """The value itself when it is a number in (0, 1]; SettingError otherwise."""
    if isinstance(cut, bool) or not isinstance(cut, (int, float)) or not 0 < cut <= 1:
        raise SettingError(path, f"expected a fraction of the depth above 0 and at most 1, got {cut!r}")
    return cut


def check_ratio(ratio: float, path: str = "derive.ratio") -> float:
    """The value itself when it is a finite number from 1 on; SettingError otherwise."""
    if isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not 1 <= ratio < float("inf"):
        raise SettingError(path, f"expected layers per attention block, a number from 1 on, got {ratio!r}")
    return ratio


def _repeats(pattern: str, position: int, path: str) -> tuple[int, int]:
    """How often the group that ended before `position` stands, and the position behind its `xK`."""
    if pattern[position : position + 1] != "x":
        return 1, position
    end = position + 1
    while end < len(pattern) and pattern[end] in "0123456789":
        end += 1
    digits = pattern[position + 1 : end].lstrip("0")
    if end == position + 1:
        return 1, position  # the letter x, not a repetition
    if not digits or len(digits) > 6:
        raise _wrong(path, pattern, position, f"repeats a group {digits[:6] or 0}{'...' if digits else ''} times")
    return int(digits), end


def _repeat_counts(flat: str, unit: int) -> list[int]:
    """For each start, how often the `unit` letters from there stand one behind the other."""
    size = len(flat)
    same = [0] * (size + 1)  # letters from here on that equal those `unit` further
    for start in range(size - unit - 1, -1, -1):
        same[start] = same[start + 1] + 1 if flat[start] == flat[start + unit] else 0
    return [same[start] // unit + 1 for start in range(size)]


def _check_length(length: int, path: str, pattern: str, position: int) -> None:
    if length > MAX_LAYERS:
        raise _wrong(path, pattern, position, f"makes {length} layers; at most {MAX_LAYERS} are allowed")


def _why_unknown(character: str) -> str:
    if character in "0123456789":
        return "is a number without a group before it; write repetitions as (sf)x6"
    return "is no block's letter; known: " + ", ".join(f"{spec.letter} {name}" for name, spec in BLOCKS.items())


def _wrong(path: str, pattern: str, position: int, message: str) -> SettingError:
    start = max(0, position - 10)
    near = ("..." if start else "") + pattern[start : position + 10]
    return SettingError(path, f"position {position} (from 0) of {near!r}: {pattern[position]!r} {message}")
