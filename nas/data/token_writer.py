"""From a text to its token file: where the parts start, the vocabulary, the numbers, and how much text each part
holds."""

import itertools
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, BinaryIO

import numpy as np

from nas.data.texts import JoinedText, Source, TextCounter
from nas.data.token_cache import PARTS, PartSize
from nas.data.tokens import Encoder, smallest_dtype, vocabulary_id


def part_borders(source: Source, encoder: Encoder | None) -> list[int]:
    """The bytes at which weights, alphas, held_out and test start, and the end.

    Shares (90, 5 and 5 %; 80 and 20 % of the training text) are of bytes for bytes and of characters otherwise, moved
    on to the end of a word where tokens are made of words.
    """
    text = source.text
    if encoder is None:
        held_out, test = source.cuts or (text.size * 90 // 100, text.size * 95 // 100)
        return [0, held_out * 80 // 100, held_out, test, text.size]
    align = text.word_end if encoder.whole_words else text.character_start
    if source.cuts:
        held_out, test = map(align, source.cuts)
    else:
        characters = text.count_characters(0, text.size)
        held_out, test = (align(text.byte_of_character(characters * share // 100)) for share in (90, 95))
    weights_end = align(text.byte_of_character(text.count_characters(0, held_out) * 80 // 100))
    return [0, weights_end, held_out, test, text.size]


def write_tokens(source: Source, encoder: Encoder | None, file: BinaryIO) -> dict[str, Any]:
    """Put a source's tokens into an open file, part after part, and return what token_cache.save_tokens keeps beside
    them.

    The encoder is fitted to the training text first, so that text is read twice.
    """
    borders = part_borders(source, encoder)
    if encoder is None:
        for _, block in source.text.blocks(0, source.text.size):
            file.write(block)
        return _description("uint8", source.text.size, encoder, None)
    encoder.fit(_training_pieces(source.text, borders[2], encoder))
    dtype = smallest_dtype(encoder.vocab_size)
    sizes = {
        part: asdict(_write_part(source.text, start, end, encoder=encoder, dtype=dtype, file=file))
        for part, (start, end) in zip(PARTS, itertools.pairwise(borders), strict=True)
    }
    return _description(dtype.name, sum(size["tokens"] for size in sizes.values()), encoder, sizes)


def _description(
    dtype: str, tokens: int, encoder: Encoder | None, sizes: dict[str, dict[str, int]] | None
) -> dict[str, Any]:
    return {
        "dtype": dtype,
        "tokens": tokens,
        "vocab_size": encoder.vocab_size if encoder else 256,
        "vocabulary_id": vocabulary_id(encoder),
        "symbols": encoder.symbols if encoder else [],
        "sizes": sizes,
    }


def _training_pieces(text: JoinedText, end: int, encoder: Encoder) -> Iterator[str]:
    for file, low, high in text.pieces(0, end):
        yield from file.characters(low, high, whole_words=encoder.whole_words)


def _write_part(
    text: JoinedText, start: int, end: int, *, encoder: Encoder, dtype: np.dtype, file: BinaryIO
) -> PartSize:
    tokens = characters = words = 0
    for source, low, high in text.pieces(start, end):
        piece, counter = "", TextCounter()
        for piece in source.characters(low, high, whole_words=encoder.whole_words):
            numbers = encoder.encode(piece)
            file.write(numbers.astype(dtype).tobytes())
            tokens += len(numbers)
            counter.add(piece)
        characters += counter.characters
        words += counter.words
        if high == source.size:
            numbers = encoder.end_of_file(piece)
            file.write(numbers.astype(dtype).tobytes())
            tokens += len(numbers)
            words += not piece.endswith("\n")
    return PartSize(tokens, characters, words)
