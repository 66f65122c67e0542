"""Command line and YAML through one jsonargparse parser, and one-line errors that name the key."""

import dataclasses
import itertools
import re
import sys
import typing
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jsonargparse

from derive.yaml_file import dump_yaml, read_yaml
from nas.config.command_keys import SECTIONS, EvaluateDataConfig, section_type, unread_keys
from nas.config.sections import Config
from supernet.errors import SettingError, UserError, did_you_mean


@dataclasses.dataclass
class GenerateConfig:
    """What the command `generate` takes beside sections. `check` raises SettingError for the first value out of
    range."""

    prompt: str = ""
    """the text to go on with"""
    tokens: int = 200
    """how many tokens follow"""
    temperature: float = 1.0
    """0: always the likeliest token; above 1 more evenly drawn, below less"""
    top_k: int | None = None
    """draw from so many of the likeliest tokens; null: from all"""
    seed: int | None = None
    """of the drawing; null: run.seed"""

    def check(self) -> None:
        """Raise SettingError for the first value that is out of range."""
        from supernet.decoding import check_choice  # here, since it loads torch

        if not self.prompt:
            raise SettingError("prompt", "expected the text to go on with, got nothing")
        for key in ("tokens", "seed"):
            value = getattr(self, key)
            if value is not None and not 0 <= value <= 2**31:
                raise SettingError(key, f"expected a value at least 0 and at most {2**31}, got {_short(value)}")
        check_choice(self.temperature, self.top_k)


class Positional(NamedTuple):
    """A positional argument's name, and whether it may stand several times."""

    name: str
    help: str
    many: bool = False


class Syntax(NamedTuple):
    """What may stand behind a command's name: keys of `sections`, a positional argument, `--format` with one of
    `formats`, and options of its own, a dataclass."""

    command: str
    help: str
    sections: Sequence[str]
    positional: Positional | None = None
    formats: Sequence[str] = ()
    own: type | None = None


def program_name() -> str:
    """What was called: `par-search`, `search.py`, or `python -m nas`."""
    name = Path(sys.argv[0]).name
    return "python -m nas" if name == "__main__.py" else name or "par-search"


class OneLineParser(jsonargparse.ArgumentParser):
    """A parser whose mistakes come back as UserError instead of usage text and an exit."""

    def error(self, message: str, *args: Any, **kwargs: Any) -> None:
        """Raise UserError with the message on one line."""
        raise UserError(explain(str(message)))


def build_parser(syntax: Syntax, *, base: Config | None = None, every_key: bool = False) -> OneLineParser:
    """A parser for one command, with the defaults of `base`: for the keys that the command reads, or with `every_key`
    for all that a file may hold.

    `--config` and `--print_config` are in its help only; `parse_command` takes them out before.
    """
    jsonargparse.set_parsing_settings(docstring_parse_attribute_docstrings=True)
    command, positional, formats, sections = syntax.command, syntax.positional, syntax.formats, syntax.sections
    parser = OneLineParser(
        prog=f"{program_name()} {command}", description=syntax.help, exit_on_error=False, allow_abbrev=False
    )
    if positional:
        parser.add_argument(positional.name, type=str, nargs="+" if positional.many else None, help=positional.help)
    if formats:
        parser.add_argument("--format", type=Literal[tuple(formats)], default=formats[0], help="what to print")
    if syntax.own:
        parser.add_class_arguments(syntax.own, as_group=False)
    if sections:
        parser.add_argument(
            "--config", type=str, help="YAML file with any of the sections below; options come on top of it"
        )
        parser.add_argument("--print_config", action="store_true", help="print the resolved YAML and stop")
    for section in sections:
        kind, default = section_type(command, section), getattr(base or Config(), section)
        if not isinstance(default, kind):
            default = kind(**dataclasses.asdict(default))
        skip = set() if every_key else unread_keys(command, section)
        parser.add_argument(f"--{section}", type=kind, default=default, skip=skip)
    return parser


def parse_command(
    syntax: Syntax, arguments: Sequence[str], *, base: Config | None = None
) -> tuple[Config, jsonargparse.Namespace, bool]:
    """(`base` with all that was given, everything parsed, whether `--print_config` was given); UserError for any
    mistake.

    Wherever `--config FILE` stands, the options come on top of it. Its sections that the command has no use for are
    read over.
    """
    sections = syntax.sections
    files, rest = _take_option(arguments, "--config") if sections else ([], list(arguments))
    wants_print = bool(sections) and "--print_config" in rest
    rest = [argument for argument in rest if not (sections and argument == "--print_config")]
    _check_prompt(rest, syntax.own)
    base = base or Config()
    for file in files:
        base = config_from_values(read_yaml(file) or {}, base, syntax.command, source=file)
    parser = build_parser(syntax, base=base)
    namespace = _parsed(parser, lambda: parser.parse_args(_readable(rest)), "")
    for section in sections:  # what is no option is as in the files
        kept = {key: getattr(getattr(base, section), key) for key in unread_keys(syntax.command, section)}
        setattr(namespace, section, dataclasses.replace(getattr(namespace, section), **kept))
    return _with_sections(base, namespace, ""), namespace, wants_print


def config_from_values(values: Any, base: Config, command: str = "run", *, source: str) -> Config:
    """`base` with the values of a YAML file's mapping on top, not yet checked; UserError names the file and key."""
    if not isinstance(values, Mapping):
        raise UserError(f"{source}: expected sections such as run and search, got {_short(values)}")
    _check_keys(values, command, source)
    given = [section for section in SECTIONS if section in values]
    parser = build_parser(Syntax(command, "", given), base=base, every_key=True)
    plain = {section: dict(values[section]) for section in given}
    return _with_sections(base, _parsed(parser, lambda: parser.parse_object(plain), f"{source}: "), f"{source}: ")


def print_config(config: Config, command: str, sections: Sequence[str]) -> None:
    """Print what a command takes of its sections as YAML, valid input of `--config`."""
    values = dataclasses.asdict(config)
    read = {
        section: {key: value for key, value in values[section].items() if key not in unread_keys(command, section)}
        for section in sections
    }
    print(dump_yaml(read), end="")


def _take_option(arguments: Sequence[str], option: str) -> tuple[list[str], list[str]]:
    """The values of every `option VALUE` and `option=VALUE`, and the other arguments."""
    values, rest, waiting = [], [], iter(arguments)
    for argument in waiting:
        if argument == option:
            value = next(waiting, None)
            values.append(value)
        elif argument.startswith(f"{option}="):
            values.append(argument.removeprefix(f"{option}="))
        else:
            rest.append(argument)
    if not all(values):
        raise UserError(f"{option.lstrip('-')}: expected a file")
    return values, rest


def _check_prompt(arguments: Sequence[str], own: type | None) -> None:
    """SettingError for a prompt that is no text: it names no file, so `_readable` has the wrong words for it."""
    for before, argument in itertools.pairwise(["", *arguments]):
        option, _, value = argument.partition("=")
        given = argument if before == "--prompt" else value if option == "--prompt" else ""
        if own is GenerateConfig and not _is_utf8(given):
            raise SettingError(
                "prompt", f"expected text in UTF-8, got {_short(given.encode('utf-8', 'backslashreplace').decode())}"
            )


def _readable(arguments: list[str]) -> list[str]:
    for argument in arguments:
        if not argument.isascii() and any("\ud800" <= letter <= "\udfff" for letter in argument):
            raise UserError(
                f"{argument.encode('utf-8', 'backslashreplace').decode()}: not UTF-8; rename the file or give "
                "another value"
            )
        if argument.startswith("-") and not argument.lstrip("-"):
            raise UserError(f"{argument}: unexpected argument; options are written --section.key VALUE")
    return arguments


def _parsed(parser: OneLineParser, parse: Any, source: str) -> jsonargparse.Namespace:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return parser.instantiate(parse())
    except UserError as error:
        raise UserError(f"{source}{error}") from None
    except (jsonargparse.ArgumentError, TypeError, ValueError, KeyError, RecursionError, OSError) as error:
        raise UserError(f"{source}{explain(str(error))}") from None


def _with_sections(base: Config, namespace: jsonargparse.Namespace, source: str) -> Config:
    """`base` with the parsed sections; refuses null where a key has no null, and text that is not UTF-8."""
    sections = {name: getattr(namespace, name) for name in SECTIONS if hasattr(namespace, name)}
    for name, section in sections.items():
        for field in dataclasses.fields(section):
            value, key = getattr(section, field.name), f"{source}{name}.{field.name}"
            if value is None and type(None) not in typing.get_args(field.type):
                raise SettingError(key, f"expected {expected(field.type)}, got null")
            if isinstance(value, str) and not value.strip():
                raise SettingError(key, f"expected {expected(field.type)}, got nothing")
            if not _is_utf8(value):
                raise SettingError(key, f"not UTF-8: {_short(value)}")
    return dataclasses.replace(base, **sections)


def _is_utf8(value: Any) -> bool:
    try:
        str(value).encode("utf-8")
    except ValueError:  # a surrogate; or a number of so many digits that Python does not write it
        return False
    return True


def _check_keys(values: Mapping[Any, Any], command: str, source: str) -> None:
    for section, keys in values.items():
        if not isinstance(section, str) or section not in SECTIONS:
            raise UserError(f"{source}: {_short(section)}: unknown section{did_you_mean(str(section), SECTIONS)}")
        if not isinstance(keys, Mapping):
            raise UserError(f"{source}: {section}: expected keys with values, got {_short(keys)}")
        known = [field.name for field in dataclasses.fields(section_type(command, section))]
        for key in keys:
            if key not in known:
                raise UserError(f"{source}: {section}.{_short(key)}: unknown key{did_you_mean(str(key), known)}")


def explain(message: str) -> str:
    """jsonargparse's message on one line, in the words of this tool: the key, what it takes, what it got."""
    line = " ".join(message.split())
    unknown = re.search(r"unrecognized arguments: (\S+)", line)
    if unknown:
        return _unknown(unknown[1])
    within = re.search(r"Group '(\w+)' does not accept option '([^']+)'", line)
    if within:
        return _unknown(f"--{within[1]}.{within[2]}")
    missing = re.search(r"the following arguments are required: (.+)", line)
    if missing:
        return f"{missing[1]}: is missing; --help says what it is"
    key = re.search(r'Parser key "([\w.]+)"', line) or re.match(r"argument --([\w.]+):", line)
    if not key:
        return line
    got = re.search(r"Given value:(.*)$", line) or re.search(
        r"(?:Got value:|Unable to load config)(.*?)(?: - .*)?$", line
    )
    takes = _takes(key[1])
    hint = (
        f"; text that begins with - is given as --{key[1]}=-x"
        if takes == "text" and "expected one argument" in line
        else ""
    )
    return f"{key[1]}: expected {takes}, got {_short(got[1] if got else '') or 'nothing'}{hint}" if takes else line


def _unknown(argument: str) -> str:
    if not argument.startswith("-"):
        return f"{_short(argument)}: unexpected argument; options are written --section.key VALUE"
    key = argument.lstrip("-").split("=")[0]
    known = [f"{section}.{field.name}" for section, kind in SECTIONS.items() for field in dataclasses.fields(kind)]
    if key in known:
        return f"{key}: this command does not take it; --help lists the keys that it takes"
    hint = did_you_mean(key, known)
    return f"{_short(key)}: unknown key{hint if 'mean' in hint else '; --help lists the keys of this command'}"


def _takes(key: str) -> str | None:
    """What a `section.key` (or a section) takes, in words."""
    section, _, name = key.partition(".")
    if section == "format":
        return "one of text, json, pattern, tuple"
    own = {field.name: field.type for field in dataclasses.fields(GenerateConfig)}
    if key in own:
        return expected(own[key])
    if section not in SECTIONS:
        return None
    types = {
        field.name: field.type
        for field in dataclasses.fields(EvaluateDataConfig if section == "data" else SECTIONS[section])
    }
    if not name:
        return f"keys with values such as {{{next(iter(types))}: ...}}"
    return expected(types[name]) if name in types else None


def expected(kind: Any) -> str:
    """What a field of this type takes, in words."""
    words = {int: "an integer", float: "a number", bool: "true or false", str: "text"}
    if kind in words:
        return words[kind]
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return f"one of {', '.join(parts)}"
    if origin is list:
        return f"a list such as {_LISTS[kind]}" if kind in _LISTS else "a list"
    if type(None) in parts:
        return f"{expected(next(part for part in parts if part is not type(None)))} or null"
    return str(kind)


_LISTS = {
    list[float]: "[2.0, 5.0]",
    list[str]: "[interleaved, par]",
    list[str | dict[str, Any]]: "[self_attention, {block: feed_forward, d_inner: 64}]",
    list[dict[str, Any]]: "[{block: identity, at_most: 3}]",
}


def _short(value: Any) -> str:
    try:
        text = " ".join(str(value).split())
    except ValueError:
        text = "a number with thousands of digits"
    return text if len(text) <= 80 else f"{text[:77]}..."
