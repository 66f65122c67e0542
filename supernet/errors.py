"""The two ways in which a command can fail; search.py turns them into exit codes 2 and 3."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """The user's mistake, told in one line: what was wrong, where, and what would be right (exit code 2)."""


class SettingError(UserError):
    """A wrong value in a configuration or file; `path` is the key or JSON path, such as `layers[2].rank`."""

    def __init__(self, path: str, message: str):
        super().__init__(f"{path}: {message}")
        self.path = path


class RunFailed(RuntimeError):
    """The run itself failed, for example on a loss that stayed non-finite (exit code 3)."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """' (did you mean X?)' when a known word is close, else a list of all of them."""
    known = list(known)
    close = difflib.get_close_matches(str(word), known, n=1)
    return f" (did you mean {close[0]!r}?)" if close else f"; known: {', '.join(known)}"
