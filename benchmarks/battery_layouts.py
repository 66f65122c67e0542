"""The layouts of a setting of the battery: counted, drawn uniformly within a budget, and their neighbours.

A layout is written as a pattern of letters, one a layer: a block's letter, or its capital where the candidate has an
option that is not the default. Identities are the same network wherever they stand, so they stand at the end, and every
*network* is counted and drawn once. Costs are FLOPs of the layers over those of the interleaved layout.
"""

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from functools import cached_property

from supernet.blocks import BLOCKS, Candidate, candidate_cost, parse_candidate
from supernet.settings import ModelSettings

SLACK = 1e-9  # of a cost that is held against a budget
IDENTITY = "i"


class Space:
    """Layouts of so many layers of these candidates (labels) on a model's widths."""

    def __init__(self, model: ModelSettings, layers: int, labels: Sequence[str]):
        self.model, self.layers = model, layers
        self.labels = alphabet(labels, model)  # letter -> label, of the candidates
        self.known = {**{spec.letter: name for name, spec in BLOCKS.items()}, **self.labels}
        pair = [self.flops(letter) for letter in "sf"]
        self.baseline = layers / 2 * sum(pair)

    def flops(self, letter: str) -> int:
        """Of one layer, a token."""
        return candidate_cost(self.candidate(letter), self.model, self.model.max_len)[1]

    def candidate(self, letter: str) -> Candidate:
        """The block that a letter stands for; KeyError for one that stands for none."""
        return parse_candidate(self.known[letter], self.model)

    @cached_property
    def shares(self) -> dict[str, float]:
        """Cost of a layer of each candidate."""
        return {letter: self.flops(letter) / self.baseline for letter in self.labels}

    def cost(self, pattern: str) -> float:
        """Of a layout, by any letters that are known."""
        return sum(self.flops(letter) for letter in pattern) / self.baseline

    def network(self, pattern: str) -> str:
        """The pattern with its identities at the end; ValueError where it does not have one known letter a layer."""
        if len(pattern) != self.layers or not set(pattern) <= set(self.known):
            raise ValueError(f"{pattern!r}: expected {self.layers} letters of {' '.join(self.known)}")
        return pattern.replace(IDENTITY, "").ljust(self.layers, IDENTITY)

    def pattern(self, labels: Sequence[str]) -> str:
        """The network of a list of candidates' labels, one a layer."""
        letters = {parse_candidate(label, self.model).label: letter for letter, label in self.known.items()}
        return self.network("".join(letters[parse_candidate(label, self.model).label] for label in labels))

    @cached_property
    def _groups(self) -> list[tuple[tuple[int, ...], float, int]]:
        """How many layers each candidate has, what that costs, and how many networks have it; cheap ones first."""
        letters, found = list(self.labels), []
        for counts in _compositions(self.layers, len(letters)):
            laid = [count for letter, count in zip(letters, counts, strict=True) if letter != IDENTITY]
            if sum(laid):  # a network of nothing is none
                cost = sum(count * self.shares[letter] for letter, count in zip(letters, counts, strict=True))
                found.append((counts, cost, _orders(laid)))
        return sorted(found, key=lambda group: (group[1], group[0]))

    def _between(self, least: float, most: float) -> list[tuple[tuple[int, ...], float, int]]:
        return [group for group in self._groups if least + SLACK < group[1] <= most + SLACK]

    def count(self, most: float = math.inf, least: float = 0.0) -> int:
        """Networks that cost more than `least` (0: all) and at most `most`."""
        return sum(orders for _, _, orders in self._between(least or -1.0, most))

    def draw(self, source: random.Random, most: float = math.inf, least: float = 0.0) -> str:
        """A network, each of those between the two costs as likely as the others."""
        groups = self._between(least or -1.0, most)
        (counts, _, _) = source.choices(groups, weights=[orders for _, _, orders in groups])[0]
        letters = [letter for letter, count in zip(self.labels, counts, strict=True) for _ in range(count)]
        source.shuffle(letters)
        return self.network("".join(letters))

    def draw_several(self, source: random.Random, number: int, most: float = math.inf, least: float = 0.0) -> list[str]:
        """Different networks in the order drawn; all there are, shuffled, where there are no more."""
        if self.count(most, least) <= number:
            found = list(self.all(most, least))
            source.shuffle(found)
            return found
        drawn: dict[str, None] = {}
        while len(drawn) < number:
            drawn[self.draw(source, most, least)] = None
        return list(drawn)

    def all(self, most: float = math.inf, least: float = 0.0) -> Iterator[str]:
        """Every network between the two costs, in a fixed order; for small spaces."""
        laid = [letter for letter in self.labels if letter != IDENTITY]
        depths = range(1, self.layers + 1) if IDENTITY in self.labels else [self.layers]
        for depth in depths:
            for letters in itertools.product(laid, repeat=depth):
                pattern = "".join(letters).ljust(self.layers, IDENTITY)
                if (least or -1.0) + SLACK < self.cost(pattern) <= most + SLACK:
                    yield pattern

    def neighbours(self, pattern: str, most: float) -> list[str]:
        """Networks within a budget that differ by one layer's candidate, by two layers' exchange, or by a layer more
        or less, sorted."""
        laid, found = self.network(pattern).rstrip(IDENTITY), set()
        for at in range(len(laid)):
            found |= {laid[:at] + letter + laid[at + 1 :] for letter in self.labels if letter != IDENTITY}
            for other in range(at):
                found.add(laid[:other] + laid[at] + laid[other + 1 : at] + laid[other] + laid[at + 1 :])
            if IDENTITY in self.labels:
                found.add(laid[:at] + laid[at + 1 :])
        if len(laid) < self.layers:
            places = itertools.product(range(len(laid) + 1), self.labels)
            found |= {laid[:at] + letter + laid[at:] for at, letter in places if letter != IDENTITY}
        whole = {network.ljust(self.layers, IDENTITY) for network in found if network} - {self.network(pattern)}
        return sorted(network for network in whole if self.cost(network) <= most + SLACK)


def alphabet(labels: Sequence[str], model: ModelSettings) -> dict[str, str]:
    """Letter -> label: a block's letter, capital where the candidate has options; ValueError where two would share
    one."""
    found: dict[str, str] = {}
    for label in labels:
        candidate = parse_candidate(label, model)
        letter = candidate.letter.upper() if candidate.options else candidate.letter
        if letter in found:
            raise ValueError(f"{label} and {found[letter]} would both be {letter}")
        found[letter] = candidate.label
    return found


def _compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Every way to write `total` as a sum of `parts` numbers from 0."""
    for bars in itertools.combinations(range(total + parts - 1), parts - 1):
        edges = (-1, *bars, total + parts - 1)
        yield tuple(after - before - 1 for before, after in itertools.pairwise(edges))


def _orders(counts: Sequence[int]) -> int:
    """In how many orders so many letters of each kind can stand."""
    return math.factorial(sum(counts)) // math.prod(math.factorial(count) for count in counts)
