"""Lines for the person, on standard error."""

import sys

from tqdm import tqdm


def note(message: str) -> None:
    """A line for the person, on standard error."""
    print(message, file=sys.stderr)


def warn(message: str) -> None:
    """A line on standard error, above the progress bars."""
    tqdm.write(f"warning: {message}", file=sys.stderr)
