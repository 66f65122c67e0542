"""Text from a causal network, one token after another, each computed from what the layers keep of the tokens before it.

What is kept: values for every attention-like layer, keys where its logits need them, projected relative positions;
nothing for layers that look at one position alone. It lives as long as one Decoder, so training goes on as if nothing
had been generated.

Shapes: B batch, T prompt, t new positions, n positions of the window read so far, V vocabulary, d width, M' memory.
"""

import contextlib
import itertools
import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from supernet.attention import Past
from supernet.backbone import Backbone
from supernet.errors import SettingError


@torch.no_grad()
def generate(
    model: Backbone,
    prompt: Tensor,
    count: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """prompt [B, T] int64 -> [B, T + count]: the prompt and `count` tokens, each drawn from the softmax of logits /
    temperature.

    Temperature 0 takes the likeliest token; `top_k` leaves only so many of the likeliest to draw from, with `generator`
    (None: the global one). The rows are of one length: there is no padding. A Decoder says what a prompt or text longer
    than max_len sees. Runs in eval mode, and puts every module back in the mode it was in. Raises ValueError for a
    model that is not causal, a prompt that is empty, of another type or with tokens that the vocabulary has not, and a
    count, temperature or top_k out of range; FloatingPointError where logits are not finite, of which no token can be
    drawn.
    """
    _check(model, prompt, count, temperature, top_k)
    with _evaluating(model):
        decoder, tokens = Decoder(model), [prompt]
        for _ in range(count):
            logits = decoder.read(tokens[-1])
            if not logits.isfinite().all():
                raise FloatingPointError(
                    "the logits are not finite: the weights hold NaN or infinity, or numbers too large for their type"
                )
            tokens.append(choose(logits, temperature, top_k, generator))
    return torch.cat(tokens, dim=1)


class Decoder:
    """Reads a text piece by piece; the logits after each piece are those that the model gives for all that it may see.

    Without memory that is the text from `window_start` on: where max_len tokens are full, the window starts anew from
    its later half, so that reading those again costs less than one position a token. With memory it is the segment of
    max_len tokens under way, and the memory that the segments before it leave, as `model(segment, memory=memory)`
    carries it.

    From the first layer that does not stream (a user's block, which may look at all positions) all layers run on the
    whole window for each piece. The model must be causal and in eval mode, and stay as it is; call under torch.no_grad.
    """

    def __init__(self, model: Backbone):
        self.model = model
        self.streaming = list(itertools.takewhile(lambda layer: getattr(layer, "streams", False), model.layers))
        self.others = list(model.layers)[len(self.streaming) :]
        self.pasts: list[Past | None] = [None] * len(self.streaming)
        self.window_input: Tensor | None = None  # of the first of the other layers, [B, n, d]
        self.inputs: list[Tensor] = []  # of each of them where the model has a memory
        self.memory: Tensor | None = None  # theirs, [layers, B, M', d]
        self.length = 0
        self.relative = model.relative(model.memory_len + model.settings.max_len, model.embedding.weight[None])
        self.window: Tensor | None = (
            None  # its tokens [B, n], where there is no memory and they may have to be read again
        )

    def read(self, tokens: Tensor) -> Tensor:
        """Logits [B, V] of the token that follows tokens [B, t], t > 0, which follow those read before."""
        x = self._read_segments(tokens) if self.model.settings.memory_len else self._read_window(tokens)
        return self.model.read_out(x[:, -1:])[:, 0]

    def _read_segments(self, tokens: Tensor) -> Tensor:
        while True:
            if self.length == self.model.settings.max_len:
                self._start_anew()
            room = self.model.settings.max_len - self.length
            x = self._advance(tokens[:, :room])
            tokens = tokens[:, room:]
            if not tokens.shape[1]:
                return x

    def _read_window(self, tokens: Tensor) -> Tensor:
        window = tokens if self.window is None else torch.cat((self.window, tokens), dim=1)
        start = window_start(window.shape[1], self.model.settings.max_len)
        self.window = window[:, start:]
        if start and self.length:
            self._start_anew()
        return self._advance(self.window[:, self.length :])

    def _start_anew(self) -> None:
        """Forget all positions but the memory's."""
        self.pasts = [past and past.last(self.model.memory_len) for past in self.pasts]
        if self.others:
            self.memory = self.model.next_memory(self.memory, self.inputs) if self.model.settings.memory_len else None
        self.window_input, self.inputs, self.length = None, [], 0

    def _advance(self, tokens: Tensor) -> Tensor:
        """The last layer's output at the new positions [B, t, d], or at all of the window [B, n, d]."""
        x = self.model.embed(tokens, self.length)
        self.length += tokens.shape[1]
        for index, layer in enumerate(self.streaming):
            x, self.pasts[index] = layer.extend(x, self.pasts[index], self.relative)
        if self.others:
            self.window_input = x if self.window_input is None else torch.cat((self.window_input, x), dim=1)
            x, self.inputs = self.model.run_layers(self.window_input, self.others, self.memory)
        return x


def window_start(length: int, max_len: int) -> int:
    """Where the window begins after so many tokens of a text, when each time that max_len are full it keeps the later
    half."""
    return max(0, math.ceil((length - max_len) / (max_len - max_len // 2))) * (max_len - max_len // 2)


def choose(logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator | None) -> Tensor:
    """logits [B, V] -> tokens [B, 1], drawn as `generate` says; of equally likely ones top_k keeps the lowest
    numbers."""
    if temperature == 0:
        return logits.argmax(dim=-1, keepdim=True)
    scores = logits.double()
    scores = (scores - scores.amax(dim=-1, keepdim=True)) / temperature  # the largest is 0, however low the temperature
    if top_k is not None and top_k < scores.shape[-1]:
        order = scores.sort(dim=-1, descending=True, stable=True).indices
        scores = scores.scatter(-1, order[:, top_k:], -math.inf)
    return torch.multinomial(torch.softmax(scores, dim=-1), 1, generator=generator)


@contextlib.contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Within, eval mode; afterwards every module has the mode it had."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def check_choice(temperature: float, top_k: int | None) -> None:
    """Raise SettingError, a ValueError, for a temperature or top_k that `choose` does not take."""
    if isinstance(temperature, bool) or not isinstance(temperature, (int, float)) or not 0 <= temperature < math.inf:
        raise SettingError("temperature", f"expected a finite number from 0 on, got {temperature!r}")
    if top_k is not None and (isinstance(top_k, bool) or not isinstance(top_k, int) or top_k < 1):
        raise SettingError("top_k", f"expected an integer from 1 on, or null (None) for all tokens, got {top_k!r}")


def _check(model: Backbone, prompt: Tensor, count: int, temperature: float, top_k: int | None) -> None:
    settings = model.settings
    if not settings.causal:
        raise ValueError(f"only a causal_lm can generate, this model is a {settings.task}")
    if not isinstance(prompt, Tensor) or prompt.ndim != 2 or prompt.dtype != torch.int64:
        given = f"{prompt.dtype} {tuple(prompt.shape)}" if isinstance(prompt, Tensor) else type(prompt).__name__
        raise ValueError(f"prompt must be a tensor [B, T] of torch.int64, got {given}")
    if not prompt.shape[1]:
        raise ValueError("prompt must hold at least one token a row")
    wrong = prompt[(prompt < 0) | (prompt >= settings.vocab_size)]
    if len(wrong):
        raise ValueError(f"prompt: tokens must be from 0 to {settings.vocab_size - 1}, got {int(wrong[0])}")
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise ValueError(f"count must be an integer from 0 on, got {count!r}")
    check_choice(temperature, top_k)
