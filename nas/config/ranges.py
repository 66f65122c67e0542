"""The range of every number in the configuration."""

import itertools
import math

from supernet.errors import SettingError

# key -> (least, whether the least itself is allowed, most)
RANGES: dict[str, tuple[float, bool, float]] = {
    "run.seed": (0, True, 2**31),
    "run.workers": (0, True, 256),
    "run.log_every": (1, True, math.inf),
    "run.checkpoint_every": (1, True, math.inf),
    "data.eval_seq_len": (1, True, 2**20),
    "data.eval_memory_len": (0, True, 2**20),
    "data.eval_clamp_len": (1, True, 2**20),
    "data.seq_len": (1, True, 2**20),
    "data.batch_size": (1, True, 2**20),
    "data.micro_batch_size": (1, True, 2**20),
    "model.layers": (1, True, 1024),
    "model.d_model": (1, True, 2**16),
    "model.heads": (1, True, 2**12),
    "model.d_inner": (1, True, 2**18),
    "model.max_len": (1, True, 2**20),
    "model.memory_len": (0, True, 2**20),
    "search.steps": (1, True, 2**40),
    "search.warmup_steps": (0, True, 2**40),
    "search.temperature_start": (0.001, True, math.inf),
    "search.temperature_end": (0.001, True, math.inf),
    "search.mixture": (0, True, 1),
    "search.weight_lr": (0, False, math.inf),
    "search.arch_lr": (0, False, math.inf),
    "search.weight_decay": (0, True, math.inf),
    "search.clip": (0, False, math.inf),
    "search.arch_every": (1, True, 2**40),
    "search.arch_samples": (2, True, 1024),
    "search.active": (2, True, 1024),
    "search.cost_weight": (0, True, math.inf),
    "search.budget": (0, False, 1),
    "search.seeds": (1, True, 1000),
    "search.evaluate_every": (1, True, 2**40),
    "search.evaluate_tokens": (1, True, 2**40),
    "derive.cut": (0, False, 1),
    "derive.ratio": (1, True, math.inf),
    "derive.budget": (0, False, 1),
    "retrain.steps": (1, True, 2**40),
    "retrain.lr": (0, False, math.inf),
    "retrain.weight_decay": (0, True, math.inf),
    "retrain.clip": (0, False, math.inf),
    "retrain.seeds": (1, True, 1000),
    "retrain.evaluate_every": (1, True, 2**40),
    "retrain.evaluate_tokens": (1, True, 2**40),
    "retrain.final_tokens": (1, True, 2**40),
    "latency.batch_size": (1, True, 2**20),
    "latency.seq_len": (1, True, 2**20),
    "sweep.ratios": (1, True, math.inf),
    "sweep.cuts": (0, False, 1),
    "retrain.drawn": (0, True, 1000),
    "retrain.random": (0, True, 1000),
    "retrain.rung_tokens": (1, True, 2**40),
}


def check_ranges(config: object) -> None:
    """Raise SettingError for the first number that lies outside its key's range; `config` has the sections."""
    for key, (least, closed, most) in RANGES.items():
        section, name = key.split(".")
        given = getattr(getattr(config, section), name)
        low = f"at least {least}" if closed else f"above {least}"
        high = "" if most == math.inf else f" and at most {most}"
        if given == []:
            raise SettingError(key, f"expected values {low}{high}, got none")
        for value in given if isinstance(given, list) else [given]:
            if value is None:
                continue
            if not (least <= value if closed else least < value) or value > most or not math.isfinite(value):
                raise SettingError(key, f"expected a value {low}{high}, got {_number(value)}")


def check_shares(key: str, shares: list[float]) -> None:
    """Rising fractions of 1."""
    rising = [0.0, *shares, 1.0]
    if not all(low < high for low, high in itertools.pairwise(rising)):
        raise SettingError(key, f"expected rising fractions between 0 and 1, got {shares}")


def _number(value: float) -> str:
    try:
        return str(value)
    except ValueError:  # Python does not write integers of more than some thousand digits
        return "an integer of thousands of digits"
