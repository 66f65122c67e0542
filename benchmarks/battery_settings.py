"""The battery's twelve settings, drawn once from written ranges by a fixed seed: python benchmarks/battery_settings.py
prints them.

D1 to D6 are for development; H1 to H6 are held out: a method is run on them once, when it is done, and what comes is
reported. SETTINGS below is what the draw gave, written out; a test draws it again.
"""

import random
from dataclasses import astuple, dataclass
from functools import cached_property

from battery_layouts import Space

from supernet.blocks import BLOCKS, parse_candidate
from supernet.settings import ModelSettings

DRAW = "par-search battery, first draw"
IDS = tuple(f"{half}{number}" for half in "DH" for number in range(1, 7))
CORPORA = ("sotu", "enwik8", "tiny-shakespeare", "wikitext")  # each in three settings
LAYERS = range(4, 13)
WIDTHS = (32, 48, 64, 96, 128)
INNER = (1, 2, 4)  # times the width
HEADS = (2, 4)
ROWS = (32, 48, 64, 96, 128)
BATCHES = (8, 12, 16)
CANDIDATES = range(3, 8)
BUDGETS = tuple(round(0.3 + 0.05 * step, 2) for step in range(13))  # 0.30 to 0.90
RATES = (3e-3, 6e-3, 1e-2)
STEPS = (300, 400, 500, 600, 800)
WITH_IDENTITY, WITH_ATTENTION = 2 / 3, 3 / 4  # of the settings, before those that do not fit are drawn again
SMALLEST = 40  # networks within the budget: a smaller space is drawn again
ALONE = 13.0  # CPU seconds that a training may take by `estimate`: as many steps as fit, or drawn again
WHOLE = 110  # networks within the budget, at most, that are all trained
RANDOM = (36, 60)  # random layouts within the budget, fewest and most
FOR_ONE = 1300.0  # CPU seconds that a setting's trainings may take by `estimate`, with more than the fewest
ABOVE, LOCAL = 3, 8  # random layouts just above the budget; steps of the local search


@dataclass(frozen=True)
class Setting:
    """One setting. `candidates` are labels; `networks` is how many random layouts within the budget are trained, or 0
    for all there are.
    """

    id: str
    corpus: str
    layers: int
    d_model: int
    heads: int
    d_inner: int
    seq_len: int
    batch_size: int
    candidates: tuple[str, ...]
    budget: float
    steps: int
    lr: float
    networks: int
    seeds: int = 2

    @cached_property
    def model(self) -> ModelSettings:
        """The widths; tokens are bytes."""
        return ModelSettings(
            vocab_size=256, d_model=self.d_model, heads=self.heads, d_inner=self.d_inner, max_len=self.seq_len
        )

    @cached_property
    def space(self) -> Space:
        """The layouts that the candidates make."""
        return Space(self.model, self.layers, self.candidates)

    @property
    def held_out(self) -> bool:
        """Whether a method may be run here once only."""
        return self.id.startswith("H")


def estimate(setting: Setting) -> float:
    """CPU seconds of a training at the budget's cost: a third more than interleaved layouts of an earlier draw took on
    a quiet machine (98 GFLOP/s, 0.25 ms a layer, 1.4 ms a step), as other blocks are slower than their FLOPs.
    """
    flops = setting.budget * setting.space.baseline + 2 * setting.d_model * 256
    arithmetic = 3 * setting.batch_size * setting.seq_len * flops / 73e9
    return setting.steps * (arithmetic + 0.33e-3 * setting.layers + 1.9e-3)


def draw_settings(seed: str = DRAW) -> list[Setting]:
    """The twelve settings of a seed: each half has every corpus once and two of them twice, the other two in the other
    half; the rest of a setting is at random.

    A setting whose space is too small within its budget, or which even the fewest steps make too dear, is drawn again.
    """
    source = random.Random(seed)
    twice = source.sample(CORPORA, len(CORPORA))
    halves = [[*CORPORA, *twice[:2]], [*CORPORA, *twice[2:]]]
    for half in halves:
        source.shuffle(half)
    found = []
    for name, corpus in zip(IDS, halves[0] + halves[1], strict=True):
        setting = None
        while setting is None:
            setting = _fitted(_drawn(source, name, corpus))
        found.append(setting)
    return found


def _drawn(source: random.Random, name: str, corpus: str) -> Setting:
    width = source.choice(WIDTHS)
    setting = Setting(
        id=name,
        corpus=corpus,
        layers=source.choice(LAYERS),
        d_model=width,
        heads=source.choice(HEADS),
        d_inner=width * source.choice(INNER),
        seq_len=source.choice(ROWS),
        batch_size=source.choice(BATCHES),
        candidates=(),
        budget=source.choice(BUDGETS),
        steps=STEPS[0],
        lr=source.choice(RATES),
        networks=0,
    )
    return _changed(setting, candidates=_candidates(source, setting.model))


def _candidates(source: random.Random, model: ModelSettings) -> tuple[str, ...]:
    """Three to seven labels in the registry's order: a feed-forward block, something that attends (mostly
    self-attention), mostly identity, and others of all kinds, some of them with an option that is not the default.
    """
    size = source.choice(CANDIDATES)
    narrow = f"feed_forward[d_inner={model.d_inner // 2}]"
    attend = [name for name, spec in BLOCKS.items() if spec.attention_like]
    attend += ["self_attention[heads=1]", "factorized_random_synthesizer[rank=2]"]
    first = "self_attention" if source.random() < WITH_ATTENTION else source.choice(attend)
    chosen = [source.choice(["feed_forward", narrow]), first]
    if source.random() < WITH_IDENTITY:
        chosen.append("identity")
    rest = [label for label in [*attend, "feed_forward", narrow] if label not in chosen]
    chosen += source.sample(rest, size - len(chosen))
    order = list(BLOCKS)
    return tuple(sorted(chosen, key=lambda label: (order.index(parse_candidate(label, model).block), label)))


def _fitted(setting: Setting) -> Setting | None:
    """The setting with as many steps and layouts as its time allows, or None where it does not fit."""
    within = setting.space.count(setting.budget)
    if within < SMALLEST or setting.space.count() == within:
        return None
    steps = [steps for steps in STEPS if estimate(_changed(setting, steps=steps)) <= ALONE]
    if not steps:
        return None
    setting = _changed(setting, steps=steps[-1])
    if within <= WHOLE:
        return setting
    affordable = int(FOR_ONE / setting.seeds / estimate(setting)) - ABOVE - LOCAL - 1
    return _changed(setting, networks=min(max(affordable, RANDOM[0]), RANDOM[1]))


def _changed(setting: Setting, **changes: object) -> Setting:
    """A copy that has computed nothing yet."""
    names = Setting.__dataclass_fields__
    return Setting(**{**dict(zip(names, astuple(setting), strict=True)), **changes})


SETTINGS: tuple[Setting, ...] = (
    Setting(
        id="D1",
        corpus="sotu",
        layers=7,
        d_model=32,
        heads=2,
        d_inner=32,
        seq_len=48,
        batch_size=8,
        candidates=(
            "self_attention",
            "self_attention[heads=1]",
            "dense_synthesizer",
            "factorized_random_synthesizer",
            "mixture_synthesizer",
            "feed_forward[d_inner=16]",
            "identity",
        ),
        budget=0.55,
        steps=800,
        lr=0.006,
        networks=60,
        seeds=2,
    ),
    Setting(
        id="D2",
        corpus="tiny-shakespeare",
        layers=7,
        d_model=48,
        heads=2,
        d_inner=96,
        seq_len=48,
        batch_size=16,
        candidates=(
            "self_attention",
            "dense_synthesizer",
            "factorized_random_synthesizer",
            "factorized_random_synthesizer[rank=2]",
            "feed_forward",
            "feed_forward[d_inner=48]",
        ),
        budget=0.55,
        steps=800,
        lr=0.003,
        networks=60,
        seeds=2,
    ),
    Setting(
        id="D3",
        corpus="wikitext",
        layers=10,
        d_model=32,
        heads=4,
        d_inner=128,
        seq_len=64,
        batch_size=8,
        candidates=("factorized_random_synthesizer[rank=2]", "feed_forward[d_inner=64]", "identity"),
        budget=0.5,
        steps=800,
        lr=0.006,
        networks=60,
        seeds=2,
    ),
    Setting(
        id="D4",
        corpus="enwik8",
        layers=5,
        d_model=96,
        heads=2,
        d_inner=96,
        seq_len=96,
        batch_size=8,
        candidates=("self_attention", "self_attention[heads=1]", "feed_forward", "identity"),
        budget=0.85,
        steps=800,
        lr=0.003,
        networks=0,
        seeds=2,
    ),
    Setting(
        id="D5",
        corpus="sotu",
        layers=6,
        d_model=128,
        heads=4,
        d_inner=512,
        seq_len=128,
        batch_size=8,
        candidates=(
            "self_attention",
            "fixed_random_synthesizer",
            "factorized_dense_synthesizer",
            "feed_forward",
            "feed_forward[d_inner=256]",
            "identity",
        ),
        budget=0.45,
        steps=300,
        lr=0.003,
        networks=54,
        seeds=2,
    ),
    Setting(
        id="D6",
        corpus="wikitext",
        layers=5,
        d_model=32,
        heads=2,
        d_inner=64,
        seq_len=64,
        batch_size=16,
        candidates=(
            "self_attention",
            "self_attention[heads=1]",
            "factorized_random_synthesizer[rank=2]",
            "mixture_synthesizer",
            "feed_forward[d_inner=32]",
        ),
        budget=0.6,
        steps=800,
        lr=0.006,
        networks=0,
        seeds=2,
    ),
    Setting(
        id="H1",
        corpus="wikitext",
        layers=9,
        d_model=64,
        heads=4,
        d_inner=64,
        seq_len=96,
        batch_size=16,
        candidates=(
            "self_attention",
            "self_attention[heads=1]",
            "random_synthesizer",
            "factorized_random_synthesizer",
            "feed_forward",
            "identity",
        ),
        budget=0.35,
        steps=800,
        lr=0.01,
        networks=44,
        seeds=2,
    ),
    Setting(
        id="H2",
        corpus="sotu",
        layers=12,
        d_model=32,
        heads=2,
        d_inner=128,
        seq_len=96,
        batch_size=8,
        candidates=(
            "self_attention",
            "self_attention[heads=1]",
            "random_synthesizer",
            "factorized_random_synthesizer[rank=2]",
            "feed_forward",
            "feed_forward[d_inner=64]",
            "identity",
        ),
        budget=0.9,
        steps=800,
        lr=0.003,
        networks=52,
        seeds=2,
    ),
    Setting(
        id="H3",
        corpus="enwik8",
        layers=5,
        d_model=64,
        heads=4,
        d_inner=256,
        seq_len=48,
        batch_size=16,
        candidates=(
            "self_attention",
            "dense_synthesizer",
            "factorized_random_synthesizer[rank=2]",
            "feed_forward",
            "identity",
        ),
        budget=0.9,
        steps=800,
        lr=0.003,
        networks=53,
        seeds=2,
    ),
    Setting(
        id="H4",
        corpus="tiny-shakespeare",
        layers=7,
        d_model=128,
        heads=2,
        d_inner=256,
        seq_len=48,
        batch_size=8,
        candidates=(
            "self_attention",
            "dense_synthesizer",
            "random_synthesizer",
            "factorized_random_synthesizer",
            "factorized_random_synthesizer[rank=2]",
            "feed_forward",
            "feed_forward[d_inner=128]",
        ),
        budget=0.85,
        steps=600,
        lr=0.01,
        networks=45,
        seeds=2,
    ),
    Setting(
        id="H5",
        corpus="tiny-shakespeare",
        layers=12,
        d_model=96,
        heads=2,
        d_inner=384,
        seq_len=96,
        batch_size=12,
        candidates=(
            "self_attention",
            "self_attention[heads=1]",
            "factorized_random_synthesizer",
            "factorized_random_synthesizer[rank=2]",
            "feed_forward",
            "identity",
        ),
        budget=0.4,
        steps=300,
        lr=0.006,
        networks=45,
        seeds=2,
    ),
    Setting(
        id="H6",
        corpus="enwik8",
        layers=7,
        d_model=128,
        heads=2,
        d_inner=512,
        seq_len=32,
        batch_size=8,
        candidates=(
            "self_attention",
            "factorized_dense_synthesizer",
            "factorized_random_synthesizer[rank=2]",
            "mixture_synthesizer",
            "feed_forward",
            "feed_forward[d_inner=256]",
            "identity",
        ),
        budget=0.8,
        steps=600,
        lr=0.01,
        networks=51,
        seeds=2,
    ),
)


def find_setting(name: str) -> Setting:
    """The setting of that id; KeyError lists the ids."""
    for setting in SETTINGS:
        if setting.id == name:
            return setting
    raise KeyError(f"no setting {name!r}; there are {', '.join(IDS)}")


def main() -> None:
    """Print what the draw gives, as it stands in this file, and what it is reckoned to cost."""
    for setting in draw_settings():
        print(f"    {setting!r},")
    for setting in draw_settings():
        count = setting.networks + LOCAL if setting.networks else setting.space.count(setting.budget)
        trainings = (count + ABOVE + 1) * setting.seeds
        print(
            f"# {setting.id} {estimate(setting):5.1f} s x {trainings} = {trainings * estimate(setting) / 60:.0f} min, "
            f"{setting.space.count(setting.budget):,} of {setting.space.count():,} within the budget"
        )


if __name__ == "__main__":
    main()
