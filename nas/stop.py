"""SIGINT and SIGTERM: finish the step in flight, write a checkpoint, leave with the signal's code. Needs no torch."""

import signal


class Stopped(Exception):
    """SIGINT or SIGTERM came: the step in flight is finished and a checkpoint is written."""

    def __init__(self, signal_number: int):
        super().__init__(f"stopped by {signal.Signals(signal_number).name}")
        self.exit_code = 128 + signal_number


class StopFlag:
    """Remembers the first SIGINT or SIGTERM; loops look at it between steps."""

    def __init__(self) -> None:
        self.signal_number: int | None = None

    def install(self) -> "StopFlag":
        """Take over both signals; a second SIGINT acts at once."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._remember)
        return self

    def _remember(self, number: int, frame: object) -> None:
        if self.signal_number is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal_number = number

    def check(self) -> None:
        """Raise Stopped when a signal has come."""
        if self.signal_number is not None:
            raise Stopped(self.signal_number)
