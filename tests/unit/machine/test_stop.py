"""Signals: at once outside of loops, between steps within them."""

import os
import signal
from collections.abc import Iterator

import pytest

from nas.machine.stop import SIGNALS, StopFlag, Stopped


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_acts_at_once(number: int, code: int) -> None:
    StopFlag().install()
    with pytest.raises(Stopped) as stopped:
        os.kill(os.getpid(), number)
    assert stopped.value.exit_code == code


def test_a_signal_within_deferred_waits_until_the_end_of_it() -> None:
    stop, reached = StopFlag().install(), []
    with pytest.raises(Stopped) as stopped:
        with stop.deferred():
            with stop.deferred():
                os.kill(os.getpid(), signal.SIGTERM)
                reached.append("inner")
            reached.append("outer")
        reached.append("after")
    assert reached == ["inner", "outer"] and stopped.value.exit_code == 143


def test_check_raises_for_the_first_signal() -> None:
    stop = StopFlag().install()
    with pytest.raises(Stopped) as stopped, stop.deferred():
        stop.check()
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)  # whoever asks twice is not answered twice
        stop.check()
    assert stopped.value.exit_code == 143


def test_a_second_interrupt_does_not_wait() -> None:
    stop = StopFlag().install()
    with pytest.raises(KeyboardInterrupt), stop.deferred():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        pytest.fail("went on after a second SIGINT")


def test_an_error_within_deferred_is_not_hidden() -> None:
    stop = StopFlag().install()
    with pytest.raises(ZeroDivisionError), stop.deferred():
        os.kill(os.getpid(), signal.SIGTERM)
        raise ZeroDivisionError
