"""The tasks that can be trained, by name: one line each."""

from nas.tasks.causal_lm import CAUSAL_LM
from nas.tasks.task import Task
from supernet.errors import SettingError

TASKS: dict[str, Task] = {
    "causal_lm": CAUSAL_LM,
}


def task_of(name: str, key: str = "model.task") -> Task:
    """The task of this name; SettingError on `key` for one that this version does not train."""
    if name not in TASKS:
        raise SettingError(key, f"{name} cannot be trained by this version; use {' or '.join(TASKS)}")
    return TASKS[name]
