"""SIGINT and SIGTERM: finish the step in flight, write a checkpoint, leave with the signal's code. Needs no torch."""

import contextlib
import signal
from collections.abc import Iterator

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(BaseException):
    """SIGINT or SIGTERM came. Not an Exception, as KeyboardInterrupt is none: nothing on the way may take it for a
    failure."""

    def __init__(self, signal_number: int):
        super().__init__(f"stopped by {signal.Signals(signal_number).name}")
        self.exit_code = 128 + signal_number


class StopFlag:
    """Remembers the first SIGINT or SIGTERM. It acts at once, except within `deferred`, where loops look at it between
    steps."""

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self._deferred = 0

    def install(self) -> "StopFlag":
        """Take over both signals; a second SIGINT acts at once everywhere."""
        for number in SIGNALS:
            signal.signal(number, self._remember)
        return self

    @staticmethod
    def uninstall() -> None:
        """Give both signals back to the system: while a process leaves, there is nothing to finish any more."""
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Within, a signal waits for `check`, which is called again on leaving."""
        self._deferred += 1
        try:
            yield
        finally:
            self._deferred -= 1
        if not self._deferred:
            self.check()

    def check(self) -> None:
        """Raise Stopped when a signal has come."""
        if self.signal_number is not None:
            raise Stopped(self.signal_number)

    def _remember(self, number: int, frame: object) -> None:
        if self.signal_number is not None:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            return
        self.signal_number = number
        if not self._deferred:
            raise Stopped(number)
