"""From exceptions to the contract's exit codes: 0 done, 2 the user's mistake, 3 the run failed, 130 / 143 stopped."""

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator

from nas.stop import Stopped
from supernet.errors import RunFailed, UserError


@contextlib.contextmanager
def exit_codes() -> Iterator[None]:
    """Turn the tool's exceptions into one `error:` line and the exit code of the contract."""
    try:
        yield
    except UserError as error:
        _leave(str(error), 2)
    except Stopped as error:
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except RunFailed as error:
        _leave(str(error), 3)
    except BrokenPipeError:  # the reader of our output left, as `| head` does
        sys.exit(0)
    except OSError as error:
        _leave(f"{error.filename or 'file'}: {error.strerror or error}", 3)
    except Exception as error:  # a defect of ours: still one line, and a way to see more
        if os.environ.get("PAR_SEARCH_TRACEBACK"):
            traceback.print_exc()
        if isinstance(error, MemoryError) or "OutOfMemory" in type(error).__name__ or "can't allocate memory" in str(error):
            _leave(f"out of memory: {_first_line(error)}; lower data.batch_size, data.seq_len or model.d_model", 3)
        _leave(f"{type(error).__name__}: {_first_line(error)} (set PAR_SEARCH_TRACEBACK=1 to see where)", 3)


def _leave(message: str, code: int) -> None:
    if message:
        print(f"error: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(code)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
