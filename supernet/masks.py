"""Which keys a query may see. Shapes: B batch, T queries, K = M' + T keys, those of the memory first; a query's own key
stands with it."""

from collections.abc import Callable, Hashable
from functools import lru_cache

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional
from torch.utils._python_dispatch import _get_current_dispatch_mode

from supernet.gates import full_precision

LARGE = 2**20  # numbers


def causal_keys(length: int, keys: int, device: torch.device) -> Tensor:
    """[T, K] bool: query i may see the memory and the keys up to itself; see `kept`."""
    return kept(_causal_keys, length, keys, device)


def causal_bias(length: int, keys: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """[T, K]: 0 where query i may see key j and -inf elsewhere, to be added to logits; see `kept`.

    Adding costs one pass over the logits; filling, four with the gradient's.
    """
    return kept(_causal_bias, length, keys, device, dtype)


def query_bias(x: Tensor, keys: int) -> Tensor | None:
    """The causal bias [T, K] of the queries x [B, T, d]; None for one alone, the last position, which sees all keys."""
    return causal_bias(x.shape[1], keys, x.device, x.dtype) if x.shape[1] > 1 else None


def kept(make: Callable[..., Tensor], length: int, keys: int, *arguments: Hashable) -> Tensor:
    """make(length, keys, ...), made once and kept for all layers and steps: the last sixteen that are not large.

    Not in inference mode, whose tensors no backward pass may keep; anew where a tracer or another mode of torch's makes
    tensors of its own.
    """
    if is_traced() or length * keys > LARGE:
        return make(length, keys, *arguments)
    return _kept(make, length, keys, *arguments)


def is_traced() -> bool:
    """Whether a compiler, a transform of torch.func, forward-mode differentiation or another mode of torch's looks at
    what is done."""
    traced = (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or torch._C._functorch.peek_interpreter_stack() is not None
    )
    return traced or forward_ad._current_level >= 0 or _get_current_dispatch_mode() is not None


@lru_cache(maxsize=16)
def _kept(make: Callable[..., Tensor], *arguments: Hashable) -> Tensor:
    with torch.inference_mode(False), torch.no_grad():
        return make(*arguments)


def _causal_keys(length: int, keys: int, device: torch.device) -> Tensor:
    return torch.ones(length, keys, dtype=torch.bool, device=device).tril(keys - length)


def _causal_bias(length: int, keys: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    bias = torch.zeros(length, keys, dtype=dtype, device=device)
    return bias.masked_fill_(~_causal_keys(length, keys, device), float("-inf"))


def allowed_keys(x: Tensor, keys: int, *, causal: bool, mask: Tensor | None) -> Tensor | None:
    """Which keys each query may see: [T, K], [B, 1, T or 1, K], or None for all; `mask` [B, T] True = real token."""
    # the last position sees all keys
    allowed = causal_keys(x.shape[1], keys, x.device) if causal and x.shape[1] > 1 else None
    if mask is None:
        return allowed
    real = functional.pad(mask, (keys - mask.shape[1], 0), value=True)[:, None, None, :]  # the memory is real
    return real if allowed is None else real & allowed


def masked_softmax(logits: Tensor, allowed: Tensor) -> Tensor:
    """softmax of logits [..., T, K] over the allowed keys in fp32 or better; a row without any is 0, with finite
    gradients."""
    weights = full_precision(logits)
    hidden = torch.zeros((), dtype=weights.dtype, device=weights.device).masked_fill(
        ~allowed, torch.finfo(weights.dtype).min
    )
    return (torch.softmax(weights + hidden, dim=-1) * allowed).to(logits.dtype)
