"""From what a person names to architectures: file, preset or pattern, on the right widths."""

from pathlib import Path

import pytest
from tiny_runs import tiny

from derive import Architecture
from nas.config.sections import DataConfig
from nas.data.corpus import load_corpus
from nas.stages.architectures import architectures_against, check_fits, check_span, resolve_architecture, unique_by_name
from supernet.errors import UserError


def test_a_pattern_gets_the_configurations_widths() -> None:
    arch = resolve_architecture("(sf)x2r", tiny(model__d_model=12, model__norm="post"), 77)
    assert arch.pattern == "sfsfr" and arch.name == "(sf)x2r"
    assert (arch.model.d_model, arch.model.max_len, arch.model.vocab_size, arch.model.norm) == (12, 16, 77, "post")


def test_presets_of_the_current_widths_take_model_and_derive() -> None:
    config = tiny(model__layers=12, derive__cut=0.5, derive__ratio=3)
    assert resolve_architecture("interleaved", config, 256).pattern == "sf" * 6
    assert (
        resolve_architecture("par", config, 256).pattern
        == Architecture.preset("par", layers=12, cut=0.5, ratio=3).pattern
    )
    assert resolve_architecture("par", tiny(model__layers=12), 256).pattern == "sfffsfffffff"  # 2/3 and 5
    assert resolve_architecture("par", config, 256).model.d_model == 8


def test_published_presets_keep_their_own_widths() -> None:
    arch = resolve_architecture("par-base", tiny(), 256)
    assert arch.model.vocab_size == 267735 and arch.model.d_model == 512 and len(arch.layers) == 32


@pytest.mark.parametrize("name", ["arch.json", "arch", "sub/arch.json", "sf"])
def test_a_file_comes_before_presets_and_patterns(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Architecture.from_pattern("iffi", name="from a file").save(tmp_path / name)
    arch = resolve_architecture(name, tiny(), 256)
    assert (arch.name, arch.pattern) == ("from a file", "iffi")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sfz", "ARCH: 'sfz' is no file, no preset and no pattern: .*'z' is no block's letter"),
        ("par-bas", "ARCH: 'par-bas' is no file, no preset and no pattern"),
        ("", "ARCH: '' is no file"),
        ("(sf", "ARCH: "),
        ("none.json", "none.json: No such file"),
        ("x/y", "x/y: No such file"),
        ("(s)x999999999", "ARCH: "),
    ],
)
def test_what_is_nothing_of_the_kind_is_named(name: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as error:
        resolve_architecture(name, tiny(), 256)
    assert "\n" not in str(error.value)


def test_against_is_named_by_its_key_and_follows_the_widths_of_what_it_stands_beside() -> None:
    with pytest.raises(UserError, match="^retrain.against: 'zz'"):
        architectures_against(tiny(retrain__against=["zz"]), 256)
    like = Architecture.from_pattern("sfsfff", {"d_model": 24, "heads": 3, "d_inner": 5, "max_len": 16})
    found = architectures_against(tiny(retrain__against=["interleaved", "ffff"]), 256, like)
    assert [arch.pattern for arch in found] == ["sfsfsf", "ffff"] and {arch.model.d_model for arch in found} == {24}


def test_equal_ones_are_kept_once_and_different_ones_of_a_name_refused() -> None:
    one, same, other = (Architecture.from_pattern(pattern, name="x") for pattern in ("sf", "sf", "ff"))
    assert unique_by_name([one, same]) == [one]
    with pytest.raises(UserError, match="two architectures are named 'x': sf and ff"):
        unique_by_name([one, other])


def test_what_cannot_be_trained_on_the_text_is_refused() -> None:
    config = tiny()
    corpus = load_corpus(config.data)
    check_fits(resolve_architecture("sf", config, 256), config, corpus)
    with pytest.raises(UserError, match="par-base: model.vocab_size is 267735.*has 256"):
        check_fits(resolve_architecture("par-base", config, 256), config, corpus)
    with pytest.raises(UserError, match="^data.seq_len: 16 exceeds max_len 8"):
        check_fits(Architecture.from_pattern("sf", {"max_len": 8}), config, corpus)
    with pytest.raises(UserError, match="this version trains causal_lm, not masked_lm"):
        check_fits(Architecture.from_pattern("sf", {"max_len": 16, "task": "masked_lm"}), config, corpus)


@pytest.mark.parametrize(
    ("pattern", "memory_len", "data", "message"),
    [
        ("sf", 4, {"order": "random"}, "^data.order: sf has a memory, and random crops"),
        ("sf", 4, {"eval_seq_len": 17}, "^data.eval_seq_len: 17 exceeds max_len 16 of sf"),
        ("sf", 0, {"eval_memory_len": 4}, "^data.eval_memory_len: sf has model.memory_len 0"),
        (
            "sdqf",
            4,
            {"eval_memory_len": 8},
            "^data.eval_memory_len: .*dense_synthesizer, factorized_random_synthesizer, whose maps .* 4;",
        ),
    ],
)
def test_what_cannot_remember_so_is_refused(
    pattern: str, memory_len: int, data: dict[str, object], message: str
) -> None:
    arch = Architecture.from_pattern(pattern, {"max_len": 16, "memory_len": memory_len, "position": "relative"})
    blocks = {layer.block for layer in arch.layers}
    check_span(blocks, arch.model, DataConfig(), arch.name)
    with pytest.raises(UserError, match=message):
        check_span(blocks, arch.model, DataConfig(**data), arch.name)
