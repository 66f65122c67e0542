"""What a search or a training works with from its first step to its last."""

import dataclasses
from dataclasses import dataclass
from functools import cached_property

from nas.config.sections import Config
from nas.data.corpus import Corpus, load_corpus
from nas.machine.device import Machine, choose_machine
from nas.tasks.table import task_of
from nas.tasks.task import Task
from supernet.settings import ModelSettings


@dataclass(frozen=True)
class Setup:
    """Configuration, text and machine; no step changes any of them."""

    config: Config
    corpus: Corpus
    machine: Machine

    @cached_property
    def task(self) -> Task:
        """What is learned."""
        return task_of(self.config.model.task)

    @cached_property
    def settings(self) -> ModelSettings:
        """The model's settings for the text's vocabulary."""
        return self.config.model.settings(self.corpus.vocab_size, self.config.data.seq_len)

    @property
    def share(self) -> tuple[int, int]:
        """(r, K): of the rows of a step this process takes r, r + K, ..."""
        return self.machine.rank, self.machine.world

    @property
    def tokens_a_step(self) -> int:
        """Of all processes."""
        return self.machine.world * self.config.data.batch_size * self.config.data.seq_len

    def but(self, **sections: object) -> "Setup":
        """The same with other sections of the configuration."""
        return dataclasses.replace(self, config=dataclasses.replace(self.config, **sections))


def open_setup(config: Config) -> Setup:
    """The configuration's text and machine; SettingError where one of them is not there."""
    task_of(config.model.task)
    return Setup(config, load_corpus(config.data), choose_machine(config.run))
