"""Broken and hostile input for every reader of files nobody vouched for: strategies, and a table of the readers."""

import contextlib
import io
import json
import warnings
import zipfile
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import yaml
from hypothesis import strategies as st
from made_runs import add_sweep, build_run

from derive import Architecture, derive_architectures, derive_contenders
from derive.constraints import parse_rules
from derive.yaml_file import read_yaml
from nas.config.options import config_from_values
from nas.config.run_config import load_run_config, run_choices
from nas.config.sections import Config, DataConfig
from nas.data.batches import evaluation_batches
from nas.data.corpus import load_corpus
from nas.data.tokens import build_encoder
from nas.page.report import write_report
from nas.page.watch import view
from nas.results.run_files import Run
from nas.training.checkpoint import CURRENT, MetricsLog, restore, save_checkpoint
from nas.training.weights import load_weights, save_weights
from supernet.blocks import BLOCKS, Candidate, parse_candidate
from supernet.errors import UserError
from supernet.settings import ModelSettings

MARKUP = "<script>alert(1)</script>"
WORDS = [
    "",
    "a",
    "../../etc/passwd",
    "/etc/passwd",
    "..",
    ".",
    MARKUP,
    "\ud800",
    "\x00",
    "a\nb",
    "{{7*7}}",
    "\x1b[2J",
    "\u202e",
    "'\"",
    "3e-4",
    "1e999",
    "NaN",
    "null",
    "x" * 300,
    "self_attention",
    "identity[a=1]",
    "self_attention[heads=2,heads=3]",
    "(sf)x999999",
    "ms",
]
NUMBERS = [
    0,
    1,
    -1,
    2,
    2**31,
    2**63,
    2**64,
    10**19,
    10**20,
    10**300,
    0.5,
    -0.0,
    1e-320,
    1e308,
    float("nan"),
    float("inf"),
]
ATOMS = (
    st.none()
    | st.booleans()
    | st.sampled_from(WORDS)
    | st.sampled_from(NUMBERS)
    | st.integers(-3, 300)
    | st.text(max_size=8)
)
KEYS = st.sampled_from([*WORDS, "block", "layers", "heads", "step", "name", "reasons", "unit", "candidates"])
JUNK = st.recursive(
    ATOMS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)


def deep(levels: int) -> str:
    """Lists in lists, so many."""
    return "[" * levels + "]" * levels


def places(value: Any, path: tuple = ()) -> Iterator[tuple]:
    """The path of every value inside a JSON value, its own first; of a long list only the ends."""
    yield path
    if isinstance(value, dict):
        for key, item in value.items():
            yield from places(item, (*path, key))
    elif isinstance(value, list):
        for index in sorted({0, 1, len(value) - 1} & set(range(len(value)))):
            yield from places(value[index], (*path, index))


@st.composite
def mutated_values(draw: st.DrawFn, valid: Any) -> Any:
    """A valid JSON value with one to three places changed, removed, doubled or filled with junk."""
    value = deepcopy(valid)
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(list(places(value))))
        if not path:
            if draw(st.integers(0, 9)) == 0:
                value = draw(JUNK)
            continue
        home = value
        for key in path[:-1]:
            home = home[key]
        action = draw(st.sampled_from(["junk", "junk", "atom", "remove", "double", "add"]))
        if action == "remove":
            del home[path[-1]]
        elif action == "double" and isinstance(home, list):
            home.insert(path[-1], home[path[-1]])
        elif action == "add" and isinstance(home, dict):
            home[draw(KEYS)] = draw(JUNK)
        else:
            home[path[-1]] = draw(ATOMS if action == "atom" else JUNK)
    return value


@st.composite
def mutated_bytes(draw: st.DrawFn, valid: bytes) -> bytes:
    """Valid bytes cut off, with bytes changed, or with a piece removed, doubled or put in."""
    data = bytearray(valid)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.sampled_from([0, 1, 2, 8, 64, 10**9])))
        piece = draw(
            st.sampled_from([b"", b"", bytes(data[start:end]) * 2, b"\xff", b"\x00" * 8]) | st.binary(max_size=8)
        )
        data[start:end] = piece
    return bytes(data)


def json_bytes(valid: bytes) -> st.SearchStrategy[bytes]:
    """JSON files: arbitrary bytes, mutated text, mutated values, nested junk."""
    values = mutated_values(json.loads(valid)) | JUNK
    return st.one_of(
        values.map(lambda value: json.dumps(value).encode()),
        values.map(lambda value: json.dumps(value).encode()),
        mutated_bytes(valid),
        st.binary(max_size=60),
        st.sampled_from([100, 990, 100_000]).map(lambda levels: deep(levels).encode()),
        st.just(b'{"a": 1, "a": 2}'),
        st.just(b'{"a": ' + b"9" * 9000 + b"}"),
    )


def lines_bytes(valid: bytes) -> st.SearchStrategy[bytes]:
    """JSON lines: some lines mutated as values, some as bytes."""
    lines = valid.splitlines(keepends=True)
    line = st.sampled_from(lines[:6]).flatmap(lambda one: json_bytes(one).map(lambda data: data + b"\n") | st.just(one))
    return st.lists(line, max_size=5).map(b"".join) | mutated_bytes(valid)


def yaml_bytes(valid: bytes) -> st.SearchStrategy[bytes]:
    """YAML files: the same, and YAML's own tricks."""
    tricks = [
        "a: &a [*a]",
        "a: !!python/object/apply:os.system ['true']",
        "a: *b",
        "? [a]\n: 1",
        "run: {seed: 1, seed: 2}",
        "a: 1\n---\nb: 1",
        "run: &r {seed: 1}\nmodel: *r",
        "- " * 5000 + "a",
        "run:\n\tseed: 1",
        "run: {<<: [1]}",
        "model: {layers: 0x7}",
    ]
    values = mutated_values(yaml.safe_load(valid)) | JUNK
    return st.one_of(
        values.map(lambda value: json.dumps(value).encode()),
        values.map(_yaml),
        mutated_bytes(valid),
        st.binary(max_size=60),
        st.sampled_from(tricks).map(str.encode),
        st.text("ab:-[]{}&*!|>'\"#%@ \n\t1e", max_size=60).map(str.encode),
    )


def _yaml(value: Any) -> bytes:
    return yaml.safe_dump(value, allow_unicode=False).encode("utf-8", "surrogatepass")


def zip_bytes(valid: bytes) -> st.SearchStrategy[bytes]:
    """Zip archives: mutated as bytes, or with the pickle inside mutated and the checksums right again."""
    with zipfile.ZipFile(io.BytesIO(valid)) as archive:
        parts = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    pickled = next(name for name in parts if name.endswith("data.pkl"))
    inner = mutated_bytes(parts[pickled]).map(lambda data: _zipped({**parts, pickled: data}))
    part = st.sampled_from(list(parts)).flatmap(
        lambda name: mutated_bytes(parts[name]).map(lambda data: _zipped({**parts, name: data}))
    )
    missing = st.sampled_from(list(parts)).map(
        lambda name: _zipped({key: data for key, data in parts.items() if key != name})
    )
    return inner | inner | part | missing | mutated_bytes(valid) | st.binary(max_size=60)


def _zipped(parts: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def safetensors_bytes(valid: bytes) -> st.SearchStrategy[bytes]:
    """safetensors files: mutated as bytes, or with a mutated header of the right length."""
    size = int.from_bytes(valid[:8], "little")
    header, rest = json.loads(valid[8 : 8 + size]), valid[8 + size :]

    def framed(value: Any) -> bytes:
        text = json.dumps(value).encode()
        return len(text).to_bytes(8, "little") + text + rest

    return (mutated_values(header) | JUNK).map(framed) | mutated_bytes(valid) | st.binary(max_size=60)


def text_bytes(valid: bytes) -> st.SearchStrategy[bytes]:
    """Texts: short and long, broken UTF-8, odd spaces."""
    pieces = st.sampled_from(
        [
            b"word ",
            b"\r\n",
            b"\xff",
            b"\xc3\xa9",
            b"\xc3",
            b"\x00",
            b"\xef\xbb\xbf",
            b"\xe2\x80\xa8",
            b"<unk> <eos> ",
            b"x" * 99,
        ]
    )
    return st.lists(pieces, max_size=80).map(b"".join) | mutated_bytes(valid) | st.binary(max_size=200)


class Reader(NamedTuple):
    """A reader: the file in the folder of `prepare` that is fuzzed, how it is mutated, and what reads it."""

    file: str
    mutations: Callable[[bytes], st.SearchStrategy[bytes]]
    read: Callable[[Path], object]


def prepare(home: Path) -> Path:
    """A folder with a valid file for every reader."""
    run = build_run(home / "run", layers=4, steps=8)
    add_sweep(run)
    build_run(home / "seeds", layers=3, steps=6, seeds=2, retrain_seeds=1)
    labels = json.loads((run / "probabilities.json").read_bytes())["candidates"]
    layouts = [{"layers": [labels[k % 4]] * 4, "loss": 2.0 + k} for k in range(5)]
    (run / "layouts.json").write_text(json.dumps({"part": "alphas", "layouts": layouts}))
    (run / "timings.json").write_text('{"search": 3.5, "halving": 1.0}')
    (home / "config.yaml").write_text(Config().to_yaml())
    (home / "text").write_bytes(b"a few words of text\nand a line more\n" * 20)
    (home / "rules.json").write_text(
        '[{"block": "attention", "at_most": 3, "layers": [0, 2], "name": "few"}, {"cost": "parameters", "at_most": 9}, '
        '{"block": ["identity", "feed_forward"], "longest_run": 2, "only_in": [0.0, 0.5]}]'
    )
    (home / "labels.json").write_text(
        '["mixture_synthesizer[parts=self_attention+random]", {"block": "feed_forward", "d_inner": 8}, "(sfff)x6(f)x8"]'
    )
    (home / "tokenizer.json").write_bytes(made_tokenizer())
    save_checkpoint(home, _Kept().to_checkpoint())
    save_weights(_Kept().model, home / "model.safetensors")
    return home


def made_tokenizer() -> bytes:
    import tokenizers

    made = tokenizers.Tokenizer(
        tokenizers.models.BPE({"a": 0, "b": 1, "ab": 2, " ": 3, "?": 4}, [("a", "b")], unk_token="?")
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return made.to_str().encode()


class _Kept:
    """A small model and its optimizer, as a training keeps them."""

    def __init__(self) -> None:
        self.step, self.model = 0, torch.nn.Linear(3, 2)
        self.optimizer = torch.optim.AdamW(self.model.parameters())

    def to_checkpoint(self) -> dict[str, Any]:
        self.model(torch.ones(1, 3)).sum().backward()
        self.optimizer.step()
        return {"step": self.step, "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load(self, saved: dict[str, Any]) -> None:
        self.step = saved["step"]
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])


def read_configuration(home: Path) -> object:
    """The configuration and all its checks."""
    config = config_from_values(read_yaml(home / "config.yaml") or {}, Config(), source="config.yaml")
    config.check()
    return yaml.safe_load(config.to_yaml())


def read_architecture(home: Path) -> object:
    """The architecture, its cost, and written and read again."""
    arch = Architecture.load(home / "run" / "architectures" / "best.json")
    arch.parameters(), arch.flops_per_token(1)
    arch.save(home / "again.json")
    assert Architecture.load(home / "again.json") == arch
    return arch


def read_checkpoint(home: Path) -> object:
    """A resume."""
    with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of odd pickle protocols before it refuses them
        restore(_Kept(), home)
    return None


def read_weights(home: Path) -> object:
    """The weights of an architecture."""
    load_weights(torch.nn.Linear(3, 2), home / "model.safetensors")
    return None


def read_text(home: Path) -> object:
    """The text as each kind of tokens; what one kind refuses another may take."""
    for kind in ("bytes", "chars", "words"):
        with contextlib.suppress(UserError):
            corpus = load_corpus(DataConfig(name="text", path=str(home / "text"), tokens=kind, seq_len=4))
            for part in corpus.parts:
                for batch in evaluation_batches(corpus, part, seq_len=4, batch_size=8):
                    assert batch.min() >= 0 and batch.max() < corpus.vocab_size
    return None


def read_tokenizer(home: Path) -> object:
    """A tokenizer file and some text through it."""
    encoder = build_encoder(str(home / "tokenizer.json"))
    numbers = encoder.encode("a bab \u00e9 <b>")
    assert not numbers.size or (numbers.min() >= 0 and numbers.max() < encoder.vocab_size)
    return encoder


def read_rules(home: Path) -> object:
    """Rules for the layouts of a search."""
    candidates = [Candidate(name) for name in BLOCKS]
    costs = {"parameters": np.ones(len(candidates))}
    return parse_rules(json.loads((home / "rules.json").read_bytes()), candidates, list(BLOCKS), 6, costs)


def read_labels(home: Path) -> object:
    """Candidates, patterns and presets, whatever each entry can be taken for."""
    entries = json.loads((home / "labels.json").read_bytes())
    for entry in entries if isinstance(entries, list) else [entries]:
        for read in (lambda one: parse_candidate(one, ModelSettings()), Architecture.from_pattern, Architecture.preset):
            with contextlib.suppress(UserError):
                read(entry)
    return None


def read_metrics_to_go_on(home: Path) -> object:
    """The metrics of a stopped run, to be appended to."""
    (home / "metrics.jsonl").write_bytes((home / "run" / "metrics.jsonl").read_bytes())
    with MetricsLog(home / "metrics.jsonl", 30) as log:
        log.write(step=31, loss=1.0)
    return None


def read_all(home: Path) -> object:
    """The run as pictures, page and `watch` read it, and all that `watch` shows of it."""
    return view(Run.load(home / "run"), color=True, width=80, now=0.0)


def read_page(home: Path) -> object:
    """The page with every picture; what the files say stands in it escaped."""
    page = write_report(home / "run").read_text(encoding="utf-8")
    assert MARKUP not in page
    return page


def derive_all(home: Path) -> object:
    """Derived architectures and contenders."""
    derive_contenders(home / "run", drawn=2, random=1)
    return derive_architectures(home / "run", selection="average")


SHOWN = {
    "probabilities": ("probabilities.json", json_bytes),
    "comparison": ("comparison.json", json_bytes),
    "sweep": ("sweep/sweep.json", json_bytes),
    "metrics": ("metrics.jsonl", lines_bytes),
    "best": ("architectures/best.json", json_bytes),
    "latency": ("latency.json", json_bytes),
    "data": ("data.json", json_bytes),
    "config": ("config.yaml", yaml_bytes),
    "layouts": ("layouts.json", json_bytes),
    "timings": ("timings.json", json_bytes),
    "training": ("retrain/par/seed-0/metrics.jsonl", lines_bytes),
}
READERS = {
    "configuration": Reader("config.yaml", yaml_bytes, read_configuration),
    "a run's configuration": Reader(
        "run/config.yaml", yaml_bytes, lambda home: (run_choices(home / "run"), load_run_config(home / "run"))
    ),
    "architecture": Reader("run/architectures/best.json", json_bytes, read_architecture),
    "probabilities, derive": Reader("run/probabilities.json", json_bytes, derive_all),
    "layouts, derive": Reader("run/layouts.json", json_bytes, derive_all),
    "data, derive": Reader("run/data.json", json_bytes, derive_all),
    "configuration, derive": Reader("run/config.yaml", yaml_bytes, derive_all),
    "a seed's probabilities": Reader(
        "seeds/seed-1/probabilities.json", json_bytes, lambda home: derive_architectures(home / "seeds")
    ),
    "checkpoint": Reader(CURRENT, zip_bytes, read_checkpoint),
    "weights": Reader("model.safetensors", safetensors_bytes, read_weights),
    "text": Reader("text", text_bytes, read_text),
    "tokenizer": Reader("tokenizer.json", json_bytes, read_tokenizer),
    "rules": Reader(
        "rules.json", lambda valid: mutated_values(json.loads(valid)).map(json.dumps).map(str.encode), read_rules
    ),
    "labels and patterns": Reader(
        "labels.json",
        lambda valid: (mutated_values(json.loads(valid)) | JUNK).map(json.dumps).map(str.encode),
        read_labels,
    ),
    "metrics, resume": Reader("run/metrics.jsonl", lines_bytes, read_metrics_to_go_on),
    "agreement, view": Reader(
        "seeds/agreement.json", json_bytes, lambda home: view(Run.load(home / "seeds"), color=False, width=80, now=0.0)
    ),
    **{f"{name}, view": Reader(f"run/{file}", mutations, read_all) for name, (file, mutations) in SHOWN.items()},
}
PAGES = {
    **{f"{name}, page": Reader(f"run/{file}", mutations, read_page) for name, (file, mutations) in SHOWN.items()},
    "agreement, page": Reader("seeds/agreement.json", json_bytes, lambda home: write_report(home / "seeds")),
}
