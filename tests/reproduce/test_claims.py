"""Verdicts on made-up results, for which they are known by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from opencrate.measures import DEFINITIONS
from opencrate.reproduce.claims import Difference, _range, claims, pairs_of
from opencrate.reproduce.plan import Plan
from opencrate.reproduce.results import Sample
from opencrate.reproduce.scales import plan_for

from .filling import filled, layers, row_of

SMALL, FULL = plan_for("small", {}), plan_for("full", {})
SEEDS = (
    replace(run, recipe=replace(run.recipe, seed=seed))
    for seed in range(3)
    for run in SMALL.runs
    if "table2" in run.parts and run.recipe.seed == 0
)
REPEATED = Plan("small", tuple({run.key: run for run in (*SMALL.runs, *SEEDS)}.values()), 8)  # three of every setting
BASE = (80.0, 80.2, 79.8)  # mean 80, deviation 0.2: its mean is known to 0.2/√3 = 0.115
HOLDS, PART, NOT, OPEN, UNTESTED = "holds", "in part", "does not hold", "open", "not run"
FLAT = [100.0, 100.0, 100.0, 100.0]


def judged(folder, text, accuracies=None, looks=None, plan=SMALL):
    """The claim that begins so, for accuracies by (model, variant) over seeds and looks by model over seeds."""

    def row(run):
        if run.task != plan.runs[0].task:
            return None
        values = (accuracies or {}).get((run.model, run.variant), ())
        seen = (looks or {}).get(run.model, ()) if run.variant == "light" else ()
        seed = run.recipe.seed
        if seed >= max(len(values), len(seen)):
            return None
        return row_of(run, plan, values[seed] if values else 50.0, looks=seen[seed] if seen else {})

    return next(claim for claim in claims(plan, filled(plan, folder, row)) if claim.text.startswith(text))


def test_a_difference_has_the_standard_error_of_two_means():
    one, other = (80.0, 81.0, 83.0), (78.0, 78.5)
    difference = Difference.of(Sample(one), Sample(other))
    assert difference.mean == pytest.approx(np.mean(one) - np.mean(other), rel=1e-12)
    variances = [np.var(values, ddof=1) / len(values) for values in (one, other)]
    assert difference.error == pytest.approx(math.sqrt(sum(variances)), rel=1e-12)
    assert str(difference) == "+3.08 ± 0.92"
    assert str(Difference.of(Sample(other), Sample(one))) == "−3.08 ± 0.92"
    assert str(Difference.of(Sample((1.0,)), Sample(one))) == "−80.33, one seed"


def test_one_seed_is_as_sure_as_a_share_of_its_pictures():
    """90 of 100 right answers have the standard deviation √(0.9 · 0.1 / 100), as SciPy's binomial has it."""
    alone = Sample((90.0,), pictures=100)
    assert alone.error == pytest.approx(stats.binom(100, 0.9).std(), rel=1e-12)
    assert str(Difference.of(alone, Sample((80.0,), pictures=100))) == "+10.00 ± 5.00, one seed"
    assert Difference.of(alone, Sample((80.0,), pictures=100)).sign == 0
    assert Difference.of(Sample((90.0,), 10_000), Sample((80.0,), 10_000)).sign == 1
    assert Sample((90.0, 91.0), pictures=100).error == pytest.approx(0.5, rel=1e-12)  # over seeds, where there are some
    assert Difference.of(Sample((90.0,)), Sample((80.0,), 100)).sign == 0  # of nobody knows how many


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 5, 10])
def test_a_difference_is_clear_beyond_its_95_per_cent(degrees):
    """By Student's t, as SciPy has it, to the two digits of a printed table."""
    quantile = stats.t.ppf(0.975, degrees)
    for mean in (1.0, -1.0):
        assert Difference(mean, 0.995 / quantile, degrees).sign == mean
        assert Difference(mean, 1.005 / quantile, degrees).sign == 0


def test_nothing_is_testable_without_runs(tmp_path):
    *found, last = claims(SMALL, filled(SMALL, tmp_path, lambda run: None))
    assert last.verdict == "not testable here"
    assert {(claim.verdict, claim.evidence) for claim in found} == {(UNTESTED, "no run for it is done")}
    assert len({claim.text for claim in found}) == len(found) == 14


COSTS = [
    ("a step of η = 0.5 costs accuracy", "eta_0.5"),
    ("tied MSSA costs accuracy", "mssa_tied"),
    ("the proximal majorisation step costs accuracy", "prox_mm"),
]


@pytest.mark.parametrize(("text", "variant"), COSTS)
@pytest.mark.parametrize(
    ("values", "verdict", "evidence"),
    [
        ((75.0, 75.2, 74.8), HOLDS, "75.00 ± 0.20 against 80.00 ± 0.20 (−5.00 ± 0.16)"),
        ((85.0, 85.2, 84.8), NOT, "85.00 ± 0.20 against 80.00 ± 0.20 (+5.00 ± 0.16)"),
        ((79.6, 79.8, 79.4), OPEN, "79.60 ± 0.20 against 80.00 ± 0.20 (−0.40 ± 0.16)"),  # 2.78 times 0.163 is 0.454
        ((79.5, 79.7, 79.3), HOLDS, "79.50 ± 0.20 against 80.00 ± 0.20 (−0.50 ± 0.16)"),
        ((80.3, 80.5, 80.1), OPEN, "80.30 ± 0.20 against 80.00 ± 0.20 (+0.30 ± 0.16)"),
    ],
)
def test_what_costs_accuracy(tmp_path, text, variant, values, verdict, evidence):
    claim = judged(tmp_path, text, {("CRATE-T", "light"): BASE, ("CRATE-T", variant): values})
    assert (claim.text, claim.verdict, claim.evidence) == (text, verdict, evidence)


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize(("tied", "verdict"), [(70.0, HOLDS), (79.4, OPEN), (90.0, NOT)])
def test_one_seed_decides_what_its_pictures_can(tmp_path, seeds, tied, verdict):
    """10,000 of them: the standard error is 0.4 or so, and for two networks 0.6."""
    claim = judged(tmp_path, "tied", {("CRATE-T", "light"): BASE[:seeds], ("CRATE-T", "mssa_tied"): (tied,)})
    assert claim.verdict == verdict
    assert claim.evidence.endswith(", one seed)")


def test_another_networks_accuracy_is_no_evidence(tmp_path):
    claim = judged(tmp_path, "tied", {("CRATE-S", "light"): BASE, ("CRATE-T", "mssa_tied"): BASE})
    assert claim.verdict == UNTESTED


@pytest.mark.parametrize("variant", ["light", "strong"])
@pytest.mark.parametrize(
    ("vit", "verdict"),
    [(78.0, HOLDS), (80.5, HOLDS), (81.0, OPEN), (81.4, OPEN), (82.0, NOT)],
    ids=["ahead", "half a point", "a point", "hardly more", "two points"],
)
def test_beside_a_vit_of_its_size(tmp_path, variant, vit, verdict):
    words = {"light": "the paper's settings", "strong": "our strong recipe"}[variant]
    accuracies = {("CRATE-T", variant): BASE, ("ViT-T", variant): (vit, vit + 0.2, vit - 0.2)}
    start = "a CRATE comes close to a ViT of its size (a point behind at most), with "
    claim = judged(tmp_path, start + words, accuracies)
    assert claim.evidence.endswith(f"; 1 of {3 if variant == 'light' else 2} sizes have run")
    assert claim.verdict == verdict
    assert claim.evidence.startswith(f"CRATE-T 80.00 ± 0.20, ViT-T {vit:.2f} ± 0.20 (")


def test_one_size_that_is_behind_is_enough(tmp_path):
    accuracies = {(model, "light"): BASE for pair in pairs_of(SMALL) for model in pair}
    accuracies["ViT-T+", "light"] = (84.0, 84.2, 83.8)
    claim = judged(tmp_path, "a CRATE comes close", accuracies)
    assert claim.verdict == NOT
    assert claim.evidence.count(";") == 2


@pytest.mark.parametrize(
    ("means", "verdict"),
    [((80, 82, 84), HOLDS), ((80, 84, 82), NOT), ((80, 80.1, 84), OPEN)],
    ids=["rising", "falling at the end", "within noise"],
)
def test_larger_networks(tmp_path, means, verdict):
    sizes = zip(("CRATE-T", "CRATE-S", "CRATE-B"), means, strict=True)
    accuracies = {(model, "light"): (mean, mean + 0.2, mean - 0.2) for model, mean in sizes}
    assert judged(tmp_path, "a larger CRATE", accuracies).verdict == verdict


@pytest.mark.parametrize(("worst", "verdict"), [(79.5, HOLDS), (79.0, OPEN), (78.5, OPEN), (78.0, NOT)])
def test_other_settings(tmp_path, worst, verdict):
    """η = 0.5 is a claim of its own; and all others must have run."""
    variants = dict.fromkeys(run.variant for run in SMALL.runs if "table2" in run.parts)
    accuracies = {("CRATE-T", variant): (81.0, 81.2, 80.8) for variant in variants}
    accuracies |= {("CRATE-T", "light"): BASE, ("CRATE-T", "eta_0.5"): (60.0,) * 3}
    accuracies["CRATE-T", "wd_1.0"] = (worst, worst + 0.2, worst - 0.2)
    claim = judged(tmp_path, "other settings", accuracies, plan=REPEATED)
    assert claim.verdict == verdict
    sure = 9 if verdict == HOLDS else 8
    told = f"the worst is weight decay 1.0 (0.5): −{80 - worst:.2f} ± 0.16; {sure} of 9 are sure to"
    assert claim.evidence == told
    del accuracies["CRATE-T", "lam_0.02"]
    fewer = judged(tmp_path / "fewer", "other settings", accuracies, plan=REPEATED)
    assert fewer.verdict == (NOT if verdict == NOT else OPEN)
    assert fewer.evidence == told.replace(f"{sure} of", f"{sure - 1} of") + ", 8 have run"


def test_every_setting_is_judged_by_its_own_interval(tmp_path):
    """The second worst is less sure than the worst."""
    variants = dict.fromkeys(run.variant for run in SMALL.runs if "table2" in run.parts)
    accuracies = {("CRATE-T", variant): (81.0, 81.2, 80.8) for variant in variants}
    accuracies |= {("CRATE-T", "light"): BASE, ("CRATE-T", "wd_1.0"): (79.4, 79.5, 79.3)}
    assert judged(tmp_path / "a", "other settings", accuracies, plan=REPEATED).verdict == HOLDS
    accuracies["CRATE-T", "wd_0.05"] = (79.5, 81.0, 78.0)
    assert judged(tmp_path / "b", "other settings", accuracies, plan=REPEATED).verdict == OPEN


def test_what_the_papers_own_numbers_say(tmp_path):
    """Of one seed each, on 50,000 pictures."""
    sizes = {"CRATE-T": 66.7, "CRATE-S": 69.2, "CRATE-B": 70.8, "CRATE-L": 71.3, "ViT-T": 71.5, "ViT-S": 72.4}

    def row(run):
        if run.start is not None:
            return None
        return row_of(run, FULL, sizes[run.model] if run.variant == "light" else 70.0)

    found = [claim for claim in claims(FULL, filled(FULL, tmp_path, row)) if claim.verdict != UNTESTED]
    assert [(claim.text.partition(" (")[0], claim.verdict) for claim in found] == [
        ("a CRATE comes close to a ViT of its size", NOT),
        ("a larger CRATE is more accurate, with the same settings", OPEN),  # 70.8 and 71.3
        ("a step of η = 0.5 costs accuracy", HOLDS),
        ("other settings in the table cost little", OPEN),
        ("tied MSSA costs accuracy", HOLDS),
        ("the proximal majorisation step costs accuracy", HOLDS),
    ]
    beside = found[0].evidence
    assert beside == (
        "CRATE-T 66.70, ViT-T 71.50 (−4.80 ± 0.29, one seed); CRATE-B 70.80, ViT-S 72.40 (−1.60 ± 0.29, one seed)"
    )


def test_every_size_of_the_full_plan_is_compared(tmp_path):
    """Also the large one, though it has no ViT of its size."""
    accuracies = {(f"CRATE-{size}", "light"): (60.0,) for size in "TSBL"}
    assert judged(tmp_path, "a larger CRATE", accuracies, plan=FULL).evidence.count(";") == 2


def seen(*found):
    """Of CRATE-T, seed after seed."""
    return {"CRATE-T": [{"fig3": layers_of_one} for layers_of_one in found]}


RATE, SPARSITY, LAST = "R^c falls", "sparsity improves", "the last layer"
TRAINING, THINNING = "training is what makes R^c", "training is what makes it sparse"
HALVED = [100.0, 90.0, 70.0, 50.0]


@pytest.mark.parametrize(
    ("found", "verdict", "evidence"),
    [
        (layers(HALVED, FLAT), HOLDS, "by paper −50 % from the first to the last layer, −44 % from the second"),
        (layers(HALVED, FLAT, definitions=["unit"]), PART, "by unit −50 % from the first to the last layer"),
        (layers([100.0, 50.0, 48.0, 49.0], FLAT), NOT, "−51 % from the first to the last layer, −2 % from the second"),
        (layers([100.0, 96.0, 95.0, 92.0], FLAT), NOT, "−8 %"),
        (layers([100.0, 50.0, 90.0, 130.0], FLAT), NOT, "+30 %"),
        (layers(FLAT, HALVED), NOT, "+0 %"),
    ],
    ids=["falls", "by one definition", "in one layer", "hardly", "rises", "untrained only"],
)
def test_rates_by_layer(tmp_path, found, verdict, evidence):
    claim = judged(tmp_path, RATE, looks=seen(found))
    assert claim.verdict == verdict
    assert evidence in claim.evidence
    assert [name in claim.evidence for name in DEFINITIONS] == [True] * 3


@pytest.mark.parametrize(
    ("falls", "told"),
    [((0.28, 0.31), "−28 … −31 %"), ((-0.04, -0.05), "+4 … +5 %"), ((0.29, -0.12), "+12 … −29 %"), ((0.2,), "−20 %")],
)
def test_a_range_ends_with_the_larger_change(falls, told):
    assert _range(list(falls)) == _range(list(reversed(falls))) == told


def test_every_seed_and_size_counts(tmp_path):
    falls, flat = layers(HALVED, FLAT), layers(FLAT, FLAT)
    assert judged(tmp_path / "a", RATE, looks=seen(falls, falls, falls)).verdict == HOLDS
    claim = judged(tmp_path / "b", RATE, looks=seen(falls, flat, falls))
    assert (claim.verdict, "+0 … −50 %" in claim.evidence) == (NOT, True)
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


def test_what_is_told_of_sparsity(tmp_path):
    looks = seen(layers(FLAT, FLAT, [0.5, 0.4, 0.2, 0.35]), layers(FLAT, FLAT, [0.5, 0.2, 0.35, 0.4]))
    assert judged(tmp_path, SPARSITY, looks=looks).evidence == (
        "CRATE-T (2 seeds): from the first layer to the lowest of the second half −30 … −60 %, the lowest of all at"
        " layer 2, 3"
    )
    claim = judged(tmp_path, LAST, looks=looks)
    assert claim.evidence == (
        "CRATE-T (2 seeds): so in 1 of 2: the fraction's rise there, and the largest before it: +0.150 (0.000), +0.050"
        " (0.150)"
    )
    assert claim.verdict == PART
    falling = seen(layers(FLAT, FLAT, [0.5, 0.4, 0.2, 0.1]))
    assert judged(tmp_path / "falling", LAST, looks=falling).evidence.endswith("−0.100 (0.000)")


def test_the_strong_recipes_networks_are_told_of_too(tmp_path):
    def row(run):
        found = layers(HALVED if run.variant == "light" else FLAT, FLAT)
        opened = run.recipe.seed == 0 and run.variant in ("light", "strong") and run.model in ("CRATE-T", "CRATE-B")
        return row_of(run, SMALL, 80.0, looks={"fig3": found}) if opened else None

    light, strong = (
        claim for claim in claims(SMALL, filled(SMALL, tmp_path, row)) if claim.text.startswith("R^c falls with depth")
    )
    assert (light.verdict, strong.verdict) == (HOLDS, NOT)
    assert strong.text.endswith(", with our strong recipe")
    assert strong.evidence.startswith("CRATE-T (1 seed), CRATE-B (1 seed): by paper +0 %")


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        ([layers(HALVED, FLAT)], HOLDS),
        ([layers(HALVED, HALVED)], NOT),
        ([layers(HALVED, [100.0, 90.0, 80.0, 55.0])], NOT),
        ([layers(HALVED, FLAT, definitions=["paper", "unit"])], PART),
        ([layers(HALVED, FLAT), layers(HALVED, [100.0, 90.0, 80.0, 55.0])], NOT),
    ],
    ids=["by training", "by design", "hardly by training", "by two definitions", "in one seed only"],
)
def test_what_training_does(tmp_path, found, verdict):
    assert judged(tmp_path, TRAINING, looks=seen(*found)).verdict == verdict


@pytest.mark.parametrize(
    ("untrained", "verdict"),
    [([0.5] * 4, HOLDS), ([0.5, 0.4, 0.35, 0.33], PART), ([0.5, 0.4, 0.3, 0.2], NOT)],
    ids=["by training", "hardly", "by design"],
)
def test_what_training_does_to_sparsity(tmp_path, untrained, verdict):
    found = layers(FLAT, FLAT, [0.5, 0.4, 0.3, 0.4])
    found["unit"]["untrained"]["nonzero"] = untrained
    assert judged(tmp_path, THINNING, looks=seen(found)).verdict == verdict


def test_numbers_that_are_none_are_no_evidence(tmp_path):
    found = layers(HALVED, FLAT)
    found["paper"]["validation"]["Rc"][2] = None
    assert judged(tmp_path, RATE, looks=seen(found)).verdict == UNTESTED


@pytest.mark.parametrize(
    ("values", "verdict"), [((0.3, 0.2, 0.1), HOLDS), ((0.2, 0.19, 0.19), OPEN), ((0.1, 0.2, 0.3), NOT)]
)
def test_incoherence(tmp_path, values, verdict):
    looks = {"CRATE-T": [{"subspaces": {"figure": "subspaces.png", "coherence": list(values), "untrained": 0.0412}}]}
    claim = judged(tmp_path, "subspaces", looks=looks)
    assert claim.verdict == verdict
    first, second = values[0], (values[1] + values[2]) / 2
    assert f"{first:.3f} in the first half of the layers, {second:.3f} in the second; untrained 0.041" in claim.evidence
