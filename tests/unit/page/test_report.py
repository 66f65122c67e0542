"""The report page: what stands where, that nothing in it runs or loads but its own script, and that it stays small."""

import base64
import hashlib
import os
from html.parser import HTMLParser

import numpy as np
import pytest
import yaml
from made_runs import build_run

from derive.strict_json import loads, read_json, write_json
from nas.page import report_data
from nas.page.report import duration, number, readable, write_report
from nas.page.report_sections import facts, headline, timings, warnings_of
from nas.pictures.plots import PICTURES, draw_all
from nas.pictures.plots_base import palette_of
from nas.results.run_files import Run

EVIL = "</script><script>alert('x')</script><img src=x onerror=alert(1)>&\u2028\"'$\\frac{$ 字"


class Page(HTMLParser):
    """Tags with their attributes in order, the text, and the content of scripts."""

    def __init__(self, html: str):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.text = ""
        self.open: str | None = None
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag in ("script", "style"):
            self.open = tag
            if tag == "script":
                self.scripts.append((dict(attributes), ""))

    def handle_endtag(self, tag):
        if tag == self.open:
            self.open = None

    def handle_data(self, data):
        if self.open == "script":
            attributes, before = self.scripts[-1]
            self.scripts[-1] = (attributes, before + data)
        elif self.open is None:
            self.text += data

    def ids(self):
        return [attributes["id"] for _, attributes in self.tags if "id" in attributes]


def read_page(folder):
    html = write_report(folder).read_text(encoding="utf-8")
    return html, Page(html)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return build_run(tmp_path_factory.mktemp("runs") / "one", layers=5, candidates=4, steps=10)


@pytest.fixture(scope="module")
def page(folder):
    return read_page(folder)


def test_the_verdict_comes_first_and_the_sections_in_their_order(folder, page):
    _, parsed = page
    wanted = [
        "verdict",
        "best",
        "comparison",
        "layouts",
        "rules",
        "steps",
        "pictures",
        "configuration",
        "versions",
        "timings",
        "warnings",
    ]
    assert [name for name in parsed.ids() if name in wanted] == wanted
    assert parsed.text.index(headline(Run.load(folder))) < parsed.text.index("Best architecture")


def test_every_number_of_the_comparison_is_there(folder, page):
    _, parsed = page
    run = Run.load(folder)
    for name in ("argmax", "par-rule", "budget", "interleaved", "par"):
        rows = [row for row in run.comparison if row["name"] == name]
        assert f"{np.mean([row['held_out_loss'] for row in rows]):.4f}" in parsed.text
        assert f"{rows[0]['parameters']:,}" in parsed.text
    for rule in run.architectures["par-rule"]["evidence"]["rules"]:
        assert rule["reason"] in parsed.text


def test_every_picture_is_there_with_its_words(page):
    _, parsed = page
    images = [attributes for tag, attributes in parsed.tags if tag == "img"]
    missing = [name for name in PICTURES if name in ("synthesizers", "attention_maps", "agreement", "sweep")]
    assert len(images) == len(PICTURES) - len(missing)
    assert all(image["alt"] and image["src"].startswith("data:image/") for image in images)
    assert all(f"picture-{name}" in parsed.ids() for name in PICTURES)
    assert len(parsed.ids()) == len(set(parsed.ids()))
    assert "cannot tell whether another seed would agree" in parsed.text


def test_nothing_is_fetched_and_only_the_pages_own_script_runs(page):
    html, parsed = page
    policy = next(
        attributes["content"]
        for tag, attributes in parsed.tags
        if attributes.get("http-equiv") == "Content-Security-Policy"
    )
    (script,) = [text for attributes, text in parsed.scripts if attributes.get("type") != "application/json"]
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    assert policy == f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    for tag, attributes in parsed.tags:
        assert not [name for name in attributes if name.startswith("on")], tag
        for name in ("src", "href"):
            if name in attributes and tag != "a":
                assert attributes[name].startswith("data:"), (tag, attributes[name])
            elif name in attributes:
                assert attributes[name].startswith(("#", "data:application/json;base64,"))
    assert "@import" not in html and "url(" not in html


def test_downloads_are_the_architecture_files(folder, page):
    _, parsed = page
    links = {attributes["download"]: attributes["href"] for tag, attributes in parsed.tags if "download" in attributes}
    assert set(links) >= {"argmax.json", "par-rule.json", "budget.json"}
    for name in ("argmax.json", "budget.json"):
        content = loads(base64.b64decode(links[name].split(",", 1)[1]))
        assert content == read_json(folder / "architectures" / name)
    copied = {attributes["data-copy"] for _, attributes in parsed.tags if "data-copy" in attributes}
    assert copied == {row["pattern"] for row in Run.load(folder).comparison}


def test_the_script_gets_the_recorded_probabilities(folder, page):
    _, parsed = page
    data = loads(next(text for attributes, text in parsed.scripts if attributes.get("id") == "search-data"))
    run = Run.load(folder)
    labels = [candidate["label"] for candidate in data["candidates"]]
    assert labels == [label for label in palette_of(run).labels if label in run.candidates]
    (search,) = data["searches"]
    values = np.frombuffer(base64.b64decode(search["values"]), "<u2").reshape(10, 5, 4) / 65535
    order = [run.candidates.index(label) for label in labels]
    assert np.abs(values - run.search.probabilities[:, :, order]).max() < 1e-5
    assert search["steps"] == run.search.steps.tolist() and search["warmup"] == 10
    assert [candidate["cost"] for candidate in data["candidates"]] == run.search.costs[order].tolist()


def test_text_from_files_is_never_markup(tmp_path):
    folder = build_run(tmp_path / "run", layers=4, candidates=3, steps=4, seeds=2, retrain_seeds=1)
    for home in (folder, folder / "seed-0", folder / "seed-1"):
        config = yaml.safe_load((home / "config.yaml").read_text())
        config["run"]["dir"] = config["data"]["path"] = EVIL
        (home / "config.yaml").write_text(yaml.safe_dump(config, allow_unicode=True), encoding="utf-8")
    for home in (folder / "seed-0", folder / "seed-1"):
        content = read_json(home / "probabilities.json")
        content["candidates"][2] = f"identity[{EVIL}]"
        content["cost"]["unit"] = EVIL
        content["verdict"] = {"converged": False, "reasons": [EVIL]}
        write_json(home / "probabilities.json", content)
        data = read_json(home / "data.json")
        data.update(name=EVIL, sha256=EVIL)
        write_json(home / "data.json", data)
    for name in ("argmax", "par-rule", "budget", "best"):
        arch = read_json(folder / "architectures" / f"{name}.json")
        arch.setdefault("evidence", {})["rules"] = [
            {"rule": EVIL, "value": EVIL, "interval": [EVIL], "supported": False, "reason": EVIL}
        ]
        arch["evidence"]["overruled"] = [{"layer": 0, "preferred": EVIL, "chosen": EVIL, "rule": EVIL}]
        arch.setdefault("provenance", {})["versions"] = {EVIL: EVIL}
        arch["name"] = EVIL
        write_json(folder / "architectures" / f"{name}.json", arch)
    write_json(
        folder / "comparison.json",
        [{**row, "name": row["name"] + EVIL, "pattern": EVIL} for row in read_json(folder / "comparison.json")],
    )
    html, parsed = read_page(folder)
    assert "<img src=x" not in html and "<script>alert" not in html
    assert len(parsed.scripts) == 2 and sum(tag == "img" for tag, _ in parsed.tags) <= len(PICTURES)
    assert all("onerror" not in attributes for _, attributes in parsed.tags)
    embedded = next(text for attributes, text in parsed.scripts if attributes.get("id") == "search-data")
    assert not set("<>&'\u2028") & set(embedded) and loads(embedded)["unit"] == EVIL


@pytest.mark.parametrize(
    ("stages", "sentences"),
    [
        (
            (),
            [
                "Nothing has been searched or compared",
                "No architecture has been chosen",
                "No rules have been read",
                "no search",
            ],
        ),
        (("search",), ["no layout has been retrained yet", "so nothing can be said", "No rules have been read"]),
        (("search", "derive"), ["no layout has been retrained yet", "what there is to compare"]),
        (("retrain",), ["No search has been recorded", "Best: "]),
    ],
)
def test_a_page_says_what_has_not_been_run(tmp_path, stages, sentences):
    _, parsed = read_page(build_run(tmp_path / "run", layers=4, candidates=3, steps=4, stages=stages))
    for sentence in sentences:
        assert sentence.lower() in parsed.text.lower()
    assert ("explorer" in parsed.ids()) == ("search" in stages)


def test_several_seeds_are_all_in_the_page(tmp_path):
    folder = build_run(tmp_path / "run", layers=4, candidates=3, steps=4, seeds=3)
    _, parsed = read_page(folder)
    data = loads(next(text for attributes, text in parsed.scripts if attributes.get("id") == "search-data"))
    assert [search["name"] for search in data["searches"]] == ["seed 0", "seed 1", "seed 2"]
    assert [attributes.get("value") for tag, attributes in parsed.tags if tag == "option"] == ["0", "1", "2"]
    assert "seed 1: not converged" in parsed.text and "seed 0: converged" in parsed.text
    _, alone = read_page(folder / "seed-1")
    assert "The search has not converged" in alone.text


def test_a_page_of_32_layers_9_candidates_1000_steps_is_under_5_mb(tmp_path):
    folder = build_run(tmp_path / "run", layers=32, candidates=9, steps=1000, stages=("search", "latency"))
    html, parsed = read_page(folder)
    assert len(html.encode("utf-8")) < 5_000_000
    assert "keep this page small" not in parsed.text
    data = loads(next(text for attributes, text in parsed.scripts if attributes.get("id") == "search-data"))
    assert len(data["searches"][0]["steps"]) == 1000


def test_steps_that_are_left_out_are_said_to_be(tmp_path, monkeypatch):
    monkeypatch.setattr(report_data, "MOST_VALUES", 4 * 3 * 5)
    folder = build_run(tmp_path / "run", layers=4, candidates=3, steps=30, stages=("search",))
    run = Run.load(folder)
    data, sentence = report_data.embedded_search(run, palette_of(run))
    assert data["searches"][0]["steps"] == [0, 70, 140, 220, 290]
    assert "carries 5 of the 30 recorded steps" in sentence and sentence in warnings_of(run, sentence)


def test_pictures_that_are_newer_than_the_data_are_taken_from_their_files(tmp_path):
    folder = build_run(tmp_path / "run", layers=2, candidates=2, steps=3, retrain_seeds=1)
    draw_all(folder)
    marked = (folder / "plots" / "losses.svg").read_bytes() + b"<!-- drawn before -->"
    (folder / "plots" / "losses.svg").write_bytes(marked)
    assert base64.b64encode(marked).decode() in write_report(folder).read_text()
    later = os.stat(folder / "plots" / "losses.svg").st_mtime_ns + 10**9
    os.utime(folder / "metrics.jsonl", ns=(later, later))
    assert base64.b64encode(marked).decode() not in write_report(folder).read_text()


def test_warnings_name_what_weakens_the_evidence(tmp_path):
    folder = build_run(tmp_path / "run", layers=4, candidates=3, steps=4, retrain_seeds=1)
    content = read_json(folder / "probabilities.json")
    place = content["candidates"].index("identity")
    content["probabilities"][-1] = [[1.0 if k == place else 0.0 for k in range(3)]] * 4
    content["verdict"] = {"converged": False, "reasons": ["too few steps"]}
    write_json(folder / "probabilities.json", content)
    (folder / "metrics.jsonl").write_text('{"step": 1, "loss": null}\n{"step": 2, "loss": 3.0}\n')
    said = " ".join(warnings_of(Run.load(folder), None))
    for part in (
        "not converged: too few steps",
        "one seed, so the noise of training",
        "identity is the most probable candidate of 100%",
        "1 of 2 logged training losses",
        "One search seed",
    ):
        assert part in said


def test_timings_follow_the_logged_speed(folder):
    told = dict(timings(Run.load(folder)))
    assert told["search"] == pytest.approx(90 * 128 * 16 / 21000)
    assert told["retraining par, 2 seeds"] == pytest.approx(2 * 200 * 128 * 16 / 30000)


def test_figures_are_written_for_readers():
    assert [number(value) for value in (1.23456, 1234567.0, float("nan"), None)] == ["1.2346", "1,234,567", "–", "–"]
    assert [duration(seconds) for seconds in (12.4, 200, 3725)] == ["12 s", "3 min 20 s", "1 h 02 min"]
    assert readable([0.58, 0.75]) == "0.58 to 0.75" and readable(True) == "yes" and readable(None) == "–"
    assert readable([{"layers": [0, 3], "candidate": "self_attention"}]) == "layers 0 to 3, candidate self_attention"


def test_figures_on_enwik8_say_that_newlines_count(tmp_path):
    folder = build_run(tmp_path / "run", layers=4, candidates=3, steps=4)
    assert "newlines" not in str(facts(Run.load(folder)))
    write_json(folder / "data.json", {**read_json(folder / "data.json"), "name": "enwik8"})
    assert sum("Transformer-XL drop the newlines" in text for _, text in facts(Run.load(folder))) == 1
    assert "newlines" in read_page(folder)[1].text
