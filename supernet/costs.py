"""What each block costs, in closed form: parameters, and forward FLOPs a token.

Symbols: d `d_model`, h heads, L `max_len`, M `memory_len`, T length of the segment, K = T + M keys. A multiply-add
counts 2. Only matrix products count, over all K keys (no causal halving), at batch 1, so the products that do not
depend on the sample (random kinds) are charged to one sequence. Every block but identity carries its norm (2 d).
"""

from collections.abc import Mapping
from typing import Any

from supernet.settings import ModelSettings

Options = Mapping[str, Any]


def norm_parameters(settings: ModelSettings) -> int:
    """A layer norm's gain and bias."""
    return 2 * settings.d_model


def factor_lengths(settings: ModelSettings, options: Options) -> tuple[int, int]:
    """Lengths of the two factors of a factorized dense row; memory lengthens the first one to cover M more keys."""
    return options["a"] + -(-settings.memory_len // options["b"]), options["b"]


# Logits S(X): what the kinds differ in. Each entry gives (parameters, FLOPs a token).


def dot_product_logits(settings: ModelSettings, options: Options, seq_len: int) -> tuple[int, int]:
    """Q K^T: two projections d x d (K over all keys); with relative positions one more, over all distances, and a
    product."""
    d, keys = settings.d_model, seq_len + settings.memory_len
    over_keys = 2 * d * d * keys // seq_len
    parameters, flops = 2 * d * d, 2 * d * d + over_keys + 2 * keys * d
    if settings.position == "relative":
        distances = keys if settings.causal else keys + seq_len - 1
        return parameters + d * d + (
            0 if settings.share_biases else 2 * d
        ), flops + 2 * d * d * distances // seq_len + 2 * distances * d
    return parameters, flops


def dense_logits(settings: ModelSettings, options: Options, seq_len: int) -> tuple[int, int]:
    """W2 relu(W1 x + b1) + b2, W1 d x d_hidden split in heads, W2 d_hidden/h x (L + M) a head."""
    d, hidden, length = settings.d_model, options["d_hidden"], settings.max_len + settings.memory_len
    parameters = d * hidden + hidden + hidden * length + options["heads"] * length
    return parameters, 2 * d * hidden + 2 * hidden * (seq_len + settings.memory_len)


def random_logits(settings: ModelSettings, options: Options, seq_len: int) -> tuple[int, int]:
    """A trained map L x (L + M) a head."""
    return options["heads"] * settings.max_len * (settings.max_len + settings.memory_len), 0


def fixed_random_logits(settings: ModelSettings, options: Options, seq_len: int) -> tuple[int, int]:
    """A map that is a buffer."""
    return 0, 0


def factorized_dense_logits(settings: ModelSettings, options: Options, seq_len: int) -> tuple[int, int]:
    """W1 d x d shared, then d_h x a and d_h x b a head (with biases)."""
    d, entries = settings.d_model, sum(factor_lengths(settings, options))
    return d * d + d + d * entries + options["heads"] * entries, 2 * d * d + 2 * d * entries


def factorized_random_logits(settings: ModelSettings, options: Options, seq_len: int) -> tuple[int, int]:
    """R1 R2^T: L x k and (L + M) x k a head."""
    heads, rank = options["heads"], options["rank"]
    return heads * rank * (2 * settings.max_len + settings.memory_len), 2 * heads * rank * (
        seq_len + settings.memory_len
    )


MIXTURE_PARTS = {
    "self_attention": dot_product_logits,
    "dense": dense_logits,
    "random": random_logits,
    "factorized_dense": factorized_dense_logits,
    "factorized_random": factorized_random_logits,
}


def mixture_logits(settings: ModelSettings, options: Options, seq_len: int) -> tuple[int, int]:
    """All parts' logits and one mixing weight a part and head."""
    costs = [MIXTURE_PARTS[part](settings, options, seq_len) for part in options["parts"]]
    return sum(p for p, _ in costs) + options["heads"] * len(costs), sum(f for _, f in costs)


# Whole blocks: (parameters with the norm, FLOPs a token).


def attention_block(logits):
    """Cost of a block Y = softmax(S) V, O: the logits' cost plus the value and output projections and the product S
    V."""

    def cost(settings: ModelSettings, options: Options, seq_len: int) -> tuple[int, int]:
        d, keys = settings.d_model, seq_len + settings.memory_len
        parameters, flops = logits(settings, options, seq_len)
        value_and_output = 2 * d * d * keys // seq_len + 2 * d * d
        return parameters + 2 * d * d + norm_parameters(settings), flops + value_and_output + 2 * keys * d

    return cost


def feed_forward_block(settings: ModelSettings, options: Options, seq_len: int) -> tuple[int, int]:
    """Two projections with biases."""
    d, inner = settings.d_model, options["d_inner"]
    return 2 * d * inner + d + inner + norm_parameters(settings), 4 * d * inner


def identity_block(settings: ModelSettings, options: Options, seq_len: int) -> tuple[int, int]:
    """Nothing."""
    return 0, 0


# The model around the layers: (parameters, FLOPs a token).


def surroundings(settings: ModelSettings) -> tuple[int, int]:
    """Embedding, positions, final norm and head."""
    d, vocab = settings.d_model, settings.vocab_size
    parameters = vocab * d
    if settings.position == "learned":
        parameters += settings.max_len * d
    if settings.position == "relative" and settings.share_biases:
        parameters += 2 * d  # the two biases u and v
    if settings.norm == "pre":
        parameters += norm_parameters(settings)
    if not settings.tie_embeddings:
        parameters += vocab * d
    outputs = vocab + len(settings.cutoffs)
    if settings.cutoffs:
        parameters += vocab + len(settings.cutoffs) * (d + 1)  # biases, and one row with bias a tail cluster
    return parameters, 2 * d * outputs
