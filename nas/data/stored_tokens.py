"""Token numbers that another program has made: copied into the token file once, their text counted where a tokenizer
tells it."""

import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from typing import Any, BinaryIO

import numpy as np

from nas.data.texts import JoinedText, Source, TextCounter
from nas.data.token_cache import PARTS, PartSize, TokenFile, cache_key, find_tokens, save_tokens
from nas.data.tokens import KINDS, STORED, TokenizerFile, tokenizer_file, vocabulary_id
from supernet.errors import SettingError

DTYPE = np.dtype("<u2")
LONGEST_CHARACTER = 4  # bytes, so tokens at most


def stored_tokenizer(name: str, tokens: str) -> TokenizerFile | None:
    """The tokenizer file that `data.tokens` names, None for `numbers`; SettingError on data.tokens for the kinds that a
    text needs."""
    if tokens in KINDS:
        raise SettingError(
            "data.tokens",
            f"the files of {name} hold tokens already; expected {STORED}, or the tokenizers JSON file they were made "
            f"with, not {tokens}",
        )
    return None if tokens == STORED else tokenizer_file(tokens, [STORED])


def stored_token_file(source: Source, tokenizer: TokenizerFile | None) -> tuple[str, TokenFile]:
    """The kind of the tokens (pieces with a tokenizer, numbers without) and their file.

    For numbers the vocabulary is as large as the largest one asks for: a pickle beside the files, which may say more,
    is never read, since reading it would run code.
    """
    kind = tokenizer.kind if tokenizer else STORED
    lengths = [file.size for file in source.text.files]
    key = cache_key(source.text.sha256, lengths, source.cuts, tokenizer.source if tokenizer else "")
    name = f"{source.name}-{kind}-{key}"
    return kind, find_tokens(name) or save_tokens(name, partial(_write, source, tokenizer))


def _write(source: Source, tokenizer: TokenizerFile | None, file: BinaryIO) -> dict[str, Any]:
    largest = _largest(source.text)
    if tokenizer and largest >= tokenizer.vocab_size:
        raise SettingError(
            "data.tokens",
            f"{source.text.label} holds the number {largest}, but the tokenizer has only {tokenizer.vocab_size:,}; "
            "expected the one "
            "they were made with",
        )
    for _, block in source.text.blocks(0, source.text.size):
        file.write(block)
    held_out, test = source.cuts or (0, 0)
    weights_end = held_out // DTYPE.itemsize * 80 // 100 * DTYPE.itemsize
    borders = [0, weights_end, held_out, test, source.text.size]
    sizes = {
        part: asdict(_size(source.text, start, end, tokenizer))
        for part, (start, end) in zip(PARTS, itertools.pairwise(borders), strict=True)
    }
    return {
        "dtype": DTYPE.name,
        "tokens": source.text.size // DTYPE.itemsize,
        "vocab_size": tokenizer.vocab_size if tokenizer else largest + 1,
        # without a tokenizer nobody knows what the numbers mean in other files
        "vocabulary_id": vocabulary_id(tokenizer)
        if tokenizer
        else hashlib.sha256(source.text.sha256.encode()).hexdigest(),
        "symbols": [],
        "sizes": sizes,
    }


def _numbers(text: JoinedText, start: int, end: int) -> Iterator[np.ndarray]:
    for _, block in text.blocks(start, end):
        yield np.frombuffer(block, DTYPE)


def _largest(text: JoinedText) -> int:
    return max(int(numbers.max()) for numbers in _numbers(text, 0, text.size))


def _size(text: JoinedText, start: int, end: int, tokenizer: TokenizerFile | None) -> PartSize:
    """Tokens of a part, with the characters and words that they decode to; none of these without a tokenizer."""
    tokens = (end - start) // DTYPE.itemsize
    if tokenizer is None:
        return PartSize(tokens, 0, 0)
    counter = TextCounter()
    for piece in _decoded(text, start, end, tokenizer):
        counter.add(piece)
    return PartSize(tokens, counter.characters, counter.words)


def _decoded(text: JoinedText, start: int, end: int, tokenizer: TokenizerFile) -> Iterator[str]:
    """The text of a part in pieces that are cut between characters, where tokens are parts of characters."""
    waiting = np.zeros(0, DTYPE)
    for numbers in _numbers(text, start, end):
        waiting = np.concatenate((waiting, numbers))
        for kept in range(LONGEST_CHARACTER):
            piece = tokenizer.decode(waiting[: len(waiting) - kept])
            if not piece.endswith("\ufffd"):
                break
        waiting = waiting[len(waiting) - kept :]
        yield piece
    yield tokenizer.decode(waiting)
