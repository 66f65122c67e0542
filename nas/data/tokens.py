"""Text to numbers: what a token is (bytes, characters, words or a tokenizer file's pieces) and which number it has."""

import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar, Protocol

import numpy as np

from derive.strict_json import read_bytes
from supernet.errors import SettingError, UserError, did_you_mean

KINDS = ("bytes", "chars", "words")
STORED = "numbers"  # of a data set that holds tokens already
UNKNOWN = "<unk>"  # any character or word that the training text does not hold
END_OF_LINE = "<eos>"
_CODE_POINTS = 0x110000


class Encoder(Protocol):
    """Turns pieces of text into token numbers, after `fit` has seen the training text alone.

    `kind` names it in the cache; `source` tells two encoders of one kind apart before they are fitted; `whole_words`
    says that a text may be cut into pieces only before white space; `symbols` are the vocabulary in order (empty for a
    tokenizer file, which holds its own).
    """

    kind: str
    source: str
    whole_words: bool
    vocab_size: int
    symbols: list[str]

    def fit(self, pieces: Iterable[str]) -> None:
        """Make the vocabulary from the training text."""

    def encode(self, piece: str) -> np.ndarray:
        """Token numbers of one piece of text, [tokens] int64."""

    def end_of_file(self, piece: str) -> np.ndarray:
        """Tokens that follow a file's last piece, [tokens] int64."""

    def decode(self, numbers: np.ndarray) -> str:
        """The text of token numbers, [tokens]."""


class Characters:
    """One token a Unicode character, numbered by code point; the last number is the unknown character."""

    kind = "chars"
    source = ""
    whole_words = False

    def __init__(self) -> None:
        self.symbols: list[str] = []
        self.vocab_size = 0

    def fit(self, pieces: Iterable[str]) -> None:
        """Number the characters that occur in `pieces`."""
        seen = np.zeros(_CODE_POINTS, bool)
        for piece in pieces:
            seen[_code_points(piece)] = True
        self.adopt([*map(chr, np.flatnonzero(seen)), UNKNOWN])

    def adopt(self, symbols: list[str]) -> None:
        """Number as an encoder did that has these symbols."""
        known = _code_points("".join(symbols[:-1]))
        self._numbers = np.full(_CODE_POINTS, len(known))
        self._numbers[known] = np.arange(len(known))
        self.symbols, self.vocab_size = symbols, len(symbols)

    def encode(self, piece: str) -> np.ndarray:
        """A number for each character."""
        return self._numbers[_code_points(piece)]

    def end_of_file(self, piece: str) -> np.ndarray:
        """Nothing: characters are all there is."""
        return np.zeros(0, np.int64)

    def decode(self, numbers: np.ndarray) -> str:
        """The characters, `<unk>` for an unknown one."""
        return "".join(self.symbols[number] for number in numbers)


class Words:
    """One token a word between white space, and `<eos>` for each line end; the most frequent word has the lowest
    number.

    `<eos>` is 0, as in Transformer-XL's vocabulary; words of equal count stand in order of appearance. `<unk>` is
    counted like any word where the text holds it, as WikiText does, and is last where it does not. A last line without
    a line end has its `<eos>` too.
    """

    kind = "words"
    source = ""
    whole_words = True

    def __init__(self) -> None:
        self.symbols: list[str] = []
        self.vocab_size = 0

    def fit(self, pieces: Iterable[str]) -> None:
        """Count the words of `pieces` and number them by falling frequency."""
        counts: Counter[str] = Counter()
        for piece in pieces:
            counts.update(piece.split())
        counts.pop(END_OF_LINE, None)
        words = [word for word, _ in counts.most_common()]
        self.adopt([END_OF_LINE, *words, *(() if UNKNOWN in counts else (UNKNOWN,))])

    def adopt(self, symbols: list[str]) -> None:
        """Number as an encoder did that has these symbols."""
        self.symbols, self.vocab_size = symbols, len(symbols)
        self._numbers = _Numbers((word, number) for number, word in enumerate(self.symbols))

    def encode(self, piece: str) -> np.ndarray:
        """A number for each word and line end."""
        words = piece.replace("\n", f" {END_OF_LINE} ").split()
        return np.fromiter(map(self._numbers.__getitem__, words), np.int64, len(words))

    def end_of_file(self, piece: str) -> np.ndarray:
        """`<eos>` where the file's last line has no line end."""
        return np.zeros(0 if piece.endswith("\n") else 1, np.int64)

    def decode(self, numbers: np.ndarray) -> str:
        """The words with spaces between them, and line ends."""
        return re.sub(f" ?{END_OF_LINE} ?", "\n", " ".join(self.symbols[number] for number in numbers))


class TokenizerFile:
    """The pieces of a `tokenizers` JSON file (optional extra), without special tokens, truncation or padding.

    Long texts are encoded a megabyte at a time, cut before white space. SettingError on data.tokens where the package
    is missing or the file is not a tokenizer.
    """

    kind = "pieces"
    whole_words = True
    symbols: ClassVar[list[str]] = []

    def __init__(self, path: Path):
        try:
            import tokenizers
        except ImportError:
            raise SettingError(
                "data.tokens", f"{path} needs the package tokenizers: pip install par-search[tokenizers]"
            ) from None
        try:
            content = read_bytes(path)
        except UserError as error:
            raise SettingError("data.tokens", f"cannot read {error}") from None
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(content.decode("utf-8"))
        except BaseException as error:  # the package raises bare Exception for anything wrong in the file
            _raise_others(error)
            raise SettingError("data.tokens", f"{path} is not a tokenizers JSON file: {_first_line(error)}") from None
        self._path = path
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.source = hashlib.sha256(content).hexdigest()
        self.vocab_size = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=0)

    def fit(self, pieces: Iterable[str]) -> None:
        """Nothing: the file holds the vocabulary."""

    def encode(self, piece: str) -> np.ndarray:
        """A number for each of the tokenizer's pieces."""
        try:
            numbers = self._tokenizer.encode(piece, add_special_tokens=False).ids
        except BaseException as error:  # where the file's parts do not fit each other
            _raise_others(error)
            raise SettingError("data.tokens", f"{self._path} cannot encode the text: {_first_line(error)}") from None
        return np.array(numbers, np.int64)

    def decode(self, numbers: np.ndarray) -> str:
        """The text of token numbers, [tokens]; special tokens stand for none."""
        return self._tokenizer.decode(numbers.tolist(), skip_special_tokens=True)

    def end_of_file(self, piece: str) -> np.ndarray:
        """Nothing: the tokenizer has no token of its own for it."""
        return np.zeros(0, np.int64)


def build_encoder(tokens: str) -> Encoder | None:
    """The encoder that `data.tokens` asks for; None for bytes, which need none. SettingError on data.tokens
    otherwise."""
    if tokens == "bytes":
        return None
    if tokens == "chars":
        return Characters()
    if tokens == "words":
        return Words()
    if tokens == STORED:
        raise SettingError(
            "data.tokens", f"{STORED} is for data.name nanogpt; expected {', '.join(KINDS)}, or a tokenizers JSON file"
        )
    return tokenizer_file(tokens, KINDS)


def restored_encoder(kind: str, symbols: list[str], tokens: str) -> Encoder | None:
    """The encoder of a text that has been read, by its kind, symbols and `data.tokens`; None for bytes.

    SettingError for stored numbers, whose text nobody knows.
    """
    if kind == STORED:
        raise SettingError(
            "data.tokens", f"{STORED} have no text; expected the tokenizers JSON file they were made with"
        )
    encoder = build_encoder(tokens)
    if isinstance(encoder, (Characters, Words)):
        encoder.adopt(symbols)
    return encoder


def tokenizer_file(tokens: str, kinds: Iterable[str]) -> TokenizerFile:
    """The tokenizer file that `data.tokens` names; SettingError on data.tokens, with the kinds that it might have
    meant, otherwise."""
    path = Path(os.path.expanduser(tokens))
    if path.suffix != ".json" and not os.path.exists(path):
        raise SettingError(
            "data.tokens", f"unknown kind {tokens!r}{did_you_mean(tokens, kinds)}, or a tokenizers JSON file"
        )
    return TokenizerFile(path)


def vocabulary_id(encoder: Encoder | None) -> str:
    """A digest that two encoders (None: bytes) share exactly when a token number means the same text in both."""
    if encoder is None:
        return hashlib.sha256(b"bytes").hexdigest()
    digest = hashlib.sha256(f"{encoder.kind}/{encoder.source}".encode())
    for symbol in encoder.symbols:
        digest.update(symbol.encode() + b"\xff")  # 0xff occurs nowhere in UTF-8
    return digest.hexdigest()


def smallest_dtype(vocab_size: int) -> np.dtype:
    """uint8, uint16 or int32: the smallest that holds every token number."""
    return np.dtype(np.uint8 if vocab_size <= 2**8 else np.uint16 if vocab_size <= 2**16 else np.int32)


def _raise_others(error: BaseException) -> None:
    """Raise a stop or an interruption again; a panic of the package's Rust is no Exception, yet nothing but a wrong
    file."""
    if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
        raise error


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


class _Numbers(dict[str, int]):
    def __missing__(self, word: str) -> int:
        return self[UNKNOWN]


def _code_points(piece: str) -> np.ndarray:
    return np.frombuffer(piece.encode("utf-32-le"), "<u4")
