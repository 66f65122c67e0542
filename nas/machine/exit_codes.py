"""From exceptions to the contract's exit codes: 0 done, 2 the user's mistake, 3 the run failed, 130 / 143 stopped."""

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator

from nas.machine.stop import StopFlag, Stopped
from supernet.errors import RunFailed, UserError


@contextlib.contextmanager
def exit_codes() -> Iterator[None]:
    """Turn the tool's exceptions into one `error:` line and the exit code of the contract; flushes standard output."""
    try:
        yield
        _flush()
    except (SystemExit, GeneratorExit):
        raise
    except BrokenPipeError:  # the reader of our output left, as `| head` does
        _drop_output()
        sys.exit(0)
    except BaseException as error:
        code, message = outcome(error)
        if message:
            print(f"error: {one_line(message)}", file=sys.stderr)
        sys.exit(code)
    finally:
        StopFlag.uninstall()


@contextlib.contextmanager
def without_teardown() -> Iterator[None]:
    """End the process after `with`, with the exit code of a SystemExit raised in it, and spare Python its teardown.

    For processes of a group: DTensor's caches, and the group of the messages, keep gloo's threads alive beyond
    destroy_process_group; one that drops its last tensor while the interpreter is torn down aborts the process, once in
    some forty ends (pytorch/pytorch#179291).
    """
    code: object = None
    try:
        yield
    except SystemExit as leaving:
        code = leaving.code
    if isinstance(code, str):
        print(code, file=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # its reader has gone, or it was closed
            stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def one_line(message: str) -> str:
    """The message without line ends; what a terminal would act on, as a file's names may hold, is written out."""
    line = " ".join(message.split())
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii") for letter in line
    )


def _flush() -> None:
    try:
        sys.stdout.flush()
    except OSError:
        _drop_output()
        raise


def _drop_output() -> None:
    """Let the flush at the interpreter's exit find no broken pipe or full disk."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def outcome(error: BaseException) -> tuple[int, str]:
    """(exit code, message) that an exception stands for; no message where there is nothing to say."""
    if isinstance(error, UserError):
        return 2, str(error)
    if isinstance(error, Stopped):
        return error.exit_code, ""
    if isinstance(error, KeyboardInterrupt):
        return 130, ""
    if isinstance(error, RunFailed):
        return 3, str(error)
    if os.environ.get("PAR_SEARCH_TRACEBACK"):
        traceback.print_exception(error)
    if isinstance(error, OSError):
        return 3, f"{error.filename or 'file'}: {error.strerror or error}"
    if isinstance(error, MemoryError) or "OutOfMemory" in type(error).__name__ or "can't allocate memory" in str(error):
        return 3, f"out of memory: {_first_line(error)}; lower data.batch_size, data.seq_len or model.d_model"
    return 3, f"{type(error).__name__}: {_first_line(error)} (set PAR_SEARCH_TRACEBACK=1 to see where)"


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
