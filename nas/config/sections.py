"""The one typed configuration behind every command: sections of keys with defaults, checked before anything is
written."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from derive.yaml_file import dump_yaml
from nas.config.ranges import check_ranges, check_shares
from supernet.blocks import Candidate, parse_candidates
from supernet.errors import SettingError
from supernet.settings import TASKS, ModelSettings

# One candidate of each family; a short search tells five apart better than nine (benchmarks/README.md). The others, and
# users' blocks, are named in `search.blocks`; configs/all_blocks.yaml has all of them.
DEFAULT_BLOCKS = ("self_attention", "dense_synthesizer", "factorized_random_synthesizer", "feed_forward", "identity")


@dataclass
class RunConfig:
    """The process: where results go, on what device and in which precision."""

    dir: str | None = None
    """run folder; null: the first free runs/NAME-K below the current folder"""
    seed: int = 0
    """first seed; further ones are seed + 1, seed + 2, ..."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N"""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """auto: bf16 on a GPU, fp32 on a CPU"""
    compile: bool = False
    """compile each block with torch.compile"""
    recompute: Literal["none", "alphas", "all"] = "alphas"
    """which steps compute blocks again in their backward pass rather than keep what lies within: those of alphas whose
    candidates all run, or all steps, which is activation checkpointing; less memory, a third more work
    """
    resume: bool = False
    """go on from the run folder's checkpoint"""
    dry_run: bool = False
    """run and search (or --dry-run): print sizes and run two steps of each kind on a few rows at full width; writes
    nothing"""
    deterministic: bool = False
    """refuse operations whose result depends on timing"""
    workers: int = 0
    """processes for searches and retrainings that do not depend on each other; 0: one a core on a CPU, one on a GPU"""
    shard: bool = False
    """under torchrun: share the weights out among the processes (FSDP2) in place of a copy in each"""
    tensorboard: bool = False
    """also write the search's scalars and heat map for TensorBoard (extra: par-search[tensorboard])"""
    log_every: int = 20
    """steps between lines of metrics.jsonl; the first and the last step are always logged"""
    checkpoint_every: int = 200
    """steps between checkpoints"""


@dataclass
class DataConfig:
    """The text and how it is cut."""

    name: str = "sotu"
    """sotu (built in), enwik8, text8, wikitext-103, wikitext-2, text (files of your own), or nanogpt (train.bin,
    val.bin)"""
    path: str | None = None
    """the text file or folder of texts, or for a named set its folder (enwik8, text8: or its zip)"""
    tokens: str = "bytes"
    """bytes, chars, words, or a tokenizer file; for nanogpt numbers, or the tokenizer file they were made with"""
    seq_len: int = 64
    """tokens a row"""
    batch_size: int = 16
    """rows a step; under torchrun of each process"""
    micro_batch_size: int | None = None
    """rows of them that run at a time, whose gradients are added: the same step in less memory; null: all"""
    order: Literal["auto", "random", "contiguous"] = "auto"
    """random crops, or rows that go on from step to step; auto: contiguous with model.memory_len, else random"""
    eval_seq_len: int | None = None
    """tokens a row when a network is evaluated; null: seq_len"""
    eval_memory_len: int | None = None
    """memory of a network when it is evaluated; null: model.memory_len"""
    eval_clamp_len: int | None = None
    """relative positions: distances above this one count as this one when a network is evaluated; null: none do"""

    def contiguous(self, memory_len: int) -> bool:
        """Whether rows go on from step to step."""
        return self.order == "contiguous" or (self.order == "auto" and memory_len > 0)


@dataclass
class ModelConfig:
    """The widths that the supernet and every derived network share."""

    task: Literal["causal_lm", "masked_lm", "classification", "translation"] = "causal_lm"
    """what is learned; causal_lm is what this version trains"""
    layers: int = 8
    """searchable layers (slots)"""
    d_model: int = 64
    """width"""
    heads: int = 4
    """attention heads"""
    d_inner: int = 128
    """hidden width of feed_forward"""
    max_len: int | None = None
    """longest row; null: data.seq_len"""
    memory_len: int = 0
    """earlier positions that attention sees beside the row"""
    dropout: float = 0.0
    """dropout on the embedding, on each block's output and inside feed_forward"""
    norm: Literal["pre", "post"] = "pre"
    """layer norm before each block or after its residual"""
    position: Literal["learned", "sinusoidal", "relative", "none"] = "learned"
    """how positions are told"""
    tie_embeddings: bool = True
    """one matrix for embedding and head"""
    share_biases: bool = True
    """relative positions: one pair of biases for all layers (Transformer-XL base), or one a layer"""
    cutoffs: list[int] = field(default_factory=list)
    """adaptive softmax: rising cluster borders below the vocabulary's size; none: one plain softmax"""

    def settings(self, vocab_size: int, seq_len: int) -> ModelSettings:
        """The model's settings for a vocabulary; SettingError names the key that does not fit."""
        values = {key: value for key, value in dataclasses.asdict(self).items() if key not in ("task", "layers")}
        values["max_len"] = self.max_len or seq_len
        return ModelSettings(**values, vocab_size=vocab_size, task=self.task)


@dataclass
class SearchConfig:
    """The supernet's training and the learning of the alphas."""

    blocks: list[str | dict[str, Any]] = field(default_factory=lambda: list(DEFAULT_BLOCKS))
    """candidates: labels, or objects in the form of an architecture's layers"""
    steps: int = 1400
    """weight steps in all"""
    warmup_steps: int = 1050
    """first steps, in which the alphas are frozen at equal probabilities"""
    mixture: float = 0.3
    """sampled: share of the warm-up in which every candidate runs at equal gates; in the rest each runs equally
    often"""
    relaxation: Literal["softmax", "gumbel", "gumbel_hard", "sampled"] = "sampled"
    """how alphas become gates"""
    temperature_start: float = 2.0
    """temperature when the alphas start to learn"""
    temperature_end: float = 0.2
    """temperature of the last step"""
    weight_lr: float = 3e-3
    """peak learning rate of the weights (AdamW, cosine)"""
    weight_decay: float = 0.01
    """decay of the weights' matrices"""
    arch_lr: float = 0.2
    """learning rate of the alphas (Adam)"""
    arch_every: int = 3
    """weight steps between two steps of the alphas"""
    active: int | None = 3
    """gumbel: candidates that run in a layer, those with the largest gates; null: all of them"""
    arch_samples: int = 4
    """sampled: layouts that one step of the alphas compares on a batch"""
    clip: float = 1.0
    """largest norm of the weights' gradient, and of the alphas' gradient, each for itself"""
    share_values: bool = False
    """whether a layer's candidates of the attention kind share norm, values and output projection"""
    cost: Literal["none", "latency", "flops", "parameters"] = "flops"
    """what is held against the budget"""
    cost_weight: float = 1.0
    """weight of the cost term in the alphas' loss"""
    budget: float | None = 0.65
    """target as a fraction of the interleaved baseline's cost; null: cost pulls constantly"""
    seeds: int = 3
    """searches, with seeds run.seed, run.seed + 1, ..."""
    evaluate_every: int = 100
    """steps between evaluations of the supernet and of the derived network, on held-out text"""
    evaluate_tokens: int = 8192
    """held-out tokens an evaluation reads"""


@dataclass
class DeriveConfig:
    """From probabilities to architectures."""

    rules: list[dict[str, Any]] | None = None
    """constraints on the budget architecture"""
    cut: float | None = None
    """depth fraction that holds the attention blocks; null: read from the evidence"""
    ratio: float | None = None
    """layers for one attention block; null: read from the evidence"""
    budget: float | None = None
    """null: search.budget"""
    selection: Literal["last", "average"] = "last"
    """the last recorded probabilities, or their average over the last quarter of the record"""


@dataclass
class RetrainConfig:
    """Training of the derived architectures and of those beside them."""

    steps: int = 1200
    """steps, the same for all"""
    lr: float = 6e-3
    """peak learning rate (AdamW, linear warm-up over a twentieth of the steps, cosine to zero)"""
    weight_decay: float = 0.01
    """decay of the weights' matrices"""
    clip: float = 1.0
    """largest norm of the gradient"""
    seeds: int = 1
    """trainings of each, with seeds run.seed, run.seed + 1, ..."""
    against: list[str] = field(default_factory=lambda: ["interleaved", "par"])
    """patterns or presets trained beside"""
    architectures: list[str] = field(default_factory=lambda: ["argmax", "par-rule", "budget"])
    """which of the derived architectures are trained"""
    drawn: int = 3
    """layouts drawn from the probabilities that enter the successive halving beside rule-built ones, those first that
    do best with the supernet's weights; 0 with random 0: no halving
    """
    random: int = 1
    """random layouts of about the budget's cost that enter it"""
    rungs: list[float] = field(default_factory=lambda: [0.3, 0.6])
    """shares of the steps after which the halving keeps the better third"""
    rung_tokens: int = 65536
    """tokens of the `alphas` part by which a rung ranks"""
    evaluate_every: int = 200
    """steps between evaluations on part of the held-out text; the end is evaluated on all of it"""
    evaluate_tokens: int = 8192
    """held-out tokens an evaluation on the way reads"""
    final_tokens: int = 262144
    """held-out tokens, spread evenly, of the final evaluation; all there are where there are fewer"""


@dataclass
class LatencyConfig:
    """At what shape, and of what, the measured time of blocks and networks is."""

    batch_size: int = 1
    """rows"""
    seq_len: int | None = None
    """tokens a row; null: data.seq_len"""
    of: Literal["inference", "training"] = "inference"
    """which time latency.json, and with it search.cost latency, is: forward alone, or forward and backward; networks
    are compared by the first"""


@dataclass
class SweepConfig:
    """Rule-built layouts trained beside the baseline, with the settings of `retrain`."""

    ratios: list[float] = field(default_factory=lambda: [2.0, 3.0, 4.0, 5.0, 8.0])
    """layers for one attention block"""
    cuts: list[float] = field(default_factory=lambda: [2 / 3])
    """depth fractions that hold the attention blocks"""


@dataclass
class Config:
    """All sections. `check` is called before anything is written."""

    run: RunConfig = field(default_factory=RunConfig)
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    search: SearchConfig = field(default_factory=SearchConfig)
    derive: DeriveConfig = field(default_factory=DeriveConfig)
    retrain: RetrainConfig = field(default_factory=RetrainConfig)
    sweep: SweepConfig = field(default_factory=SweepConfig)
    latency: LatencyConfig = field(default_factory=LatencyConfig)

    def check(self) -> None:
        """Raise SettingError for the first value that is out of range or does not fit the others."""
        check_ranges(self)
        if (self.data.micro_batch_size or 1) > self.data.batch_size:
            raise SettingError(
                "data.micro_batch_size", f"{self.data.micro_batch_size} exceeds data.batch_size {self.data.batch_size}"
            )
        if self.model.task not in TASKS:
            raise SettingError(
                "model.task", f"{self.model.task} cannot be trained by this version, which builds {' and '.join(TASKS)}"
            )
        if self.model.max_len is not None and self.data.seq_len > self.model.max_len:
            raise SettingError("data.seq_len", f"{self.data.seq_len} exceeds model.max_len {self.model.max_len}")
        if (self.latency.seq_len or 1) > (self.model.max_len or self.data.seq_len):
            raise SettingError(
                "latency.seq_len",
                f"{self.latency.seq_len} exceeds model.max_len {self.model.max_len or self.data.seq_len}",
            )
        if self.model.memory_len and not self.data.contiguous(self.model.memory_len):
            raise SettingError(
                "data.order", "random crops have no text before them to remember; use contiguous, or model.memory_len 0"
            )
        check_shares("retrain.rungs", self.retrain.rungs)
        settings = self.model.settings(
            vocab_size=max([256, *(cutoff + 1 for cutoff in self.model.cutoffs)]), seq_len=self.data.seq_len
        )
        kinds = sum(candidate.attention_like for candidate in self.candidates(settings))
        if self.search.share_values and (kinds < 2 or self.run.shard):
            why = (
                "run.shard parts each candidate's weights"
                if self.run.shard
                else f"search.blocks has {kinds} of the attention kind"
            )
            raise SettingError("search.share_values", f"nothing to share: {why}; use false")
        if self.search.warmup_steps >= self.search.steps:
            raise SettingError(
                "search.warmup_steps",
                f"{self.search.warmup_steps} leaves no step for the alphas; use less than search.steps"
                f" {self.search.steps}",
            )

    def candidates(self, settings: ModelSettings) -> list[Candidate]:
        """`search.blocks` as candidates, at least two different ones."""
        return parse_candidates(self.search.blocks, settings)

    def to_yaml(self) -> str:
        """The resolved configuration; valid input of `--config`."""
        return dump_yaml(dataclasses.asdict(self))
