"""Exit codes: what each exception becomes, always in one line."""

import pytest

from nas.machine.exit_codes import exit_codes
from nas.machine.stop import Stopped
from supernet.errors import RunFailed, SettingError, UserError

CASES = [
    (UserError("wrong\nin two lines"), 2, "error: wrong in two lines"),
    (UserError("a\x1b[2J\u202e\udcff.json: \u00e9"), 2, "error: a\\x1b[2J\\u202e\\udcff.json: \u00e9"),
    (SettingError("a.b", "no"), 2, "error: a.b: no"),
    (RunFailed("loss"), 3, "error: loss"),
    (OSError(28, "No space left on device", "/x/y"), 3, "error: /x/y: No space left on device"),
    (MemoryError("9 GB"), 3, "error: out of memory: 9 GB; lower data.batch_size, data.seq_len or model.d_model"),
    (
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 9 bytes"),
        3,
        "error: out of memory: DefaultCPUAlloc",
    ),
    (ZeroDivisionError("by\nzero"), 3, "error: ZeroDivisionError: by (set PAR_SEARCH_TRACEBACK=1 to see where)"),
    (KeyError(), 3, "error: KeyError: KeyError (set PAR_SEARCH_TRACEBACK=1"),
]


@pytest.mark.parametrize(("error", "code", "line"), CASES, ids=lambda value: type(value).__name__)
def test_an_exception_becomes_a_code_and_one_line(
    error: Exception, code: int, line: str, capsys: pytest.CaptureFixture
) -> None:
    with pytest.raises(SystemExit) as left, exit_codes():
        raise error
    out, err = capsys.readouterr()
    assert left.value.code == code and out == ""
    assert err.startswith(line) and err.count("\n") == 1 and err.endswith("\n")


@pytest.mark.parametrize(("error", "code"), [(Stopped(2), 130), (Stopped(15), 143), (KeyboardInterrupt(), 130)])
def test_a_stop_says_nothing(error: BaseException, code: int, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as left, exit_codes():
        raise error
    assert left.value.code == code and capsys.readouterr() == ("", "")


def test_a_stop_is_no_exception_that_anything_else_would_take() -> None:
    assert not issubclass(Stopped, Exception)


def test_a_traceback_is_shown_when_asked_for(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setenv("PAR_SEARCH_TRACEBACK", "1")
    with pytest.raises(SystemExit), exit_codes():
        raise ZeroDivisionError("by zero")
    assert "Traceback" in capsys.readouterr().err


def test_success_and_other_exits_pass() -> None:
    with exit_codes():
        pass
    with pytest.raises(SystemExit) as left, exit_codes():
        raise SystemExit(7)
    assert left.value.code == 7
