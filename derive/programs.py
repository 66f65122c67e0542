"""Rules as programs: a small language that makes a layout, what a program costs in bits, and how it goes to another
depth.

    program = rest, then none to three clauses        layers held by none of the clauses hold what the rest says
    clause  = every p-th layer from a on and before b holds K      (p = 1: a region; a = 0: a prefix; b = N: a tail)
            | k of the layers from a on and before b hold K, in any order
    K       = a candidate's label, or `attention`: in each layer the likeliest attention-like candidate

No layer is held by two clauses, and a count has its layers [a, b) to itself. Where rounding at another depth makes two
clauses meet, the later one holds the layer. N layers, counted from 0; ends are left out.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

ATTENTION = "attention"  # the kind that any attention-like candidate belongs to
MOST_CLAUSES = 3
FORMS = ("rest", "every", "count")
NAT = math.log(2)  # nats a bit


@dataclass(frozen=True)
class Clause:
    """One clause; of `rest` only `holds` and `blocks` say something, `period` is of `every`, `count` and `at` of
    `count`.

    `at`: the layers of a count as they were at the depth it was read from. `blocks`: where `holds` is `attention`, the
    label in each of the layers held.
    """

    form: str
    holds: str
    start: int = 0
    end: int = 0
    period: int = 1
    count: int = 0
    at: tuple[int, ...] = ()
    blocks: tuple[str, ...] = ()

    def span(self) -> range:
        """The layers that no other clause may hold: those held, or all from start to end of a count."""
        return range(self.start, self.end, self.period if self.form == "every" else 1)

    def held(self) -> tuple[int, ...]:
        """The layers held; of a count that has no places yet, spread evenly."""
        if self.form != "count":
            return tuple(self.span())
        return self.at or even(self.start, self.end, self.count)

    def bare(self) -> "Clause":
        """Without places and blocks, which the table fills in: what makes two clauses the same."""
        return replace(self, at=(), blocks=())

    def sentence(self, layers: int) -> str:
        """In words, first and last layer named."""
        if self.form == "rest":
            return f"{self.holds} elsewhere"
        where = f"layers {self.start} to {self.end - 1}" if (self.start, self.end) != (0, layers) else "all layers"
        if self.form == "count":
            return f"{self.count} of {where} hold {self.holds}, in no order"
        if self.period > 1:
            return f"every {ordinal(self.period)} of {where}, from {self.start} on, holds {self.holds}"
        single = self.end - self.start == 1
        return f"layer {self.start} holds {self.holds}" if single else f"{where} hold {self.holds}"


@dataclass(frozen=True)
class Program:
    """A rest and its clauses at a depth of `layers`."""

    layers: int
    rest: Clause
    clauses: tuple[Clause, ...] = ()

    def labels(self) -> list[str]:
        """What each layer holds, [N]: labels, or `attention` where no blocks have been filled in."""
        made = _shown(self.rest, self.layers)
        for clause in self.clauses:
            held = clause.held()
            for layer, label in zip(held, _shown(clause, len(held)), strict=True):
                made[layer] = label
        return made

    def holders(self) -> list[Clause]:
        """The clause that decides each layer, [N]."""
        made = [self.rest] * self.layers
        for clause in self.clauses:
            for layer in clause.held():
                made[layer] = clause
        return made

    def bare(self) -> "Program":
        """Without places and blocks."""
        return Program(self.layers, self.rest.bare(), tuple(clause.bare() for clause in self.clauses))

    def sentence(self) -> str:
        """The whole program in words."""
        if not self.clauses:
            return f"all layers hold {self.rest.holds}"
        return "; ".join([*(clause.sentence(self.layers) for clause in self.clauses), self.rest.sentence(self.layers)])

    def bits(self, kinds: Sequence[str], default: str) -> float:
        """Length in bits, where `kinds` are all that can be held and `default` is the rest that is cheapest to say.

        The code is a prefix code: over all programs 2 ** -bits sums to at most 1. A count's places are not in it; each
        seed pays for its own, `place_bits`.
        """
        total = rest_bits(self.rest.holds == default, len(kinds)) + 1
        for clause in self.clauses:
            edges = start_bits(clause.start, self.layers) + end_bits(clause, self.layers)
            what = period_bits(clause.period) if clause.form == "every" else count_bits(clause.end - clause.start)
            total += clause_bits(len(kinds), clause.form) + edges + what
        return total

    def scaled(self, layers: int) -> "Program":
        """The program at another depth: starts, ends and counts as fractions of it, periods and offsets as they are."""
        if layers == self.layers:
            return self
        return Program(layers, self.rest, tuple(_scaled(clause, self.layers, layers) for clause in self.clauses))


def rest_bits(default: bool, kinds: int) -> float:
    """A rule tells what departs from feed-forward: seven programs of eight have the default, others name their kind."""
    return math.log2(8 / 7) if default else 3 + math.log2(max(1, kinds - 1))


def clause_bits(kinds: int, form: str = "every") -> float:
    """That there is a clause, of which form it is (a count is one of eight), and which kind it holds, other than the
    rest's."""
    return 1 + (math.log2(8 / 7) if form == "every" else 3.0) + math.log2(max(1, kinds - 1))


def period_bits(period: int) -> float:
    """Of p: log2(p (p + 1)), so that regions cost a bit and long periods more."""
    return math.log2(period * (period + 1))


def start_bits(start: int, layers: int) -> float:
    """One bit for layer 0, else any other one."""
    return 1.0 if start == 0 else 1 + math.log2(max(1, layers - 1))


def end_bits(clause: Clause, layers: int) -> float:
    """One bit for the last layer, else one of the ends that leave whole periods."""
    if clause.end == layers:
        return 1.0
    step = clause.period if clause.form == "every" else 1
    return 1 + math.log2(max(1, (layers - 1 - clause.start) // step))


def count_bits(span: int) -> float:
    """Of k in a span of n layers: any of 1 to n - 1."""
    return math.log2(max(1, span - 1))


def place_bits(count: int, span: int) -> float:
    """Which k of n layers: what each seed pays for putting them where it likes."""
    return (math.lgamma(span + 1) - math.lgamma(count + 1) - math.lgamma(span - count + 1)) / NAT


def even(start: int, end: int, count: int) -> tuple[int, ...]:
    """`count` layers spread evenly over [start, end)."""
    return tuple(start + (2 * index + 1) * (end - start) // (2 * count) for index in range(count))


def ordinal(number: int) -> str:
    """2nd, 3rd, 4th, 11th, 21st."""
    tail = "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{tail}"


def rescale(value: int, before: int, after: int) -> int:
    """A border, position or count at another depth, rounded to the nearest, halves up."""
    return (2 * value * after + before) // (2 * before)


def _scaled(clause: Clause, before: int, after: int) -> Clause:
    # a start within the first period is the period's offset, which stays as the period does
    offset = clause.form == "every" and clause.start < clause.period
    start = min(clause.start if offset else rescale(clause.start, before, after), after - 1)
    end = min(after, max(start + 1, rescale(clause.end, before, after)))
    if clause.form == "every":
        return replace(clause, start=start, end=end)
    count = min(max(1, rescale(clause.count, before, after)), end - start)
    return replace(clause, start=start, end=end, count=count, at=even(start, end, count))


def _shown(clause: Clause, held: int) -> list[str]:
    """A label for each of `held` layers; blocks of another depth are read off at the same fraction."""
    if not clause.blocks:
        return [clause.holds] * held
    return [clause.blocks[index * len(clause.blocks) // held] for index in range(held)]
