"""What programs are scored against: log-probabilities of each kind in each layer, a table a seed and recorded step.

N layers, C candidates, A of them attention-like, S seeds. The *kinds* are the candidates and, with two or more
attention-like ones, `attention`, whose probability is the A-th part of their sum: a table that knows nothing then gives
1 / C to every kind, and no program gains by it.
"""

from dataclasses import dataclass

import numpy as np

from derive.programs import ATTENTION
from supernet.errors import SettingError

DOUBT = 0.1  # a rule may be wrong in one layer of ten: no layer's probability counts for less than a tenth of 1 / C
MOST_STEPS = 40  # recorded steps of a seed that the certainty is drawn from, evenly spread over the window


@dataclass(frozen=True)
class Table:
    """Probabilities to read rules from: one array [K_s, N, C] of recorded steps a seed, and which candidates are what.

    `selection`: "last" reads the values off each seed's last step, "average" off all of them.
    """

    samples: list[np.ndarray]
    labels: list[str]
    attention: np.ndarray  # [C] bool
    identity: np.ndarray  # [C] bool
    selection: str = "last"

    def __post_init__(self) -> None:
        if self.selection not in ("last", "average"):
            raise SettingError("derive.selection", f"expected last or average, got {self.selection!r}")

    @property
    def layers(self) -> int:
        """N."""
        return int(self.samples[0].shape[1])

    @property
    def grouped(self) -> bool:
        """Whether `attention` is a kind of its own; with one attention-like candidate it is that candidate."""
        return bool(self.attention.sum() > 1 and ATTENTION not in self.labels)

    @property
    def kinds(self) -> list[str]:
        """All that a clause can hold, in the order of the logs' last axis."""
        return [*self.labels, ATTENTION] if self.grouped else self.labels

    @property
    def default(self) -> str:
        """The rest that is cheapest to say: the first feed-forward, else the first that is not attention-like."""
        forward = [label for label in self.labels if label.split("[")[0] == "feed_forward"]
        others = [label for label, mixes in zip(self.labels, self.attention, strict=True) if not mixes]
        return (forward or others or self.labels)[0]

    def selected(self) -> np.ndarray:
        """Each seed's table that values are read off, [S, N, C]."""
        return np.stack([s[-1] if self.selection == "last" else s.mean(axis=0) for s in self.samples])

    def mean(self) -> np.ndarray:
        """The table of pictures and files, [N, C]: the selected ones, averaged over the seeds."""
        mean = self.selected().mean(axis=0)
        return np.asarray(mean / mean.sum(axis=1, keepdims=True))

    def mass(self, which: np.ndarray) -> np.ndarray:
        """Summed probability of the candidates in `which` [C] in the selected tables, mean over seeds: [N]."""
        return np.asarray(self.mean()[:, which].sum(axis=1))

    def logs(self) -> np.ndarray:
        """Log-probabilities that pick the program, [S, N, kinds], mean over the selected steps."""
        chosen = [s[-1:] if self.selection == "last" else s for s in self.samples]
        return np.stack([self.log_kinds(steps).mean(axis=0) for steps in chosen])

    def windows(self) -> list[np.ndarray]:
        """Recorded steps of each seed that certainty is drawn from, [K, N, C] each."""
        return [s[np.unique(np.linspace(0, len(s) - 1, MOST_STEPS).round().astype(int))] for s in self.samples]

    def log_kinds(self, tables: np.ndarray) -> np.ndarray:
        """[..., N, C] probabilities as log-probabilities of kinds [..., N, kinds] in nats, floored by DOUBT."""
        count = tables.shape[-1]
        smooth = (1 - DOUBT) * tables / tables.sum(axis=-1, keepdims=True) + DOUBT / count
        if self.grouped:
            share = smooth[..., self.attention].mean(axis=-1, keepdims=True)
            smooth = np.concatenate([smooth, share], axis=-1)
        return np.asarray(np.log(smooth))
