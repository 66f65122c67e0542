"""`python search.py COMMAND ...`: the same program as `par-search` and `python -m nas`."""

from nas.commands.command_line import command, main

__all__ = ["command", "main"]

if __name__ == "__main__":
    command()
