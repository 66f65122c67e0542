"""One look for a block: told apart by people with and without colour vision, in grey, and in every variant."""

import itertools

import numpy as np
import pytest

from nas.pictures.palette import COLORS, INK, OTHER_COLORS, Palette, block_of, ink_on, luminance, mix, shorten
from supernet.blocks import BLOCKS

# Severe protanomaly, deuteranomaly, tritanomaly: Machado, Oliveira, Fernandes 2009, table 1, on linear RGB.
SIGHTS = {
    "normal": np.eye(3),
    "protan": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deutan": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritan": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)


def lab(color: str, sight: str = "normal") -> np.ndarray:
    """CIE L*a*b* of a colour as it is seen."""
    parts = np.array([int(color[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    xyz = TO_XYZ @ np.clip(SIGHTS[sight] @ linear, 0, 1) / np.array([0.95047, 1, 1.08883])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("sight", SIGHTS)
def test_every_two_blocks_differ_for_every_kind_of_sight(sight):
    seen = {block: lab(color, sight) for block, color in COLORS.items()}
    for one, other in itertools.combinations(seen, 2):
        assert np.linalg.norm(seen[one] - seen[other]) >= 20, (one, other)


def test_every_two_blocks_differ_in_grey():
    lightness = sorted(lab(color)[0] for color in COLORS.values())
    assert np.diff(lightness).min() >= 5


def test_letters_on_colours_can_be_read():
    for color in [*COLORS.values(), *OTHER_COLORS]:
        light, ink = luminance(color), luminance(ink_on(color))
        assert (max(light, ink) + 0.05) / (min(light, ink) + 0.05) >= 4.5, color


def test_every_built_in_block_has_a_look_and_its_own_letter():
    assert set(BLOCKS) == set(COLORS)
    palette = Palette(reversed(BLOCKS))
    assert palette.labels == list(BLOCKS)
    assert [style.tag for style in palette] == [spec.letter for spec in BLOCKS.values()]


def test_the_order_of_the_labels_does_not_matter():
    labels = ["identity", "feed_forward[d_inner=64]", "self_attention[heads=2]", "feed_forward", "self_attention"]
    there, back = Palette(labels), Palette(labels[::-1])
    assert there.labels == back.labels == sorted(labels, key=there.labels.index)
    assert all(there[label] == back[label] for label in labels)


def test_variants_share_the_hue_and_differ_in_shade_hatch_and_tag():
    palette = Palette(["self_attention", "self_attention[heads=2]", "self_attention[heads=8]"])
    looks = [palette[label] for label in palette.labels]
    assert [style.tag for style in looks] == ["s", "s2", "s3"]
    assert len({style.color for style in looks}) == len({style.hatch for style in looks}) == 3
    assert Palette(["self_attention[heads=2]"])["self_attention[heads=2]"] == looks[1]


def test_a_part_of_a_palette_keeps_its_looks():
    palette = Palette(["identity", "dense_synthesizer", "dense_synthesizer[heads=2]"])
    part = palette.only(["dense_synthesizer[heads=2]"])
    assert part.labels == ["dense_synthesizer[heads=2]"]
    assert list(part) == [palette["dense_synthesizer[heads=2]"]]


def test_a_users_block_gets_a_colour_and_the_letter_of_its_pattern():
    palette = Palette(["self_attention", "my_mixer", "my_gate"], {"my_mixer": "t"})
    assert palette["my_mixer"].tag == "t" and palette["my_gate"].tag == "?"
    assert len({palette[label].color for label in palette.labels}) == 3
    assert palette["unheard_of[size=3]"].block == "unheard_of"


def test_long_labels_keep_their_options():
    assert shorten("feed_forward") == "feed_forward"
    assert shorten("factorized_random_synthesizer[rank=4]") == "factorized_random[rank=4]"
    long = "mixture_synthesizer[parts=self_attention+dense+random+factorized_dense]"
    assert len(shorten(long)) <= 34 and shorten(long).endswith("_dense]") and block_of(long) == "mixture_synthesizer"


def test_mix_goes_from_one_colour_to_the_other():
    assert mix("#102030", "#FFFFFF", 0) == "#102030"
    assert mix("#102030", INK, 1) == INK
