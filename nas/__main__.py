"""`python -m nas COMMAND ...`, also under torchrun: the same program as `par-search`."""

from nas.commands.command_line import command

if __name__ == "__main__":
    command()
