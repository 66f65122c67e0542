"""Causal language models: every token from those before it.

Shapes: B rows, T tokens of a row, V tokens of the vocabulary.
"""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from derive.patterns import INTERLEAVED
from nas.data.batches import Batch, evaluation_batches, evaluation_segments, training_batch
from nas.data.corpus import WORDED, Corpus
from nas.tasks.task import Example, Task

if TYPE_CHECKING:
    import torch
    from torch import Tensor

EVALUATED_TOKENS = 8192  # of a batch: as many as a CPU's cache and a small GPU both like


def rows_in_order(corpus: Corpus, part: str, *, seq_len: int, memory_len: int, limit: int | None) -> Iterator[Batch]:
    """Rows that go on where the network has a memory, blocks that stand alone otherwise."""
    rows = max(1, EVALUATED_TOKENS // seq_len)
    if memory_len:
        return evaluation_segments(corpus, part, seq_len=seq_len, rows=rows, memory_len=memory_len, limit=limit)
    blocks = evaluation_batches(corpus, part, seq_len=seq_len, batch_size=rows, limit=limit)
    return (Batch(block, True) for block in blocks)


def next_tokens(batch: Batch, device: "torch.device") -> Example:
    """[B, T + 1] tokens -> inputs [B, T] and, one on, targets [B, T]."""
    import torch

    tokens = torch.from_numpy(batch.tokens)
    if device.type == "cuda":
        tokens = tokens.pin_memory().to(device, non_blocking=True)
    return Example((tokens[:, :-1],), {}, tokens[:, 1:])


def count_targets(batch: Batch) -> int:
    """B times T."""
    return batch.tokens.shape[0] * (batch.tokens.shape[1] - 1)


def cross_entropy(logits: "Tensor", targets: "Tensor") -> "Tensor":
    """Mean over all targets [B, T] of logits [B, T, V], in nats a token."""
    from torch.nn import functional

    return functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def cross_entropy_by_row(logits: "Tensor", targets: "Tensor") -> tuple[list[float], list[int]]:
    """Each row's mean in nats a token, and its T targets."""
    from torch.nn import functional

    by_token = functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="none")
    by_row = by_token.view(targets.shape).double().mean(dim=1)
    return by_row.tolist(), [targets.shape[1]] * len(targets)


def measures(corpus: Corpus, loss: float, part: str) -> dict[str, float | None]:
    """Perplexity, bits a character and, where tokens are made of words, the perplexity of words: one figure for every
    way of cutting words into tokens; a byte's or character's would be none."""
    found = {"perplexity": math.exp(min(loss, 700.0)), "bits_per_character": corpus.bits_per_character(loss, part)}
    return found | ({"word_perplexity": corpus.word_perplexity(loss, part)} if corpus.kind in WORDED else {})


def shown_perplexity(rows: list[dict[str, Any]]) -> str:
    """Of the mean loss over seeds."""
    return f"{math.exp(min(float(np.mean([row['held_out_loss'] for row in rows])), 700.0)):.3f}"


CAUSAL_LM = Task(
    name="causal_lm",
    sentence="the next token from those before it",
    unit="nats a token",
    parts=("weights", "alphas", "held_out", "test"),
    baseline="interleaved",
    baseline_blocks=INTERLEAVED,
    generates=True,
    figures=("perplexity", "bits_per_character"),
    shown=shown_perplexity,
    training_batch=training_batch,
    evaluation_batches=rows_in_order,
    example=next_tokens,
    targets=count_targets,
    loss=cross_entropy,
    row_losses=cross_entropy_by_row,
    measures=measures,
)
