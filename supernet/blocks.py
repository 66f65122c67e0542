"""The registry of candidate blocks: names, letters, options, labels and costs. Needs no torch.

A *candidate* is a block's name with options; its *label* shows the name and the options that differ from the defaults.
"""

import functools
import importlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from supernet import costs
from supernet.errors import SettingError, UserError, did_you_mean
from supernet.settings import ModelSettings, check_int
from supernet.user_blocks import (
    accepts_any_option,
    check_user_options,
    default_user_options,
    option_parameters,
    read_option,
    show_option,
    user_block_cost,
)


@dataclass(frozen=True)
class BlockSpec:
    """What is known of a block without building it.

    `module` is "package.module:Class", imported when the first such block is built; `cost(settings, options, seq_len)`
    gives (parameters, FLOPs a token); `attention_like` says whether the block mixes positions (the rules count those).
    """

    letter: str
    options: tuple[str, ...]
    module: str | type
    cost: Callable[[ModelSettings, Mapping[str, Any], int], tuple[int, int]] | None
    attention_like: bool = False


BLOCKS: dict[str, BlockSpec] = {
    "self_attention": BlockSpec(
        "s", ("heads",), "supernet.attention:SelfAttention", costs.attention_block(costs.dot_product_logits), True
    ),
    "dense_synthesizer": BlockSpec(
        "d",
        ("heads", "d_hidden"),
        "supernet.synthesizers:DenseSynthesizer",
        costs.attention_block(costs.dense_logits),
        True,
    ),
    "random_synthesizer": BlockSpec(
        "r", ("heads",), "supernet.synthesizers:RandomSynthesizer", costs.attention_block(costs.random_logits), True
    ),
    "fixed_random_synthesizer": BlockSpec(
        "x",
        ("heads", "seed"),
        "supernet.synthesizers:FixedRandomSynthesizer",
        costs.attention_block(costs.fixed_random_logits),
        True,
    ),
    "factorized_dense_synthesizer": BlockSpec(
        "e",
        ("heads", "a", "b"),
        "supernet.synthesizers:FactorizedDenseSynthesizer",
        costs.attention_block(costs.factorized_dense_logits),
        True,
    ),
    "factorized_random_synthesizer": BlockSpec(
        "q",
        ("heads", "rank"),
        "supernet.synthesizers:FactorizedRandomSynthesizer",
        costs.attention_block(costs.factorized_random_logits),
        True,
    ),
    "mixture_synthesizer": BlockSpec(
        "m",
        ("heads", "parts"),
        "supernet.synthesizers:MixtureSynthesizer",
        costs.attention_block(costs.mixture_logits),
        True,
    ),
    "feed_forward": BlockSpec("f", ("d_inner",), "supernet.feed_forward:FeedForward", costs.feed_forward_block),
    "identity": BlockSpec("i", (), "supernet.feed_forward:Identity", costs.identity_block),
}

# Options whose default is not a key of the model are written out in files, so that a file stays true if a default
# changes.
SELF_CONTAINED_OPTIONS = ("seed", "a", "b", "rank", "parts")


@dataclass(frozen=True)
class Candidate:
    """A block with the options that differ from their defaults, in the block's own order."""

    block: str
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def label(self) -> str:
        """Such as `self_attention[heads=2]`; lists are joined with `+`."""
        shown = [f"{key}={show_option(value)}" for key, value in self.options]
        return f"{self.block}[{','.join(shown)}]" if shown else self.block

    @property
    def letter(self) -> str:
        """The block's letter in patterns."""
        return BLOCKS[self.block].letter

    @property
    def attention_like(self) -> bool:
        """Whether the block mixes positions."""
        return BLOCKS[self.block].attention_like


@functools.lru_cache
def nearest_divisors(length: int) -> tuple[int, int]:
    """The divisors a <= b of `length`, a * b = length, that lie nearest its root."""
    a = next(a for a in range(math.isqrt(length), 0, -1) if length % a == 0)
    return a, length // a


def default_options(block: str, settings: ModelSettings) -> dict[str, Any]:
    """Every option of a block at its default for these settings, in the block's order."""
    spec = BLOCKS[block]
    if isinstance(spec.module, type):
        return default_user_options(spec.module)
    a, b = nearest_divisors(settings.max_len)
    defaults = {
        "heads": settings.heads,
        "d_hidden": settings.d_model,
        "d_inner": settings.d_inner,
        "seed": 0,
        "a": a,
        "b": b,
        "rank": 8,
        "parts": ("self_attention", "random"),
    }
    return {name: defaults[name] for name in spec.options}


def all_options(candidate: Candidate, settings: ModelSettings) -> dict[str, Any]:
    """Every option of the candidate, defaults included; a mixture's parts bring their own (`rank`, `a`, `b`, ...)."""
    options = {**default_options(candidate.block, settings), **dict(candidate.options)}
    if candidate.block == "mixture_synthesizer":
        a, b = nearest_divisors(settings.max_len)
        options.update(d_hidden=settings.d_model, rank=8, a=a, b=b)
    return options


def parse_candidate(
    value: str | Mapping[str, Any] | Candidate, settings: ModelSettings, path: str = "block"
) -> Candidate:
    """A candidate from a label, from an object in the form of an architecture's layers, or from a candidate.

    Raises SettingError, naming `path` and the option, for unknown names and options, wrong types and sizes that do not
    fit.
    """
    if isinstance(value, Candidate):
        value = {"block": value.block, **dict(value.options)}
    if isinstance(value, str):
        value = _split_label(value, path)
    if not isinstance(value, Mapping):
        raise SettingError(path, f"expected a label or an object with a 'block', got {value!r}")
    if "block" not in value:
        raise SettingError(path, "has no 'block'")
    name = value["block"]
    if not isinstance(name, str) or name not in BLOCKS:
        raise SettingError(f"{path}.block", f"unknown block {name!r}{did_you_mean(name, BLOCKS)}")
    given = {key: option for key, option in value.items() if key != "block"}
    options = _check_options(name, given, settings, path)
    defaults = default_options(name, settings)
    ordered = [key for key in (*defaults, *options) if key in options and options[key] != defaults.get(key)]
    return Candidate(name, tuple((key, options[key]) for key in dict.fromkeys(ordered)))


def parse_candidates(values: Sequence[Any], settings: ModelSettings, path: str = "search.blocks") -> list[Candidate]:
    """At least two different candidates from labels or objects."""
    if isinstance(values, (str, Mapping)) or not isinstance(values, Sequence):
        raise SettingError(path, f"expected a list of labels or objects, got {values!r}")
    candidates = [parse_candidate(value, settings, f"{path}[{index}]") for index, value in enumerate(values)]
    for index, candidate in enumerate(candidates):
        if candidate in candidates[:index]:
            raise SettingError(
                f"{path}[{index}]", f"{candidate.label} is already a candidate; give it other options or drop it"
            )
    if len(candidates) < 2:
        raise SettingError(path, f"a search needs at least two candidates, got {len(candidates)}")
    return candidates


def candidate_to_json(candidate: Candidate, settings: ModelSettings) -> dict[str, Any]:
    """The object of an architecture's `layers`; options that do not come from the model's settings are written out."""
    options = {**default_options(candidate.block, settings), **dict(candidate.options)}
    changed = dict(candidate.options)
    shown = {key: value for key, value in options.items() if key in changed or key in SELF_CONTAINED_OPTIONS}
    return {"block": candidate.block, **{k: list(v) if isinstance(v, tuple) else v for k, v in shown.items()}}


def candidate_cost(candidate: Candidate, settings: ModelSettings, seq_len: int) -> tuple[int, int]:
    """(parameters with the block's norm, forward FLOPs a token at length `seq_len`, at least 1)."""
    check_int(seq_len, "seq_len", least=1)
    spec = BLOCKS[candidate.block]
    if spec.cost is not None:
        return spec.cost(settings, all_options(candidate, settings), seq_len)
    parameters, flops = user_block_cost(
        block_class(candidate.block), all_options(candidate, settings), settings, seq_len
    )
    return parameters + costs.norm_parameters(settings), flops


def block_class(name: str) -> type:
    """The module class of a block, imported when first asked for."""
    module = BLOCKS[name].module
    if isinstance(module, type):
        return module
    package, attribute = module.split(":")
    return getattr(importlib.import_module(package), attribute)


def letters() -> dict[str, str]:
    """Letter -> block name, for patterns."""
    return {spec.letter: name for name, spec in BLOCKS.items()}


def register_block(name: str, *, letter: str, attention_like: bool = False) -> Callable[[type], type]:
    """Class decorator that adds a user's block, under a name and a letter that no other block has.

    The class is an `nn.Module` with `__init__(self, config, **options)`, `config` a ModelSettings, and `forward(self,
    x, *, mask=None)` from [B, T, d] to [B, T, d], `mask` [B, T] bool, True = real token. Norm and residual are added
    around it. A class attribute or method `flops_per_token(config, seq_len)` gives its cost (0 if left out);
    `attention_like=True` lets the derivation rules count it as attention. Raises UserError for a taken name or letter.
    """
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise UserError(f"register_block: name {name!r} must be letters, digits and underscores")
    if not isinstance(letter, str) or not re.fullmatch(r"[a-z]", letter):
        raise UserError(f"register_block: letter {letter!r} must be one lower-case letter")
    if name in BLOCKS:
        raise UserError(f"register_block: the name {name!r} is taken")
    if letter in letters():
        raise UserError(f"register_block: the letter {letter!r} is taken by {letters()[letter]!r}")

    def register(cls: type) -> type:
        import torch  # a user's block is a torch module, so torch is there

        if not isinstance(cls, type) or not issubclass(cls, torch.nn.Module):
            raise UserError(f"register_block: {name!r} must be a class derived from torch.nn.Module, got {cls!r}")
        BLOCKS[name] = BlockSpec(letter, tuple(option_parameters(cls)), cls, None, attention_like)
        return cls

    return register


def _split_label(label: str, path: str) -> dict[str, Any]:
    """`name[key=value,...]` as an object; integers and `+` lists are read as such."""
    found = re.fullmatch(r"([A-Za-z0-9_]+)(?:\[([^\[\]]*)\])?", label.strip())
    if not found:
        raise SettingError(path, f"{label!r} is no label such as 'feed_forward' or 'self_attention[heads=2]'")
    options: dict[str, Any] = {"block": found[1]}
    for piece in filter(None, (found[2] or "").split(",")):
        key, equals, value = (part.strip() for part in piece.partition("="))
        if not equals or not key or not value:
            raise SettingError(path, f"{label!r}: expected key=value in the brackets, got {piece!r}")
        if key in options:
            raise SettingError(path, f"{label!r}: {key!r} is given twice")
        options[key] = read_option(key, value)
    return options


def _check_options(name: str, given: dict[str, Any], settings: ModelSettings, path: str) -> dict[str, Any]:
    spec = BLOCKS[name]
    user_class = spec.module if isinstance(spec.module, type) else None
    for key in given:
        if key not in spec.options and not (user_class and accepts_any_option(user_class)):
            known = did_you_mean(key, spec.options) if spec.options else f"; {name} has none"
            raise SettingError(f"{path}.{key}", f"unknown option{known}")
    if user_class:
        return check_user_options(user_class, given, path)
    options = dict(given)
    for key, value in given.items():
        if key == "parts":
            options[key] = _check_parts(value, f"{path}.parts")
        else:
            check_int(value, f"{path}.{key}", least=0 if key == "seed" else 1)
    _check_sizes(options, settings, path)
    return options


def _check_parts(value: Any, path: str) -> tuple[str, ...]:
    known = tuple(costs.MIXTURE_PARTS)
    if not isinstance(value, (list, tuple)) or len(value) < 2:
        raise SettingError(path, f"expected a list of two or more of {', '.join(known)}, got {value!r}")
    for part in value:
        if part not in known:
            raise SettingError(path, f"unknown part {part!r}{did_you_mean(str(part), known)}")
    if len(set(value)) != len(value):
        raise SettingError(path, f"a part is named twice in {list(value)}")
    return tuple(part for part in known if part in value)  # one order, so one label


def _check_sizes(options: dict[str, Any], settings: ModelSettings, path: str) -> None:
    heads = options.get("heads", settings.heads)
    if settings.d_model % heads:
        raise SettingError(f"{path}.heads", f"{heads} does not divide d_model {settings.d_model}")
    if options.get("d_hidden", heads) % heads:
        raise SettingError(f"{path}.d_hidden", f"{options['d_hidden']} is not a multiple of the {heads} heads")
    length = settings.max_len
    for key, other in (("a", "b"), ("b", "a")):
        if key in options and other not in options:
            if length % options[key]:
                raise SettingError(f"{path}.{key}", f"{options[key]} does not divide max_len {length}")
            options[other] = length // options[key]
    if "a" in options and options["a"] * options["b"] != length:
        raise SettingError(f"{path}.a", f"a * b is {options['a'] * options['b']}, but must be max_len {length}")
