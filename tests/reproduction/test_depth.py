"""What is said of layers, on made-up curves."""

from dataclasses import replace

import pytest

from opencrate.measures import DEFINITIONS
from reproduction.claims import claims
from reproduction.depth import CHANGE_COLUMNS, DEPTH_CLAIMS, LayerCurves, _percent, change_rows

from .filling import HOLDS, NOT, PART, SMALL, UNTESTED, filled, judged, layers, row_of

FLAT = [100.0, 100.0, 100.0, 100.0]


def seen(*found):
    """Of CRATE-T, seed after seed."""
    return {"CRATE-T": [{"fig3": layers_of_one} for layers_of_one in found]}


RATE, SPARSITY, LAST = "R^c falls", "sparsity improves", "the last layer"
TRAINING, THINNING = "training is what makes R^c", "training is what makes it sparse"
HALVED = [100.0, 90.0, 70.0, 50.0]


@pytest.mark.parametrize(
    ("found", "verdict", "evidence"),
    [
        (layers(HALVED, FLAT), HOLDS, "by paper −50 % (−44 %)"),
        (layers(HALVED, FLAT, definitions=["unit"]), PART, "by unit −50 % (−44 %)"),
        (layers([100.0, 50.0, 48.0, 49.0], FLAT), NOT, "by unit −51 % (−2 %)"),
        (layers([100.0, 96.0, 95.0, 92.0], FLAT), NOT, "−8 %"),
        (layers([100.0, 50.0, 90.0, 130.0], FLAT), NOT, "+30 %"),
        (layers([100.0, 200.0, 150.0, 95.0], FLAT), NOT, "by unit −5 % (−52 %)"),
        (layers([100.0, 100.0, 100.0, 89.0], FLAT), HOLDS, "by unit −11 % (−11 %)"),
        (layers([100.0, 100.0, 100.0, 91.0], FLAT), NOT, "by unit −9 % (−9 %)"),
        (layers(FLAT, HALVED), NOT, "+0 %"),
    ],
    ids=[
        "falls",
        "by one definition",
        "in one layer",
        "hardly",
        "rises",
        "at first",
        "enough",
        "less",
        "untrained only",
    ],
)
def test_rates_by_layer(tmp_path, found, verdict, evidence):
    claim = judged(tmp_path, RATE, looks=seen(found))
    assert claim.verdict == verdict
    assert evidence in claim.evidence
    assert [name in claim.evidence for name in DEFINITIONS] == [True] * 3
    assert claim.evidence.startswith("1 network, from the first layer to the last (from the second): by ")


@pytest.mark.parametrize(
    ("falls", "told"),
    [
        ((0.28, 0.31), "−28 … −31 %"),
        ((-0.04, -0.05), "+4 … +5 %"),
        ((-0.12, 0.29, 0.1), "−29 … +12 %"),
        ((0.0, 0.5), "−50 … +0 %"),
        ((0.2, 0.199), "−20 %"),
    ],
)
def test_a_range_ends_with_the_larger_change_or_with_the_rise(falls, told):
    assert _percent(list(falls)) == _percent(list(reversed(falls))) == told


def test_every_seed_and_size_counts(tmp_path):
    falls, flat = layers(HALVED, FLAT), layers(FLAT, FLAT)
    assert judged(tmp_path / "a", RATE, looks=seen(falls, falls, falls)).verdict == HOLDS
    claim = judged(tmp_path / "b", RATE, looks=seen(falls, flat, falls))
    assert (claim.verdict, "−50 … +0 %" in claim.evidence) == (NOT, True)
    assert judged(tmp_path / "c", RATE, looks=seen(falls) | {"CRATE-B": [{"fig3": flat}]}).verdict == NOT


@pytest.mark.parametrize(
    ("nonzero", "sparser", "last"),
    [
        ([0.5, 0.4, 0.3, 0.2, 0.35], HOLDS, HOLDS),
        ([0.5, 0.48, 0.47, 0.46, 0.5], NOT, HOLDS),
        ([0.5, 0.4, 0.3, 0.2, 0.21], HOLDS, NOT),
        ([0.5, 0.4, 0.3, 0.2, 0.1], HOLDS, NOT),
        ([0.5, 0.3, 0.4, 0.2, 0.35], HOLDS, HOLDS),
        ([0.5, 0.3, 0.45, 0.2, 0.3], HOLDS, NOT),
        ([0.5, 0.3, 0.6, 0.7, 0.8], NOT, NOT),
    ],
    ids=["as in the paper", "hardly", "a small rise", "no rise", "a smaller before", "a larger one", "only at first"],
)
def test_sparsity_by_layer(tmp_path, nonzero, sparser, last):
    looks = seen(layers([100.0] * 5, [100.0] * 5, nonzero, ["unit"]))
    assert judged(tmp_path, SPARSITY, looks=looks).verdict == sparser
    assert judged(tmp_path, LAST, looks=looks).verdict == last


def test_one_network_that_does_not_thin_is_enough(tmp_path):
    looks = seen(layers(FLAT, FLAT, [0.5, 0.4, 0.2, 0.1]), layers(FLAT, FLAT, [0.5, 0.5, 0.5, 0.48]))
    assert judged(tmp_path, SPARSITY, looks=looks).verdict == NOT


@pytest.mark.parametrize(("last", "verdict"), [(0.221, HOLDS), (0.219, NOT)])
def test_a_rise_of_the_last_layer_is_one_beyond_two_per_cent_of_the_entries(tmp_path, last, verdict):
    looks = seen(layers(FLAT, FLAT, [0.5, 0.4, 0.2, last]))
    assert judged(tmp_path, LAST, looks=looks).verdict == verdict


def test_a_network_of_two_layers_is_held_to_both(tmp_path):
    """From the second to the last is no way; the smoke scale's are such."""
    found = {name: layers([100.0, 50.0], [100.0, 100.0], [0.5, 0.4])[name] for name in DEFINITIONS}
    claim = judged(tmp_path, RATE, looks=seen(found))
    assert (claim.verdict, claim.evidence.rpartition("by ")[2]) == (HOLDS, "unit −50 % (−50 %)")


def test_a_network_that_has_nothing_left_is_told_of(tmp_path):
    """A collapsed one: its second layer leaves no entry, from which nothing can fall."""
    networks = [LayerCurves("CRATE-B", layers([100.0, 0.0, 0.0, 0.0], FLAT, [0.5, 0.0, 0.0, 0.0]))]
    assert [row[1:3] for row in change_rows(networks)] == [["−100 %", "+0 %"]] * 4
    assert judged(tmp_path, RATE, looks=seen(networks[0].curves)).verdict == NOT
    begins = layers([0.0, 0.0, 0.0, 0.0], FLAT)
    assert judged(tmp_path / "begins", RATE, looks=seen(begins)).verdict == UNTESTED


def test_sizes_are_in_the_plans_order(tmp_path):
    """Also where the first seed of the first has failed."""
    looks = {"CRATE-T": [{}, {"fig3": layers(HALVED, FLAT)}], "CRATE-S": [{"fig3": layers(HALVED, FLAT)}]}
    evidence = judged(tmp_path, LAST, looks=looks).evidence
    assert evidence.index("CRATE-T") < evidence.index("CRATE-S")


def test_what_is_told_of_sparsity(tmp_path):
    looks = seen(layers(FLAT, FLAT, [0.5, 0.4, 0.2, 0.35]), layers(FLAT, FLAT, [0.5, 0.2, 0.35, 0.4]))
    looks["CRATE-S"] = [{"fig3": layers(FLAT, FLAT, [0.5, 0.4, 0.2, 0.1])}]
    assert judged(tmp_path, SPARSITY, looks=looks).evidence == (
        "3 networks, from the first layer to the lowest of the second half −30 … −80 % (untrained +0 %), to the last"
        " −20 … −80 %"
    )
    claim = judged(tmp_path, LAST, looks=looks)  # size by size, though the plan goes seed by seed
    assert claim.evidence == (
        "3 networks, so in 1 of 3; its rise, and the largest before it: CRATE-T +0.150 (0.000), +0.050 (0.150);"
        " CRATE-S −0.100 (0.000)"
    )
    assert claim.verdict == PART


@pytest.mark.parametrize(
    ("variant", "words"), [("strong", "our strong recipe"), ("mixed", "our strong recipe and mixing")]
)
def test_the_strong_recipes_networks_are_told_of_too(tmp_path, variant, words):
    def row(run):
        found = layers(HALVED if run.variant == "light" else FLAT, FLAT)
        opened = run.recipe.seed == 0 and run.variant in ("light", variant) and run.model == "CRATE-T"
        return row_of(run, SMALL, 80.0, looks={"fig3": found}) if opened else None

    found = {claim.text: claim for claim in claims(SMALL, filled(SMALL, tmp_path, row))}
    for text in DEPTH_CLAIMS:
        assert {text, f"{text}, with {words}"} <= found.keys()
    light, strong = (found[f"R^c falls with depth{of}"] for of in ("", f", with {words}"))
    assert (light.verdict, strong.verdict) == (HOLDS, NOT)
    assert strong.evidence.endswith(
        "(from the second): by paper +0 % (+0 %); by official +0 % (+0 %); by unit +0 % (+0 %)"
    )


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        ([layers(HALVED, FLAT)], HOLDS),
        ([layers([100.0, 110.0, 115.0, 120.0], [100.0, 120.0, 130.0, 140.0])], NOT),
        ([layers([100.0, 99.0, 98.0, 97.0], [100.0, 120.0, 130.0, 140.0])], NOT),
        ([layers(HALVED, HALVED)], NOT),
        ([layers(HALVED, [100.0, 90.0, 80.0, 55.0])], NOT),
        ([layers(HALVED, FLAT, definitions=["paper", "unit"])], PART),
        ([layers(HALVED, FLAT), layers(HALVED, [100.0, 90.0, 80.0, 55.0])], NOT),
    ],
    ids=[
        "by training",
        "a smaller rise",
        "hardly a fall",
        "by design",
        "hardly by training",
        "by two definitions",
        "in one seed only",
    ],
)
def test_what_training_does(tmp_path, found, verdict):
    assert judged(tmp_path, TRAINING, looks=seen(*found)).verdict == verdict


@pytest.mark.parametrize(
    ("trained", "untrained", "verdict"),
    [
        ([0.5, 0.4, 0.3, 0.4], [0.5] * 4, HOLDS),
        (
            [0.5, 0.4, 0.2, 0.4],
            [0.5, 0.4, 0.35, 0.33],
            PART,
        ),  # 60 against 34 % to the lowest, 20 against 34 to the last
        ([0.5, 0.4, 0.3, 0.3], [0.5, 0.4, 0.35, 0.33], NOT),
        ([0.5, 0.4, 0.3, 0.4], [0.5, 0.4, 0.3, 0.2], NOT),
    ],
    ids=["by training", "to the lowest", "hardly", "by design"],
)
def test_what_training_does_to_sparsity(tmp_path, trained, untrained, verdict):
    assert judged(tmp_path, THINNING, looks=seen(thinned(trained, untrained))).verdict == verdict


def thinned(trained, untrained):
    found = layers(FLAT, FLAT, trained)
    found["unit"]["untrained"]["nonzero"] = untrained
    return found


def test_a_network_is_held_to_the_untrained_one_of_its_size(tmp_path):
    """Not to the sparsest of all sizes: CRATE-T falls by 40 and 20 %, and an untrained CRATE-S by 40, too."""
    small, tiny = thinned([0.5, 0.4, 0.1, 0.1], [0.5, 0.4, 0.3, 0.3]), thinned([0.5, 0.4, 0.3, 0.4], [0.5] * 4)
    looks = seen(tiny) | {"CRATE-S": [{"fig3": small}]}
    assert judged(tmp_path, THINNING, looks=looks).verdict == HOLDS


def test_the_table_of_changes(tmp_path):
    networks = [
        LayerCurves("CRATE-T", layers([100.0, 90.0, 95.0, 50.0], [100.0, 80.0, 80.0, 88.0], [0.5, 0.4, 0.2, 0.3])),
        LayerCurves("CRATE-T", layers([100.0, 50.0, 45.0, 60.0], [100.0, 80.0, 80.0, 88.0], [0.5, 0.4, 0.2, 0.3])),
        LayerCurves("CRATE-B", layers(HALVED, FLAT, [0.5, 0.4, 0.2, 0.3], ["unit"])),
    ]
    rows = list(change_rows(networks))
    assert [row[0] for row in rows] == [
        f"{name}: {measure}"
        for name in ("CRATE-T (2 seeds)", "CRATE-B (1 seed)")
        for measure in (*(f"R^c, {definition}" for definition in DEFINITIONS), "non-zero")
    ]
    assert {len(row) for row in rows} == {1 + len(CHANGE_COLUMNS)}
    changes = ["−40 … −50 %", "−44 … +20 %", "−5 … −55 %", "2 of 3", "−12 %", "+10 %"]
    steady = replace(networks[1], curves=layers(HALVED, FLAT))
    assert next(change_rows([networks[0], steady]))[4] == "2 to 3 of 3"
    assert rows[0][1:] == rows[2][1:] == changes
    assert rows[3][1:] == ["−40 %", "−25 %", "−60 %", "2 of 3", "+0 %", "+0 %"]
    assert rows[4][1:5] == ["+0 %", "+0 %", "+0 %", "0 of 3"]
    assert rows[6][1:5] == ["−50 %", "−44 %", "−30 %", "3 of 3"]


def test_numbers_that_are_none_are_no_evidence(tmp_path):
    found = layers(HALVED, FLAT)
    found["paper"]["validation"]["Rc"][2] = None
    assert judged(tmp_path, RATE, looks=seen(found)).verdict == UNTESTED
