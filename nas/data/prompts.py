"""A prompt as the tokens of a trained network, and its continuation as text."""

import numpy as np

from nas.config.sections import DataConfig
from nas.data.corpus import Corpus
from nas.data.tokens import Encoder, restored_encoder
from supernet.errors import SettingError


class Prompt:
    """A text as `tokens` [T] int64 in the vocabulary of a corpus; SettingError on `prompt` where it holds no token.

    What the vocabulary lacks is its unknown character or word, as in training.
    """

    def __init__(self, text: str, corpus: Corpus, data: DataConfig):
        self.text = text
        self._encoder: Encoder | None = restored_encoder(corpus.kind, corpus.symbols, data.tokens)
        self.tokens = self._encode()
        if not len(self.tokens):
            raise SettingError("prompt", f"{text!r} holds no token; expected text to go on with")

    def with_more(self, tokens: np.ndarray) -> str:
        """The prompt as it was given, and the text of the tokens [T + count] that follow it.

        Where further tokens change the text of those before, as a character whose bytes are not all there yet, the
        prompt is told as its tokens are, which may differ from what was given.
        """
        before, whole = self._decode(self.tokens), self._decode(tokens)
        return self.text + whole[len(before) :] if whole.startswith(before) else whole

    def _encode(self) -> np.ndarray:
        if self._encoder is None:
            return np.frombuffer(self.text.encode("utf-8"), np.uint8).astype(np.int64)
        try:
            return self._encoder.encode(self.text)
        except SettingError as error:  # names data.tokens, as is right for a text to train on
            reason = str(error).removeprefix(f"{error.path}: ")
            raise SettingError("prompt", f"{reason}; expected text that this tokenizer has tokens for") from None

    def _decode(self, tokens: np.ndarray) -> str:
        if self._encoder is None:
            return tokens.astype(np.uint8).tobytes().decode("utf-8", errors="replace")
        return self._encoder.decode(tokens)
