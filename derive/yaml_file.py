"""YAML settings read strictly: plain values only, no key twice, bounded size; `3e-4` is a number, a date is text."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import yaml

from derive.strict_json import read_bytes
from supernet.errors import UserError

LARGEST_FILE = 2**20  # bytes
MOST_VALUES = 50_000  # with every alias written out, so that a few lines cannot stand for billions of values

# As YAML 1.2 has it: the point and the sign of the exponent may be left out.
_FLOAT = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+")


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


class _Dumper(yaml.SafeDumper):
    pass


for _kind in (_Loader, _Dumper):
    _kind.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(f"^{_FLOAT.pattern}$"), list("-+.0123456789"))


def read_yaml(path: str | Path) -> Any:
    """The value in a YAML file, None where it holds nothing. UserError, naming file and line, for anything but plain
    values."""
    data = read_bytes(path)
    if len(data) > LARGEST_FILE:
        raise UserError(f"{path}: {len(data):,} bytes; a configuration has at most {LARGEST_FILE:,}")
    try:
        loader = _Loader(data.decode("utf-8-sig"))
        node = loader.get_single_node()
        if node is None:
            return None
        _check_nodes(node, str(path))
        return loader.construct_document(node)
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 at byte {error.start}; expected a YAML text file") from None
    except yaml.MarkedYAMLError as error:
        line = f" at line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UserError(f"{path}: not YAML of plain values: {error.problem}{line}") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{path}: not YAML of plain values: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise UserError(f"{path}: nested too deeply; expected sections of keys") from None


def dump_yaml(value: Any) -> str:
    """Plain values as block YAML that `read_yaml` reads back equal."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


def _check_nodes(root: yaml.Node, name: str) -> None:
    for count, node in enumerate(_all_nodes(root)):
        if count > MOST_VALUES:
            raise UserError(f"{name}: more than {MOST_VALUES:,} values, aliases written out; expected sections of keys")
        if isinstance(node, yaml.MappingNode):
            seen = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and key.value in seen:
                    raise UserError(
                        f"{name}: key {key.value!r} stands twice in one section, again at line "
                        f"{key.start_mark.line + 1}"
                    )
                seen.add(key.value if isinstance(key, yaml.ScalarNode) else id(key))


def _all_nodes(root: yaml.Node) -> Iterator[yaml.Node]:
    """Every node as often as it is used; endless for one that holds itself."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, yaml.MappingNode):
            waiting.extend(part for pair in node.value for part in pair)
        elif isinstance(node, yaml.SequenceNode):
            waiting.extend(node.value)
