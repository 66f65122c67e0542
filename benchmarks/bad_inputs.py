"""Wrong calls of the real program: python benchmarks/bad_inputs.py [--only WORD]

Wrong keys, values, files, folders, patterns, architectures, runs, rules, corpora and checkpoints, bombs among them.
Each must end with exit code 2, exactly one line that starts with `error:`, no traceback, soon, and within 4 GB of
memory. Every twelfth is a process of its own, the others are calls of `search.main`. Prints what is not as it must be,
and what took over 10 s. Exit code 1 where a case fails.
"""

import argparse
import dataclasses
import io
import json
import os
import pickle
import resource
import shutil
import signal
import sys
import tempfile
import time
import typing
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from made_runs import add_sweep, build_run  # noqa: E402
from tiny_runs import call, command, tiny_yaml  # noqa: E402

from nas.config.ranges import RANGES  # noqa: E402
from nas.config.sections import Config  # noqa: E402

MEMORY = 4 * 2**30
LONGEST, SLOW = 120, 10  # seconds
HUGE = 10 * 2**30  # bytes of a sparse file
BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "\n".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


class Case(NamedTuple):
    """A call that must fail; `prepare` is called before it."""

    arguments: list[str]
    prepare: Callable[[], object] = lambda: None


def option_cases() -> Iterator[Case]:
    """For every key of the configuration a value of the wrong type, and one out of its range; unknown keys near the
    known ones."""
    for section in dataclasses.fields(Config):
        start = ["sweep", "run"] if section.name == "sweep" else ["run"]
        for field in dataclasses.fields(section.type):
            key = f"{section.name}.{field.name}"
            yield Case([*start, f"--{key}x", "1"])
            wrong = wrong_value(field.type)
            if wrong is not None:
                yield Case([*start, f"--{key}", wrong])
            if key in RANGES:
                least, closed, _most = RANGES[key]
                value = least - 1 if closed else least
                yield Case([*start, f"--{key}", f"[{value}]" if typing.get_origin(field.type) is list else f"{value}"])
            if field.type in (float, float | None):
                yield Case([*start, f"--{key}=nan"])


def wrong_value(kind: Any) -> str | None:
    """A text that a field of this type cannot take; None where it takes any."""
    if kind in (str, str | None):
        return None
    return "{a: 1}" if typing.get_origin(kind) is list else "nonsense"


LINES = """
runn | run now | run --stepz 3 | run -x | run --config | run --config= | run --config none.yaml | run --config .
run --config /dev/zero | run --print_config --search.steps -1 | run -- | run --search 3 | run --nothing.steps 3
run --run.resume true | run --run.dir text | run --run.dir text/below | run --run.dir . | run --run.dir /proc/nothing
run --run.device tpu | run --run.device cuda:99 | run --run.device cpu:1 | run --data.name text | run --data.name txt
run --data.name text --data.path none.txt | run --data.path text | run --data.name text --data.path .
run --data.name text --data.path empty | run --data.name text --data.path short
run --data.name text --data.path fifo | run --data.name text --data.path /dev/zero
run --data.name text --data.path latin --data.tokens chars
run --data.name text --data.path latin --data.tokens words | run --data.name text --data.path word --data.tokens words
run --data.name enwik8 | run --data.name enwik8 --data.path . | run --data.name enwik8 --data.path text
run --data.name text8 --data.path huge | run --data.name wikitext-2 --data.path .
run --data.name wikitext-103 --data.path text | run --data.name wikitext-2 --data.path wiki
run --data.tokens letters | run --data.tokens text | run --data.tokens none.json | run --data.tokens deep.json
run --data.tokens huge | run --data.tokens list.json | run --data.tokens . | run --data.tokens /dev/zero
run --data.seq_len 1000000 | run --data.seq_len 64 --model.max_len 8 | run --model.task masked_lm
run --model.task translation | run --model.memory_len 4 | run --model.heads 3 | run --model.layers 1000000000
run --model.d_model 65536 --model.layers 1024 | run --model.position sinusoidal --model.d_model 3 --model.heads 1
run --search.warmup_steps 99999999 | run --search.blocks [] | run --search.blocks [identity]
run --search.blocks [identity,identity] | run --search.blocks [identity,nothing] | run --search.blocks identity
run --search.blocks [identity,3] | run --search.blocks [identity,'feed_forward[']
run --search.blocks [identity,'feed_forward[d_inner=0]'] | run --search.blocks [identity,'self_attention[heads=3]']
run --search.blocks [identity,{block:feed_forward,rank:2}] | run --search.blocks [identity,{rank:2}]
run --search.blocks [identity,../../x]
run --search.blocks [identity,'factorized_random_synthesizer[rank=99999999999]']
run --search.blocks [identity,'mixture_synthesizer[parts=random]']
run --search.blocks [self_attention,feed_forward] --search.budget 0.01 | run --search.budget 1.01
run --search.budget 0 | run --search.seeds 0 | run --derive.budget 2 | run --derive.cut 0 | run --derive.ratio 0.5
run --derive.rules {} | run --derive.rules [3] | run --derive.rules [{}] | run --derive.rules [{block:nothing}]
run --derive.rules [{block:identity}] | run --derive.rules [{block:identity,at_most:-1}]
run --derive.rules [{block:identity,at_most:1e99}] | run --derive.rules [{block:identity,at_most:x}]
run --derive.rules [{cost:gold,at_most:1}] | run --derive.rules [{cost:[1],at_most:1}]
run --derive.rules [{cost:parameters}] | run --derive.rules [{block:identity,at_most:1,colour:red}]
run --derive.rules [{block:identity,at_least:3,at_most:1}] | run --derive.rules [{block:identity,exactly:99}]
run --derive.rules [{block:identity,exactly:1,at_most:1}] | run --derive.rules [{block:identity,only_in:[3,1]}]
run --derive.rules [{block:identity,only_in:[0.5]}] | run --derive.rules [{block:identity,longest_run:0}]
run --derive.rules [{block:[],at_most:1}] | run --derive.rules [{block:[[]],at_most:1}]
run --derive.rules [{block:identity,at_most:1,name:[1]}] | run --derive.rules [{block:identity,at_most:1,name:budget}]
run --retrain.against [sfz] | run --retrain.against [../../etc/passwd] | run --retrain.against [nothing.json]
run --retrain.against [par-base] | run --retrain.against [(s)x1000000000] | run --retrain.architectures [best]
run --retrain.architectures [argmax,argmax] | run --retrain.rungs [0.7,0.3] | run --retrain.rungs [1.5]
run --retrain.architectures [] --retrain.against [] | search --run.dir run | run --run.dir run | search now | derive
derive none | derive . | derive text | derive run --derive.selection first | derive run --derive.budget 1.001
derive run --search.steps 3 | derive run run | derive run --derive.rules [{block:random_synthesizer,exactly:99}]
plot | plot . | plot none | plot text | report . | report none | watch . | watch none | compare | compare run
compare run none | compare none none | sweep none | sweep . | sweep run --sweep.cuts []
sweep run --sweep.ratios [0.5] | show | show none.json | show par-bas | show . | show / | show sfz | show ( | show (sf
show sf) | show () | show (sf)x0 | show 3s | show (s)x1000000000 | show ((((s)x99)x99)x99)x99
show par --model.heads 3 --model.d_model 64 | show par --model.layers 1000000000 | show par --derive.ratio 0
show par-base --format yaml | show sf --model.vocab_size 3 | show /dev/zero | show huge | show fifo/x | show \u202e
retrain | retrain sfz | retrain none.json | retrain sf huge | retrain par-base | retrain sf --retrain.steps 0
retrain arch/copy.json arch/other.json | evaluate | evaluate none | evaluate . | evaluate text
evaluate run --data.split train | evaluate trained --data.tokens chars | generate | generate none --prompt a
generate . --prompt a | generate text --prompt a | generate run --prompt a | generate trained
generate trained --prompt a --tokens -1 | generate trained --prompt a --tokens x
generate trained --prompt a --tokens 99999999999 | generate trained --prompt a --temperature -1
generate trained --prompt a --temperature nan | generate trained --prompt a --temperature inf
generate trained --prompt a --top_k 0 | generate trained --prompt a --top_k 1.5
generate trained --prompt a --seed -1 | generate trained --prompt a --seed x
generate trained --prompt a --search.steps 3 | generate trained again --prompt a
generate trained --prompt a --run.device tpu | latency --search.blocks [identity] | latency --run.dir run
latency --run.dir text | latency --run.device tpu
"""


def line_cases() -> Iterator[Case]:
    """The lines above; also empty words, and more than a command line can sensibly hold."""
    for line in LINES.strip().replace("\n", " | ").split(" | "):
        yield Case([json.loads(f'"{word}"') if word.startswith("\\u") else spaced(word) for word in line.split()])
    for arguments in (
        [""],
        ["show", ""],
        ["show", "s" * 20000],
        ["show", "(" * 9000 + "s" + ")" * 9000],
        ["show", "s\x00f"],
        ["show", "a\nb"],
        ["derive", ""],
        ["run", "--run.dir", ""],
        ["run", "--run.dir", "x" * 5000],
        ["run", "--data.path", "\udcff"],
        ["run", "--derive.rules", "[" * 3000 + "]" * 3000],
        ["run", "--search.steps", "9" * 9000],
        ["run", "--model.layers", "1e400"],
        ["run", "--search.blocks", "[identity, '" + "x" * 3000 + "']"],
        ["run", "--data.name", "<script>alert(1)</script>"],
    ):
        yield Case(arguments)


def spaced(word: str) -> str:
    """YAML wants a space behind a colon, and the lines above are cut at spaces."""
    return word.replace(":", ": ") if word.startswith("[{") or "{block:" in word or "{rank:" in word else word


YAMLS: dict[str, str | bytes] = {
    "twice": "run:\n  seed: 1\n  seed: 2",
    "tag": "a: !!python/object/apply:os.system ['true']",
    "documents": "run: {seed: 1}\n---\nrun: {seed: 2}",
    "syntax": "run: [1",
    "tab": "run:\n\tseed: 1",
    "utf8": b"run: {seed: \xff}",
    "nul": b"run: \x00",
    "deep": "[" * 5000,
    "block": "- " * 5000 + "a",
    "bomb": BOMB,
    "itself": "a: &a [*a]",
    "digits": "run: {seed: " + "9" * 9000 + "}",
    "key": "? [a]\n: 1",
    "large": "#" * 2**21,
    "list": "[1, 2]",
    "word": "run",
    "section": "runs: {seed: 1}",
    "unknown": "run: {sead: 1}",
    "null": "run: {seed: null}",
    "nan": "retrain: {lr: .nan}",
    "infinite": "retrain: {lr: .inf}",
    "text": "search: {steps: many}",
    "bool": "search: {steps: true}",
    "html": "run: {<b>: 1}",
    "layers": "model: {layers: 1000000000}",
    "anchor": "run: *r",
    "path": "data: {name: ../../etc/passwd}",
}


def yaml_cases() -> Iterator[Case]:
    """Configurations that are no configuration."""
    for name, content in YAMLS.items():
        yield Case(
            ["run", "--config", f"{name}.yaml"], lambda name=name, content=content: write(f"{name}.yaml", content)
        )
    yield Case(["run", "--config", "huge"])


def changed(**changes: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A valid architecture with other values; `model__heads` lies within `model`, a value of None takes the key out."""

    def change(valid: dict[str, Any]) -> dict[str, Any]:
        value = json.loads(json.dumps(valid))
        for key, new in changes.items():
            home = value
            *sections, last = key.split("__")
            for section in sections:
                home = home.setdefault(section, {})
            home[last] = new
            if new is None:
                del home[last]
        return value

    return change


ARCHITECTURES = [
    changed(format="onnx"),
    changed(format=None),
    changed(version=2),
    changed(version="1"),
    changed(version=None),
    changed(task="translation"),
    changed(task=None),
    changed(model=None),
    changed(model=[]),
    changed(model__heads=3),
    changed(model__heads="four"),
    changed(model__d_model=0),
    changed(model__d_model=10**30),
    changed(model__dropout=1.0),
    changed(model__dropout=float("nan")),
    changed(model__max_len=float("inf")),
    changed(model__memory_len=8),
    changed(model__colour="red"),
    changed(model__norm="middle"),
    changed(model__tie_embeddings=1),
    changed(model__cutoffs=[9, 3]),
    changed(layers=None),
    changed(layers=[]),
    changed(layers={}),
    changed(layers=3),
    changed(layers=["self_attention"]),
    changed(layers=[{}]),
    changed(layers=[{"block": "os.system"}]),
    changed(layers=[{"block": "feed_forward", "rank": 3}]),
    changed(layers=[{"block": ["feed_forward"]}]),
    changed(layers=[{"block": "self_attention", "heads": 7}]),
    changed(layers=[{"block": "identity"}] * 5000),
    changed(layers=[{"block": "factorized_dense_synthesizer", "a": 3, "b": 5}]),
    changed(layers=[{"block": "mixture_synthesizer", "parts": ["random"]}]),
    changed(pattern="sf"),
    changed(pattern=3),
    changed(pattern="(s)x1000000000"),
    changed(name="../../etc/passwd"),
    changed(name="a/b"),
    changed(name="a\\b"),
    changed(name=".."),
    changed(name=""),
    changed(name=3),
    changed(name="x" * 200),
    changed(name="\ud800"),
    changed(name="a\nb"),
    changed(evidence=3),
    changed(evidence__candidates=[3]),
    changed(evidence__probabilities=[[2.0]]),
    changed(evidence__verdict={}),
    changed(evidence__rules=[{}]),
    changed(evidence__overruled=[{"layer": 99}]),
    changed(cost={"dollars": 3}),
    changed(cost={"parameters": -1}),
    changed(retrain={"steps": "many"}),
    changed(provenance={"run": 3}),
    changed(provenance=[]),
    changed(unknown=1),
    lambda valid: [valid],
    lambda valid: None,
]
BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda valid: b"",
    "half": lambda valid: valid[: len(valid) // 2],
    "nan": lambda valid: b'[NaN, {"a": Infinity}]\n',
    "twice": lambda valid: b'{"a": 1, "a": 2}\n',
    "deep": lambda valid: b'{"a": ' + b"[" * 10**5 + b"]" * 10**5 + b"}\n",
    "word": lambda valid: b'"word"\n',
    "lists": lambda valid: b"[" + b"[]," * (20 * 2**20) + b"[]]\n",
}


def architecture_cases() -> Iterator[Case]:
    """Architecture files that must not be read, by `show` and some by `retrain`."""
    valid = json.loads(Path("run/architectures/best.json").read_text())
    for number, change in enumerate(ARCHITECTURES):
        name = f"arch-{number}.json"
        yield Case(
            ["retrain" if number % 5 == 4 else "show", name],
            lambda name=name, change=change: write(name, json.dumps(change(valid))),
        )
    for kind, damage in BROKEN.items():
        yield Case(
            ["show", f"{kind}.json"],
            lambda kind=kind, damage=damage: write(f"{kind}.json", damage(json.dumps(valid).encode())),
        )
    wide = changed(model__d_model=2**30, model__heads=1)(valid)
    yield Case(["retrain", "wide.json"], lambda: write("wide.json", json.dumps(wide)))
    yield Case(
        ["evaluate", "wide"],
        lambda: (shutil.copytree("trained", "wide"), write("wide/architecture.json", json.dumps(wide))),
    )
    yield Case(
        ["retrain", "longer.json"], lambda: write("longer.json", json.dumps(changed(model__vocab_size=9)(valid)))
    )


def run_cases() -> Iterator[Case]:
    """Run folders with a file that is broken."""
    readers = {
        "probabilities.json": "derive plot report watch",
        "data.json": "derive report",
        "config.yaml": "derive sweep",
        "metrics.jsonl": "plot watch",
        "comparison.json": "report",
        "architectures/best.json": "report",
        "layouts.json": "derive",
        "latency.json": "plot",
        "sweep/sweep.json": "plot",
        "timings.json": "report",
    }
    for file, commands in readers.items():
        for kind, damage in BROKEN.items():
            if (file, kind) in (
                ("config.yaml", "half"),
                ("metrics.jsonl", "empty"),
                ("layouts.json", "empty"),
                ("metrics.jsonl", "half"),
                ("timings.json", "lists"),
            ):
                continue  # these are still valid
            name = f"{file.replace('/', '-')}-{kind}"
            content = "probabilities.json" if file == "layouts.json" else file
            yield Case(
                [commands.split()[len(kind) % len(commands.split())], name],
                lambda f=file, c=content, n=name, d=damage: broken_run(n, f, d(Path("run", c).read_bytes())),
            )
        yield Case(
            [commands.split()[0], f"huge-{file.replace('/', '-')}"],
            lambda file=file: sparse(broken_run(f"huge-{file.replace('/', '-')}", file, b"{") / file),
        )
    yield Case(["compare", "run", "probabilities.json-half"])


def broken_run(name: str, file: str, content: bytes) -> Path:
    """A copy of the valid run with another content of one file."""
    shutil.rmtree(name, ignore_errors=True)
    shutil.copytree("run", name)
    write(f"{name}/{file}", content)
    return Path(name)


def zipped(parts: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    """A zip archive."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return buffer.getvalue()


class Evil:
    """Unpickling this would make a file."""

    def __reduce__(self) -> tuple:
        return os.system, ("touch pwned",)


class Big:
    """Unpickling this would take 10 GB."""

    def __reduce__(self) -> tuple:
        return bytearray, (HUGE,)


def checkpoint_cases() -> Iterator[Case]:
    """Checkpoints and weights that must not be gone on with or evaluated."""
    pickled = {"archive/version": b"3", "archive/byteorder": b"little"}
    contents = {
        "empty": b"",
        "text": b"not a checkpoint",
        "pickle": pickle.dumps(Evil()),
        "evil": zipped({**pickled, "archive/data.pkl": pickle.dumps(Evil(), 2)}),
        "foreign": zipped({**pickled, "archive/data.pkl": pickle.dumps({"step": 3}, 2)}),
        "list": zipped({**pickled, "archive/data.pkl": pickle.dumps([1], 2)}),
        "bomb": zipped({**pickled, "archive/data.pkl": bytes(2**28)}, zipfile.ZIP_DEFLATED),
        "paths": zipped({"../../pwned": b"x"}),
        "half": Path("search/checkpoint.pt").read_bytes()[:-500],
        "nothing": zipped({}),
        "step": zipped({**pickled, "archive/data.pkl": pickle.dumps({"step": "x", "net": {}}, 2)}),
    }
    for name, content in contents.items():
        options = ["--config", "tiny.yaml", "--run.resume", "true", "--run.dir", f"checkpoint-{name}"]
        yield Case(
            ["search", *options], lambda name=name, content=content: broken_search(f"checkpoint-{name}", content)
        )
    yield Case(
        ["search", "--config", "tiny.yaml", "--run.resume", "true", "--run.dir", "checkpoint-huge"],
        lambda: sparse(broken_search("checkpoint-huge", b"PK")),
    )
    header = b'{"w": {"dtype": "F32", "shape": [1000000000000], "data_offsets": [0, 4000000000000]}}'
    weights = {
        "empty": b"",
        "text": b"x" * 100,
        "half": Path("trained/model.safetensors").read_bytes()[:-9],
        "header": (2**60).to_bytes(8, "little") + b"{}",
        "shape": len(header).to_bytes(8, "little") + header,
        "pickle": pickle.dumps(Evil()),
    }
    for name, content in weights.items():
        yield Case(
            ["evaluate", f"weights-{name}"], lambda name=name, content=content: trained(f"weights-{name}", content)
        )
    yield Case(["evaluate", "weights-huge"], lambda: sparse(trained("weights-huge", b"{}")))


def broken_search(name: str, content: bytes) -> Path:
    """A search that has not finished and whose only checkpoint holds this."""
    shutil.copytree(
        "search", name, ignore=shutil.ignore_patterns("probabilities.json", "checkpoint.previous.pt", "report.html")
    )
    write(f"{name}/checkpoint.pt", content)
    return Path(name, "checkpoint.pt")


def trained(name: str, content: bytes) -> Path:
    """A training whose weights hold this."""
    shutil.copytree("trained", name)
    write(f"{name}/model.safetensors", content)
    return Path(name, "model.safetensors")


def write(name: str, content: str | bytes) -> None:
    """A file in the current folder."""
    Path(name).write_bytes(content.encode() if isinstance(content, str) else content)


def sparse(path: Path) -> None:
    """Make a file 10 GB long without writing them."""
    os.truncate(path, HUGE)


def prepare() -> None:
    """Valid things in the current folder, and some that are broken."""
    build_run(Path("run"), layers=4, steps=8)
    add_sweep(Path("run"))
    write("run/timings.json", '{"search": 1.0}')
    tiny_yaml(Path("tiny.yaml"))
    for arguments in (
        ["search", "--config", "tiny.yaml", "--run.dir", "search"],
        ["retrain", "sf", "--config", "tiny.yaml", "--run.dir", "again"],
    ):
        done = call(*arguments)
        assert done.returncode == 0, done.stderr
    shutil.copytree("again/retrain/sf/seed-0", "trained")
    for name, content in {
        "text": "some words\n" * 9,
        "empty": "",
        "short": "a",
        "latin": b"caf\xe9 " * 500,
        "deep.json": "[" * 10**5,
        "list.json": "[]",
    }.items():
        write(name, content)
    Path("wiki").mkdir()
    for part in ("train", "valid", "test"):
        write(f"wiki/wiki.{part}.tokens", "a b c\n" * 99)
    Path("arch").mkdir()
    for name, width in (("copy", 8), ("other", 16)):
        valid = json.loads(Path("run/architectures/best.json").read_text())
        write(f"arch/{name}.json", json.dumps(changed(name="same", model__d_model=width)(valid)))
    os.mkfifo("fifo")
    write("huge", "")
    sparse(Path("huge"))
    write("word", b"x" * 2**28)


def too_long(number: int, frame: object) -> None:
    """What an alarm does."""
    raise TimeoutError(f"took over {LONGEST} s")


def complaint(case: Case, as_process: bool) -> str:
    """What is wrong with how the case ended; nothing where all is well."""
    signal.alarm(LONGEST)
    done = command(*case.arguments, cwd=Path.cwd(), timeout=LONGEST) if as_process else call(*case.arguments)
    signal.alarm(0)
    errors = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    if done.returncode != 2 or len(errors) != 1 or "Traceback" in done.stderr or Path("pwned").exists():
        return f"exit {done.returncode}, {errors or done.stderr[-300:]!r}"
    return ""


def main() -> None:
    """Try all cases in a folder of their own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases with this word in their call")
    options = parser.parse_args()
    signal.signal(signal.SIGALRM, too_long)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ["XDG_CACHE_HOME"] = folder
        prepare()
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        makers = (option_cases, line_cases, yaml_cases, architecture_cases, run_cases, checkpoint_cases)
        cases = [case for make in makers for case in make() if options.only in " ".join(case.arguments)]
        good, processes = 0, 0
        for number, case in enumerate(cases):
            case.prepare()
            as_process = number % 12 == 7 and all("\x00" not in word for word in case.arguments)
            began = time.monotonic()
            wrong = complaint(case, as_process)
            seconds, shown = time.monotonic() - began, " ".join(case.arguments)[:150]
            good, processes = good + (not wrong), processes + as_process
            if wrong:
                print(f"WRONG {shown!r}: {wrong}", flush=True)
            if seconds > SLOW:
                print(f"{seconds:.1f} s: {shown!r}", flush=True)
        os.chdir("/")
    print(f"{good} of {len(cases)} ended with one error line, {processes} of them processes of their own")
    sys.exit(good != len(cases))


if __name__ == "__main__":
    main()
