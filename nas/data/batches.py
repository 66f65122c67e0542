"""The batches that training and evaluation take from a corpus: functions of (seed, step), so a resumed run needs no
loader state.

Shapes: B rows, T tokens of a row; a batch is [B, T + 1]: inputs and, one on, targets.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from nas.config.sections import DataConfig
from nas.data.corpus import Corpus
from supernet.errors import SettingError


class Batch(NamedTuple):
    """Rows of a step: tokens [B, ...] int64 (for a language model [B, T + 1]), whether the rows start anew rather than
    go on where those of the batch before ended, and what else a task's rows hold, each array [B, ...] by its name."""

    tokens: np.ndarray
    fresh: bool
    more: Mapping[str, np.ndarray] = MappingProxyType({})

    def rows(self, span: slice) -> "Batch":
        """These rows alone."""
        return Batch(self.tokens[span], self.fresh, {name: array[span] for name, array in self.more.items()})


class Place(NamedTuple):
    """Where in a training a batch is taken: crops depend on (seed, stream, step) alone, rows that go on on the number
    of their segment."""

    seed: int
    stream: str
    step: int
    segment: int


def training_batch(
    corpus: Corpus, part: str, data: DataConfig, at: Place, *, memory_len: int, share: tuple[int, int]
) -> Batch:
    """A process's rows of a step: random crops, or the segment of rows that go on, as `data.order` has it.

    With a share (r, K) they are the rows r, r + K, ... of those that K processes read together.
    """
    if data.contiguous(memory_len):
        return segment_batch(
            corpus, part, seq_len=data.seq_len, batch_size=data.batch_size, number=at.segment, share=share
        )
    crops = crop_batch(
        corpus,
        part,
        seq_len=data.seq_len,
        batch_size=data.batch_size,
        seed=at.seed,
        step=at.step,
        stream=at.stream,
        share=share,
    )
    return Batch(crops, True)


def crop_batch(
    corpus: Corpus,
    part: str,
    *,
    seq_len: int,
    batch_size: int,
    seed: int,
    step: int,
    stream: str,
    share: tuple[int, int] = (0, 1),
) -> np.ndarray:
    """Random crops of a part, [batch_size, seq_len + 1] int64.

    The same (seed, stream, step) gives the same crops in any process. With a share (r, K) they are the rows r, r + K,
    ... of a batch K times as large: K processes read it together. ValueError where the part is shorter than seq_len +
    1.
    """
    rank, world = share
    tokens = corpus.part(part)
    if len(tokens) <= seq_len:
        raise ValueError(f"part {part} has {len(tokens)} tokens, fewer than seq_len + 1 = {seq_len + 1}")
    digest = hashlib.blake2b(f"{seed}/{stream}/{step}".encode(), digest_size=16).digest()
    generator = np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))
    starts = generator.integers(0, len(tokens) - seq_len, size=(batch_size * world, 1))[rank::world]  # [B, 1]
    return tokens[starts + np.arange(seq_len + 1)].astype(np.int64)


def segment_batch(
    corpus: Corpus, part: str, *, seq_len: int, batch_size: int, number: int, share: tuple[int, int] = (0, 1)
) -> Batch:
    """Segment `number` of a part laid out as rows of equal length, as papers on language models have it (Zaremba et al.
    2014).

    Every row is read from its start to its end, then all start anew. The tokens after the last whole segment of a row
    are left out. With a share (r, K) there are K times the rows, of which these are r, r + K, ... SettingError where a
    row holds no segment.
    """
    rank, world = share
    tokens = corpus.part(part)
    length = (len(tokens) - 1) // (batch_size * world)
    segments = length // seq_len
    if not segments:
        rows = batch_size * world
        raise SettingError(
            "data.batch_size",
            f"{rows} rows of {seq_len} tokens that go on need {rows * seq_len + 1:,}, and the part {part} has "
            f"{len(tokens):,}; lower it or data.seq_len",
        )
    starts = np.arange(rank, batch_size * world, world)[:, None] * length + number % segments * seq_len
    return Batch(tokens[starts + np.arange(seq_len + 1)].astype(np.int64), number % segments == 0)


def check_rows(corpus: Corpus, parts: Iterable[str], data: DataConfig, memory_len: int, world: int) -> None:
    """SettingError where rows that go on, those of `world` processes, do not fit into one of the parts."""
    if data.contiguous(memory_len):
        for part in parts:
            segment_batch(corpus, part, seq_len=data.seq_len, batch_size=data.batch_size, number=0, share=(0, world))


def evaluation_batches(
    corpus: Corpus, part: str, *, seq_len: int, batch_size: int, limit: int | None = None
) -> Iterator[np.ndarray]:
    """A part in order as blocks, [up to batch_size, seq_len + 1] int64, in which every token but the first is a target
    once.

    The last block, where shorter, is a batch of its own, so there is no padding: weigh each batch's mean loss by its
    number of targets. `limit` takes only so many blocks as hold that many targets, spread evenly over the part.
    """
    tokens = corpus.part(part)
    full, rest = divmod(len(tokens) - 1, seq_len)
    starts = np.arange(full) * seq_len
    if limit is not None and limit < len(tokens) - 1 and full:
        wanted = min(max(math.ceil(limit / seq_len), 1), full)
        starts = starts[(2 * np.arange(wanted) + 1) * full // (2 * wanted)]
        rest = 0
    for first in range(0, len(starts), batch_size):
        rows = starts[first : first + batch_size, None] + np.arange(seq_len + 1)
        yield tokens[rows].astype(np.int64)
    if rest > 0:
        yield tokens[None, full * seq_len :].astype(np.int64)


def evaluation_segments(
    corpus: Corpus, part: str, *, seq_len: int, rows: int, memory_len: int, limit: int | None = None
) -> Iterator[Batch]:
    """A part as up to `rows` rows that are read on from segment to segment, for models with memory; every token but the
    first is a target once.

    Rows are at least eight times as long as a segment and as the memory, so that few targets lack context. `limit`: so
    many targets, at the start of rows that are spread evenly over the part. What the equal rows leave over at the end
    is a row of its own.
    """
    tokens = corpus.part(part)
    targets = len(tokens) - 1
    wanted = targets if limit is None else min(limit, targets)
    rows = max(1, min(rows, wanted // (8 * max(seq_len, memory_len))))
    spacing = targets // rows
    yield from _segments(tokens, np.arange(rows) * spacing, wanted // rows, seq_len)
    if wanted == targets:
        yield from _segments(tokens, np.array([rows * spacing]), targets - rows * spacing, seq_len)


def _segments(tokens: np.ndarray, starts: np.ndarray, length: int, seq_len: int) -> Iterator[Batch]:
    """So many targets of each of the rows that begin at `starts`, segment by segment."""
    for first in range(0, length, seq_len):
        span = np.arange(first, min(first + seq_len, length) + 1)
        yield Batch(tokens[starts[:, None] + span].astype(np.int64), first == 0)
