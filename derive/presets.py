"""The published layouts, fixed as golden patterns, and two that follow the current widths. One literal dictionary.

Layouts and widths: Mandava et al. 2020 (PAR), Press et al. 2020 (sandwich), Dai et al. 2019 and NVIDIA's configuration
of it (Transformer-XL), Devlin et al. 2019, Sanh et al. 2019. `par-large` is fixed, since it breaks the paper's own cut
by one layer.
"""

from dataclasses import dataclass
from typing import Any

from derive.patterns import interleaved, par_pattern
from supernet.errors import SettingError, did_you_mean

DEFAULT_LAYERS = 12  # of `interleaved` and `par` where neither `layers` nor the model's `layers` says
PAR_CUT, PAR_RATIO = 2 / 3, 5.0


@dataclass(frozen=True)
class Preset:
    """A layout with its widths; `pattern` None means that the layout is made for the number of layers asked for."""

    pattern: str | None
    task: str
    model: dict[str, Any]


_XL_BASE = {
    "vocab_size": 267735,
    "d_model": 512,
    "heads": 8,
    "d_inner": 2048,
    "max_len": 192,
    "memory_len": 192,
    "dropout": 0.1,
    "norm": "post",
    "position": "relative",
    "tie_embeddings": True,
    "cutoffs": [19997, 39997, 199997],
}
# Published with embeddings narrowed by 4 a cluster, which this model does not have: its parameters are more than
# published.
_XL_LARGE = {
    **_XL_BASE,
    "d_model": 1024,
    "heads": 16,
    "d_inner": 4096,
    "max_len": 384,
    "memory_len": 384,
    "dropout": 0.2,
}
# enwik8 and text8 as bytes: all 256, where the paper's code counts the some 200 values that occur.
_XL_24B = {**_XL_BASE, "vocab_size": 256, "max_len": 512, "memory_len": 512, "cutoffs": []}
_BERT = {
    "vocab_size": 30522,
    "d_model": 768,
    "heads": 12,
    "d_inner": 3072,
    "max_len": 512,
    "memory_len": 0,
    "dropout": 0.1,
    "norm": "post",
    "position": "learned",
    "tie_embeddings": True,
}

PRESETS: dict[str, Preset] = {
    "transformer-xl-base": Preset("(sf)x16", "causal_lm", _XL_BASE),
    "transformer-xl-large": Preset("(sf)x18", "causal_lm", _XL_LARGE),
    "par-base": Preset("(sfff)x6(f)x8", "causal_lm", _XL_BASE),
    "par-large": Preset("(sfff)x7(f)x8", "causal_lm", _XL_LARGE),
    "par-24b": Preset("(sff)x5(f)x9", "causal_lm", _XL_24B),
    "par-bert-base": Preset("(sff)x5(f)x9", "masked_lm", _BERT),
    "bert-base": Preset("(sf)x12", "masked_lm", _BERT),
    "sandwich-base": Preset("(s)x6(sf)x10(f)x6", "causal_lm", _XL_BASE),
    "distilbert": Preset("(sf)x6", "masked_lm", _BERT),
    "interleaved": Preset(None, "causal_lm", {}),
    "par": Preset(None, "causal_lm", {}),
}


def find_preset(name: str) -> Preset:
    """The preset of that name; SettingError lists the names otherwise."""
    if not isinstance(name, str) or name not in PRESETS:
        raise SettingError("preset", f"unknown preset {name!r}{did_you_mean(name, PRESETS)}")
    return PRESETS[name]


def preset_pattern(name: str, *, layers: int | None, cut: float | None = None, ratio: float | None = None) -> str:
    """The pattern of a preset. `layers` is for `interleaved` and `par`; `cut` and `ratio` (null: 2/3 and 5) shape
    `par`."""
    preset = find_preset(name)
    if preset.pattern is not None:
        if cut is not None or ratio is not None:
            raise SettingError(
                "derive.cut" if cut is not None else "derive.ratio", f"the published layout {name!r} has its own"
            )
        return preset.pattern
    count = DEFAULT_LAYERS if layers is None else layers
    if name == "interleaved":
        return interleaved(count)
    return par_pattern(count, PAR_CUT if cut is None else cut, PAR_RATIO if ratio is None else ratio)
