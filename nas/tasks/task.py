"""The record of a task: everything that depends on what a network learns."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:  # torch is loaded by those who train, not by those who read what was trained
    import torch
    from torch import Tensor

    from nas.config.sections import DataConfig
    from nas.data.batches import Batch, Place
    from nas.data.corpus import Corpus


class Example(NamedTuple):
    """A batch on its device: what the network is called with, `model(*inputs, *gates, **options)`, and the targets."""

    inputs: "tuple[Tensor, ...]"
    options: "dict[str, Tensor]"
    targets: "Tensor"


class TrainingBatch(Protocol):
    """This process's rows of a step; with a share (r, K) the rows r, r + K, ... of those that K processes read."""

    def __call__(
        self,
        corpus: "Corpus",
        part: str,
        data: "DataConfig",
        at: "Place",
        *,
        memory_len: int,
        share: tuple[int, int] = (0, 1),
    ) -> "Batch": ...


class EvaluationBatches(Protocol):
    """A part in order, every target once, or `limit` targets spread evenly over it."""

    def __call__(
        self, corpus: "Corpus", part: str, *, seq_len: int, memory_len: int, limit: int | None
    ) -> "Iterator[Batch]": ...


@dataclass(frozen=True)
class Task:
    """What a network learns, as the loops, the comparison and the page ask for it; none of them knows a task by name.

    Whoever adds a task writes one file beside `causal_lm.py` with one such record, and one line in `table.TASKS`. The
    network itself is supernet's: whether its attention is causal stands in `supernet.settings.TASKS`, and a head that
    is not one row of logits a token has to be built in `supernet.backbone`.

    Shapes: B rows, T tokens of a row, V classes.
    """

    name: str
    """as in `model.task` and in an architecture file's `task`"""

    sentence: str
    """what is predicted from what, for help and error lines"""

    unit: str
    """of its loss, for tables, axes and sentences, such as "nats a token" """

    parts: tuple[str, ...]
    """the parts that a corpus must have; searches read `weights`, `alphas` and `held_out`, a run's end reads `test`"""

    baseline: str
    """preset that budgets and costs are fractions of, and that trainings stand beside"""

    baseline_blocks: tuple[str, ...]
    """the blocks that repeat in the baseline: N layers cost N / len(baseline_blocks) times their sum"""

    generates: bool
    """whether a trained network can go on with a text"""

    figures: tuple[str, ...]
    """the columns that `measures` fills in a comparison, the first of them the one that the terminal shows"""

    shown: "Callable[[list[dict[str, Any]]], str]"
    """an architecture's rows of the comparison, one a seed, all with a loss -> the first of `figures` as the terminal
    shows it"""

    training_batch: TrainingBatch
    """rows of a step of a training: a function of the seed and the step, so that a resumed run needs no loader state"""

    evaluation_batches: EvaluationBatches
    """rows to evaluate on"""

    example: "Callable[[Batch, torch.device], Example]"
    """a batch on the device, copied without waiting for it"""

    targets: "Callable[[Batch], int]"
    """how many targets a batch holds: the losses of its parts are weighed by it"""

    loss: "Callable[[Tensor, Tensor], Tensor]"
    """(output, targets) -> the mean loss over the targets, a scalar in fp32 with its graph"""

    row_losses: "Callable[[Tensor, Tensor], tuple[list[float], list[int]]]"
    """(output, targets) -> each row's mean loss, summed in fp64, and its number of targets"""

    measures: "Callable[[Corpus, float, str], dict[str, float | None]]"
    """(corpus, mean loss, part) -> `figures` and what else the loss says of that part; None where it cannot be told"""
