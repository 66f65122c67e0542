"""A corpus as numbers, in four parts that share no token."""

import itertools
import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from nas.data.named_sets import STORED_SETS, find_source
from nas.data.stored_tokens import stored_token_file, stored_tokenizer
from nas.data.texts import SPACES, DataSettings, Source
from nas.data.token_cache import PARTS, PartSize, TokenFile, cache_key, find_tokens, save_tokens
from nas.data.token_writer import part_borders, write_tokens
from nas.data.tokens import STORED, Encoder, build_encoder, vocabulary_id
from supernet.errors import SettingError

WORDED = ("words", "pieces")  # kinds of tokens that have a perplexity of words


@dataclass(frozen=True)
class Corpus:
    """A text as one row of token numbers and the range of each part in it.

    `tokens` is memory-mapped, [tokens] uint8, uint16 or int32; `parts` gives [start, end) for `weights` (80 % of the
    training text), `alphas` (the other 20 %), `held_out` and `test`. `file`, `sha256` and `bytes` are those of the
    unpacked text, several files joined in order. `kind` is bytes, chars, words, pieces (a tokenizer file's) or numbers
    (stored tokens of an unknown text); `symbols` the vocabulary of chars and words. Two corpora share `vocabulary_id`
    exactly when a token number means the same text in both.
    """

    name: str
    file: str
    sha256: str
    bytes: int
    kind: str
    vocab_size: int
    vocabulary_id: str
    symbols: list[str]
    tokens: np.ndarray
    parts: dict[str, tuple[int, int]]
    sizes: dict[str, PartSize] | None = None

    def part(self, name: str) -> np.ndarray:
        """A part's tokens, [tokens], as a view of the mapped file."""
        start, end = self.parts[name]
        return np.asarray(self.tokens)[start:end]

    def size(self, part: str) -> PartSize:
        """Tokens, characters and words of a part; for bytes counted when asked for, taking UTF-8 and ASCII white
        space."""
        return self.sizes[part] if self.sizes else _size_of_bytes(self.part(part))

    def tokens_per_word(self, part: str) -> float:
        """Tokens for each word or line end of a part: perplexity a word is exp(loss * tokens_per_word)."""
        size = self.size(part)
        return size.tokens / max(size.words, 1)

    def word_perplexity(self, loss: float, part: str) -> float | None:
        """Perplexity a word or line end from a mean loss in nats a token; None where tokens are not made of words."""
        return math.exp(min(loss * self.tokens_per_word(part), 700.0)) if self.kind in WORDED else None

    def bits_per_character(self, loss: float, part: str) -> float | None:
        """A mean loss in nats a token as bits a character of the part's text; for bytes, as papers have it, bits a
        byte.

        None where the text is not known.
        """
        if self.kind in ("bytes", "chars"):
            return loss / math.log(2)
        size = self.size(part)
        return loss / math.log(2) * size.tokens / max(size.characters, 1) if self.kind != STORED else None

    def to_json(self) -> dict[str, Any]:
        """The content of data.json; ranges count tokens."""
        return {
            "name": self.name,
            "file": self.file,
            "sha256": self.sha256,
            "bytes": self.bytes,
            "vocab_size": self.vocab_size,
            "parts": {
                name: {"tokens": end - start, "range": [start, end]} for name, (start, end) in self.parts.items()
            },
        }


def load_corpus(data: DataSettings) -> Corpus:
    """Read the data set of the configuration's section `data`; tokens are made once and then found again by content.

    SettingError (a UserError) names the key where files are missing, damaged, not UTF-8, or too small for
    `data.seq_len`.
    """
    # what data.tokens asks for is looked at first, since a text may take long to unpack
    if data.name in STORED_SETS:
        tokenizer = stored_tokenizer(data.name, data.tokens)
        source = find_source(data)
        kind, found = stored_token_file(source, tokenizer)
    else:
        encoder = build_encoder(data.tokens)
        source = find_source(data)
        kind, found = _text_tokens(source, encoder)
    borders = _borders_of(found.sizes) if found.sizes else part_borders(source, None)
    corpus = Corpus(
        name=source.name,
        file=source.text.label,
        sha256=source.text.sha256,
        bytes=source.text.size,
        kind=kind,
        vocab_size=found.vocab_size,
        vocabulary_id=found.vocabulary_id,
        symbols=found.symbols,
        tokens=found.tokens,
        parts=dict(zip(PARTS, itertools.pairwise(borders), strict=True)),
        sizes=found.sizes,
    )
    _check_long_enough(corpus, data.seq_len)
    return corpus


def _text_tokens(source: Source, encoder: Encoder | None) -> tuple[str, TokenFile]:
    kind = encoder.kind if encoder else "bytes"
    path = source.text.files[0].path
    if encoder is None and len(source.text.files) == 1 and path is not None:
        # the text is its own token file
        return kind, TokenFile(np.memmap(path, np.uint8, "r"), 256, vocabulary_id(None), [], None)
    lengths = [file.size for file in source.text.files]  # where files are joined, a line ends
    key = cache_key(source.name, source.text.sha256, lengths, source.cuts, kind, encoder.source if encoder else "")
    name = f"{source.name}-{kind}-{key}"
    found = find_tokens(name)
    if found is None:
        if source.check:
            source.check()
        found = save_tokens(name, partial(write_tokens, source, encoder))
    return kind, found


def _size_of_bytes(data: np.ndarray) -> PartSize:
    characters = words = 0
    is_space = np.isin(np.arange(256), list(SPACES))
    after_space = True
    for start in range(0, len(data), 2**20):
        block = data[start : start + 2**20]
        spaces = is_space[block]
        before = np.concatenate(([after_space], spaces[:-1]))
        after_space = bool(spaces[-1])
        characters += int(np.count_nonzero((block & 0xC0) != 0x80))
        words += int(np.count_nonzero(~spaces & before)) + int(np.count_nonzero(block == ord("\n")))
    return PartSize(len(data), characters, words)


def _borders_of(sizes: dict[str, PartSize]) -> list[int]:
    borders = [0]
    for part in PARTS:
        borders.append(borders[-1] + sizes[part].tokens)
    return borders


def _check_long_enough(corpus: Corpus, seq_len: int) -> None:
    part, (start, end) = min(corpus.parts.items(), key=lambda item: item[1][1] - item[1][0])
    if end - start <= seq_len:
        fewest = end - start
        raise SettingError(
            "data.path" if corpus.name != "sotu" else "data.seq_len",
            f"the part {part} of {corpus.file} has {fewest:,} tokens, too few for data.seq_len {seq_len}; use a "
            "longer text "
            f"(about {math.ceil((seq_len + 1) / max(fewest, 1)):,} times as long)"
            + (f" or data.seq_len at most {fewest - 1}" if fewest > 1 else ""),
        )
