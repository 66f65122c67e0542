"""Command line and YAML through one jsonargparse parser, and one-line errors that name the key."""

import dataclasses
import difflib
import re
import warnings
from collections.abc import Sequence
from typing import Any, Literal

import jsonargparse

from nas.config import Config, DataConfig
from supernet.errors import SettingError, UserError

SECTIONS = {field.name: field.type for field in dataclasses.fields(Config)}


@dataclasses.dataclass
class EvaluateDataConfig(DataConfig):
    """The text, and which part of it is evaluated."""

    split: Literal["held_out", "test"] = "held_out"
    """part of the text to evaluate on"""


class OneLineParser(jsonargparse.ArgumentParser):
    """A parser whose mistakes come back as UserError instead of usage text and an exit."""

    def error(self, message: str, *args: Any, **kwargs: Any) -> None:
        """Raise UserError with the message on one line."""
        raise UserError(explain(str(message), self.known_keys()))

    def known_keys(self) -> list[str]:
        """Every `section.key` that the parser takes."""
        return [action.dest for action in self._actions if action.dest not in ("help", "config", "print_config")]


def build_parser(
    command: str, description: str, sections: Sequence[str], *, base: Config | None = None, config_file: bool = True
) -> OneLineParser:
    """A parser for one command: `--config`, `--print_config` and the keys of `sections`, with the defaults of `base`."""
    jsonargparse.set_parsing_settings(docstring_parse_attribute_docstrings=True)
    parser = OneLineParser(prog=f"search.py {command}", description=description, exit_on_error=False)
    if config_file:
        parser.add_argument("--config", action="config", help="YAML file with any of the sections below")
    base = base or Config()
    for section in sections:
        kind, default = SECTIONS[section], getattr(base, section)
        if command == "evaluate" and section == "data":
            kind, default = EvaluateDataConfig, EvaluateDataConfig()
        parser.add_argument(f"--{section}", type=kind, default=default)
    return parser


def build_command_parser(command: str, description: str, sections: Sequence[str], positional: str) -> OneLineParser:
    """`build_parser` with a command's positional arguments: "RUN" one, "ARCH..." one or more, "" none."""
    parser = build_parser(command, description, sections, config_file=len(sections) > 2)
    if positional.endswith("..."):
        parser.add_argument(positional[:-3], type=str, nargs="+", help="file, preset or pattern")
    elif positional:
        parser.add_argument(positional, type=str)
    if command == "show":
        parser.add_argument("--format", type=Literal["text", "json", "pattern", "tuple"], default="text", help="what to print")
    return parser


def parse_arguments(parser: OneLineParser, arguments: Sequence[str]) -> jsonargparse.Namespace:
    """The parsed namespace with dataclass sections; UserError on one line for any mistake."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return parser.instantiate(parser.parse_args(list(arguments)))
    except UserError:
        raise
    except (jsonargparse.ArgumentError, TypeError, ValueError, RecursionError, OSError) as error:
        raise UserError(explain(str(error), parser.known_keys())) from None


def config_from_namespace(namespace: jsonargparse.Namespace, base: Config | None = None) -> Config:
    """The sections that were parsed, on top of `base`; not yet checked."""
    sections = {name: getattr(namespace, name) for name in SECTIONS if hasattr(namespace, name)}
    return dataclasses.replace(base or Config(), **sections)


def parse_mapping(values: Any, source: str) -> Config:
    """A checked configuration from the mapping of a `config.yaml`; UserError names the file and key."""
    if not isinstance(values, dict):
        raise UserError(f"{source}: expected sections such as run and search, got {type(values).__name__}")
    parser = build_parser("run", "", list(SECTIONS))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            config = config_from_namespace(parser.instantiate(parser.parse_object(values)))
        config.check()
        return config
    except SettingError as error:
        raise SettingError(f"{source}: {error.path}", str(error).removeprefix(f"{error.path}: ")) from None
    except (jsonargparse.ArgumentError, TypeError, ValueError, KeyError, RecursionError) as error:
        raise UserError(f"{source}: {explain(str(error), parser.known_keys())}") from None


def explain(message: str, known: Sequence[str]) -> str:
    """jsonargparse's message on one line, in the words of this tool, with the nearest known key."""
    line = " ".join(message.split())
    line = re.sub(r'^Parser key "([^"]*)": ', r"\1: ", line)
    line = re.sub(r"Expected a <class '(\w+)'>\.? Got value: (.*)", _expected, line)
    line = re.sub(r"Expected a typing\.Literal\[(.*?)\]\.? Got value: (.*)", r"expected one of \1, got \2", line)
    unknown = re.search(r"unrecognized arguments: (\S+)", line) or re.search(r"[Kk]ey '?([\w.]+)'? is not expected", line)
    if unknown:
        key = unknown[1].lstrip("-").split("=")[0]
        close = difflib.get_close_matches(key, known, n=1)
        hint = f"did you mean {close[0]}?" if close else "see --help for the known keys"
        return f"{key}: unknown key; {hint}"
    return line


def _expected(found: re.Match) -> str:
    names = {"int": "an integer", "float": "a number", "bool": "true or false", "list": "a list such as [a, b]", "str": "text"}
    return f"expected {names.get(found[1], found[1])}, got {found[2]}"
