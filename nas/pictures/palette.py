"""One colour, hatch, line and letter for a block, and one order of blocks, in every picture and on every page."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from supernet.blocks import BLOCKS

# Chosen by a search over hues: every two differ by at least 20 (CIE Lab) for normal sight and for each kind of colour
# blindness, and the nine lightnesses differ by at least 5, so that a grey print keeps them apart
# (tests/unit/pictures/test_palette.py).
COLORS = {
    "self_attention": "#1037D5",
    "dense_synthesizer": "#B03009",
    "random_synthesizer": "#EA9247",
    "fixed_random_synthesizer": "#F3CA19",
    "factorized_dense_synthesizer": "#5A156E",
    "factorized_random_synthesizer": "#F33AAF",
    "mixture_synthesizer": "#2B7B53",
    "feed_forward": "#53C3F6",
    "identity": "#DDDDDD",
}
# For blocks that users register; told apart by letter and hatch as well.
OTHER_COLORS = ("#7A5C3E", "#00A79D", "#9BC53D", "#5C6B73", "#C9A7EB", "#3B3B3B")
# Straight lines only: matplotlib writes each dot or ring of a hatch as eight curves, which made SVG files ten times
# larger.
HATCHES = {
    "self_attention": "",
    "dense_synthesizer": "//",
    "random_synthesizer": "\\\\",
    "fixed_random_synthesizer": "||",
    "factorized_dense_synthesizer": "xx",
    "factorized_random_synthesizer": "++",
    "mixture_synthesizer": "///",
    "feed_forward": "",
    "identity": "--",
}
DASHES: dict[str, tuple[float, ...]] = {
    "self_attention": (),
    "dense_synthesizer": (6, 2),
    "random_synthesizer": (4, 1.5),
    "fixed_random_synthesizer": (1, 1),
    "factorized_dense_synthesizer": (6, 1.5, 1, 1.5),
    "factorized_random_synthesizer": (4, 1.5, 1, 1.5),
    "mixture_synthesizer": (8, 1.5, 1, 1.5, 1, 1.5),
    "feed_forward": (),
    "identity": (2, 2),
}
INK, PAPER = "#111111", "#FFFFFF"


@dataclass(frozen=True)
class Style:
    """How one candidate looks: `color` for areas and lines, `ink` for what is written on it, `tag` its letter (`s`,
    `s2`)."""

    label: str
    block: str
    tag: str
    color: str
    ink: str
    hatch: str
    dashes: tuple[float, ...]


class Palette:
    """The styles of a run's candidates, in the order in which every picture shows them."""

    def __init__(self, labels: Iterable[str], letters: Mapping[str, str] | None = None) -> None:
        """`labels` in any order; `letters` (block -> letter) is needed only for blocks that are not registered here."""
        given = list(dict.fromkeys(labels))
        known = {**{name: spec.letter for name, spec in BLOCKS.items()}, **(letters or {})}
        strangers = sorted({block_of(label) for label in given} - set(COLORS))
        rank = {block: place for place, block in enumerate([*COLORS, *strangers])}
        self.labels = sorted(given, key=lambda label: (rank[block_of(label)], label))
        self._styles: dict[str, Style] = {}
        for label in self.labels:
            block = block_of(label)
            # Number 0 is the block with its defaults, candidate or not, so that a letter means the same in every
            # picture.
            variant = (
                0 if label == block else 1 + sum(style.block == block != one for one, style in self._styles.items())
            )
            self._styles[label] = _style(label, variant, known.get(block, "?"), strangers)

    def __getitem__(self, label: str) -> Style:
        """The style of a candidate's label; one that is not among the run's candidates is styled by its block."""
        return self._styles.get(label) or Palette([*self.labels, label])._styles[label]

    def __iter__(self) -> Iterator[Style]:
        return (self._styles[label] for label in self.labels)

    def only(self, labels: Iterable[str]) -> "Palette":
        """These candidates alone, each as it looks among all of this palette."""
        part = Palette(())
        part.labels = [label for label in self.labels if label in set(labels)]
        part._styles = {label: self._styles[label] for label in part.labels}
        return part


def block_of(label: str) -> str:
    """The block's name in a candidate's label: `self_attention` of `self_attention[heads=2]`."""
    return label.split("[", 1)[0]


def shorten(label: str, length: int = 34) -> str:
    """The label in at most `length` characters: first without `_synthesizer`, then with an ellipsis in its middle."""
    if len(label) > length:
        label = label.replace("_synthesizer", "")
    if len(label) <= length:
        return label
    head = length * 2 // 3
    return f"{label[:head]}…{label[head + 1 - length :]}"


def luminance(color: str) -> float:
    """Relative luminance of `#RRGGBB`, 0 (black) to 1 (white), as WCAG defines it."""
    red, green, blue = (_linear(int(color[at : at + 2], 16) / 255) for at in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def ink_on(color: str) -> str:
    """Black or white, whichever contrasts more with `color`."""
    light = luminance(color)
    return INK if (light + 0.05) / 0.05 > 1.05 / (light + 0.05) else PAPER


def mix(color: str, other: str, share: float) -> str:
    """`color` with `share` of `other` in it."""
    parts = (round((1 - share) * int(color[at : at + 2], 16) + share * int(other[at : at + 2], 16)) for at in (1, 3, 5))
    return "#" + "".join(f"{part:02X}" for part in parts)


def _style(label: str, variant: int, letter: str, strangers: list[str]) -> Style:
    block = block_of(label)
    if block in COLORS:
        color, hatch, dashes = COLORS[block], HATCHES[block], DASHES[block]
    else:
        place = strangers.index(block)
        color = OTHER_COLORS[place % len(OTHER_COLORS)]
        hatch, dashes = ("/|", "\\|", "x-", "/-", "x|", "\\-")[place % 6], (3, 1, 1, 1, 1, 1)
    if variant:  # the same block with other options: the same hue, lighter and darker in turn, and its own hatch
        color = mix(color, PAPER if variant % 2 else INK, 0.28 + 0.12 * ((variant - 1) // 2 % 3))
        hatch = hatch + ("-", "/", "|", "\\")[(variant - 1) % 4]
        dashes = tuple(length + variant for length in dashes or (6, 1))
    tag = letter if not variant else f"{letter}{variant + 1}"
    return Style(label, block, tag, color, ink_on(color), hatch, dashes)


def _linear(value: float) -> float:
    return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
