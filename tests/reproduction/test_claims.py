"""Verdicts on made-up results, for which they are known by hand."""

from dataclasses import replace

import pytest

from opencrate.measures.nulls import MOVES
from opencrate.measures.verdicts import NULLS
from reproduction.claims import claims, pairs_of
from reproduction.plan import HALF, Plan
from reproduction.scales import plan_for

from .filling import HOLDS, NOT, OPEN, PART, SMALL, UNTESTED, filled, judged, row_of

FULL = plan_for("full", {})
SEEDS = (
    replace(run, recipe=replace(run.recipe, seed=seed))
    for seed in range(3)
    for run in SMALL.runs
    if "table2" in run.parts and run.recipe.seed == 0
)
REPEATED = Plan("small", tuple({run.key: run for run in (*SMALL.runs, *SEEDS)}.values()), 8)  # three of every setting
BASE = (80.0, 80.2, 79.8)  # mean 80, deviation 0.2: its mean is known to 0.2/√3 = 0.115
LARGER = "on CIFAR-10, with the paper's settings, a larger CRATE"


def test_nothing_is_testable_without_runs(tmp_path):
    *found, last = claims(SMALL, filled(SMALL, tmp_path, lambda run: None))
    assert last.verdict == "not testable here"
    assert {(claim.verdict, claim.evidence) for claim in found} == {(UNTESTED, "no run for it is done")}
    assert len({claim.text for claim in found}) == len(found) == 28


COSTS = [
    ("a step of η = 0.5 costs accuracy", "eta_0.5", "−4.1"),
    ("tied MSSA costs accuracy", "mssa_tied", "−7.5"),
    ("the proximal majorisation step costs accuracy", "prox_mm", "−2.2"),
]


@pytest.mark.parametrize(("text", "variant", "papers"), COSTS)
@pytest.mark.parametrize(
    ("values", "verdict", "evidence"),
    [
        ((75.0, 75.2, 74.8), HOLDS, "75.00 ± 0.20 against 80.00 ± 0.20 (−5.00 ± 0.16"),
        ((85.0, 85.2, 84.8), NOT, "85.00 ± 0.20 against 80.00 ± 0.20 (+5.00 ± 0.16"),
        ((79.6, 79.8, 79.4), OPEN, "79.60 ± 0.20 against 80.00 ± 0.20 (−0.40 ± 0.16"),  # 2.78 times 0.163 is 0.454
        ((79.5, 79.7, 79.3), HOLDS, "79.50 ± 0.20 against 80.00 ± 0.20 (−0.50 ± 0.16"),
        ((80.3, 80.5, 80.1), OPEN, "80.30 ± 0.20 against 80.00 ± 0.20 (+0.30 ± 0.16"),
    ],
)
def test_what_costs_accuracy(tmp_path, text, variant, papers, values, verdict, evidence):
    claim = judged(tmp_path, text, {("CRATE-T", "light"): BASE, ("CRATE-T", variant): values})
    assert (claim.text, claim.verdict, claim.evidence) == (text, verdict, f"{evidence}; in the paper {papers})")


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize(("tied", "verdict"), [(70.0, HOLDS), (79.4, OPEN), (90.0, NOT)])
def test_one_seed_decides_what_its_pictures_can(tmp_path, seeds, tied, verdict):
    """10,000 of them: the standard error is 0.4 or so, and for two networks 0.6."""
    claim = judged(tmp_path, "tied", {("CRATE-T", "light"): BASE[:seeds], ("CRATE-T", "mssa_tied"): (tied,)})
    assert claim.verdict == verdict
    assert claim.evidence.endswith(", one seed; in the paper −7.5)")


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
    text = f"on CIFAR-10, with {words}, a CRATE comes close to a ViT of its size (1 point behind at most)"
    theirs = "; in the paper, ImageNet, −4.8)" if variant == "light" else ")"
    runs = tuple(run for run in SMALL.runs if run.model in ("CRATE-T", "ViT-T"))
    claim = judged(tmp_path, text, beside(vit, variant), plan=Plan("small", runs, 8))
    assert claim.verdict == verdict
    told = f"CRATE-T 80.00 ± 0.20, ViT-T {vit:.2f} ± 0.20 ({80 - vit:+.2f} ± 0.16{theirs}"
    assert claim.evidence == told.replace("-4.8", "−4.8").replace("(-", "(−")
    fewer = judged(tmp_path / "fewer", text, beside(vit, variant))  # of all sizes of the plan
    if variant == "light":
        assert fewer.verdict == (NOT if verdict == NOT else OPEN)
        assert fewer.evidence == f"{claim.evidence}; 1 of 3 sizes has run"
    else:  # there is no other size
        assert fewer == claim


def beside(vit, variant):
    return {("CRATE-T", variant): BASE, ("ViT-T", variant): (vit, vit + 0.2, vit - 0.2)}


def test_half_the_learning_rate_is_told_of_and_decides_nothing(tmp_path):
    known = {("CRATE-B", "light"): 10.0, ("ViT-S", "light"): 40.0, ("CRATE-B", HALF): 60.0, ("ViT-S", HALF): 50.0}

    def row(run):
        mean = known.get((run.model, run.variant)) if run.start else None
        return None if mean is None else row_of(run, SMALL, mean)

    found = {claim.text.partition(":")[0]: claim for claim in claims(SMALL, filled(SMALL, tmp_path, row))}
    for task in ("CIFAR-10 → Fashion-MNIST", "Fashion-MNIST → CIFAR-10"):
        told = "; with ½ × the learning rate: CRATE-B 60.00, ViT-S 50.00 (+10.00 ± 0.70, one seed)"
        assert found[task].verdict == NOT
        assert found[task].evidence.endswith(told)
    assert next(iter(found.values())).evidence == "no run for it is done"  # on the first set, from scratch


def test_transfers_are_claims_of_their_own(tmp_path):
    """Each by its own pictures, and beside the paper's where it has the same."""
    known = {
        ("CRATE-T", "CIFAR-10 → Fashion-MNIST"): 85.0,
        ("ViT-T", "CIFAR-10 → Fashion-MNIST"): 88.0,
        ("CRATE-T", "Fashion-MNIST → CIFAR-10"): 50.0,
        ("ViT-T", "Fashion-MNIST → CIFAR-10"): 40.0,
    }

    def row(run):
        mean = known.get((run.model, run.task))
        return None if mean is None else row_of(run, SMALL, mean + (0.2, 0.0, -0.2)[run.recipe.seed])

    found = {claim.text.partition(":")[0]: claim for claim in claims(SMALL, filled(SMALL, tmp_path, row))}
    there, back = found["CIFAR-10 → Fashion-MNIST"], found["Fashion-MNIST → CIFAR-10"]
    assert (there.verdict, back.verdict) == (NOT, OPEN)  # of three sizes, one has run
    assert there.evidence.startswith("CRATE-T 85.00 ± 0.20, ViT-T 88.00 ± 0.20 (−3.00 ± 0.16); 1 of 3")
    assert back.evidence.startswith("CRATE-T 50.00 ± 0.20, ViT-T 40.00 ± 0.20 (+10.00 ± 0.16); 1 of 3")


def test_one_size_that_is_behind_is_enough(tmp_path):
    accuracies = {(model, "light"): BASE for pair in pairs_of(SMALL) for model in pair}
    accuracies["ViT-T+", "light"] = (84.0, 84.2, 83.8)
    claim = judged(tmp_path, "on CIFAR-10, with the paper's settings, a CRATE comes close", accuracies)
    assert claim.verdict == NOT
    assert [part.split()[0] for part in claim.evidence.split("; CRATE")] == ["CRATE-T", "-S", "-B"]


@pytest.mark.parametrize(
    ("means", "verdict"),
    [((80, 82, 84), HOLDS), ((80, 84, 82), NOT), ((80, 80.1, 84), OPEN)],
    ids=["rising", "falling at the end", "within noise"],
)
def test_larger_networks(tmp_path, means, verdict):
    sizes = zip(("CRATE-T", "CRATE-S", "CRATE-B"), means, strict=True)
    accuracies = {(model, "light"): (mean, mean + 0.2, mean - 0.2) for model, mean in sizes}
    claim = judged(tmp_path, LARGER, accuracies)
    assert claim.verdict == verdict
    assert f"CRATE-S {means[1]:.2f} ± 0.20 (+{means[1] - means[0]:.2f} ± 0.16)" in claim.evidence
    del accuracies["CRATE-B", "light"]
    fewer = judged(tmp_path / "fewer", LARGER, accuracies)
    assert (fewer.verdict, fewer.evidence.rpartition("; ")[2]) == (OPEN, "1 of 2 steps has run")


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
    told = f"the worst is weight decay 1.0 (0.5): −{80 - worst:.2f} ± 0.16; {sure} of 9 clearly cost less than 1.3"
    assert claim.evidence == told
    del accuracies["CRATE-T", "lam_0.02"]
    fewer = judged(tmp_path / "fewer", "other settings", accuracies, plan=REPEATED)
    assert fewer.verdict == (NOT if verdict == NOT else OPEN)
    assert fewer.evidence == told.replace(f"{sure} of 9", f"{sure - 1} of 8") + "; 8 of 9 have run"


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
        ("on ImageNet, with the paper's settings, a CRATE comes close to a ViT of its size", NOT),
        ("on ImageNet, with the paper's settings, a larger CRATE is more accurate", OPEN),  # 70.8 and 71.3
        ("a step of η = 0.5 costs accuracy", HOLDS),
        ("other settings in the table cost little", OPEN),
        ("tied MSSA costs accuracy", HOLDS),
        ("the proximal majorisation step costs accuracy", HOLDS),
    ]
    beside = found[0].evidence
    assert beside == (
        "CRATE-T 66.70, ViT-T 71.50 (−4.80 ± 0.29, one seed; in the paper, ImageNet, −4.8);"
        " CRATE-B 70.80, ViT-S 72.40 (−1.60 ± 0.29, one seed; in the paper, ImageNet, −1.6)"
    )


def test_every_size_of_the_full_plan_is_compared(tmp_path):
    """Also the large one, though it has no ViT of its size."""
    accuracies = {(f"CRATE-{size}", "light"): (60.0,) for size in "TSBL"}
    larger = LARGER.replace("CIFAR-10", "ImageNet")
    assert judged(tmp_path, larger, accuracies, plan=FULL).evidence.count(";") == 2


@pytest.mark.parametrize(
    ("values", "verdict"), [((0.3, 0.2, 0.1), HOLDS), ((0.2, 0.19, 0.19), OPEN), ((0.1, 0.2, 0.3), NOT)]
)
def test_incoherence(tmp_path, values, verdict):
    looks = {"CRATE-T": [{"subspaces": {"figure": "subspaces.png", "coherence": list(values), "untrained": 0.0412}}]}
    claim = judged(tmp_path, "subspaces", looks=looks)
    assert claim.verdict == verdict
    first, second = values[0], (values[1] + values[2]) / 2
    assert f"{first:.3f} in the first half of the layers, {second:.3f} in the second; untrained 0.041" in claim.evidence


@pytest.mark.parametrize(
    ("grades", "verdict", "counts"),
    [
        (("yes", "yes", "yes"), HOLDS, "yes at 3 of 3 layers; untrained 1"),
        (("no", "no", "no"), NOT, "yes at 0 of 3 layers; untrained 1"),
        (("yes", "no", "collapse"), PART, "yes at 1 of 3 layers, collapse at 1; untrained 1"),
    ],
)
def test_what_the_audit_says(tmp_path, grades, verdict, counts):
    def layers(*grades):
        return [{"word": "no", "compress": {"grade": grade}, "sparsify": {"grade": "no"}} for grade in grades]

    nulls = {half: list(known) for half, known in NULLS.items()}
    found = {"trained_layers": layers(*grades), "untrained_layers": layers("yes", "no", "no"), "nulls": nulls}
    claim = judged(tmp_path, "attention lowers R^c more", looks={"CRATE-T": [{"audit": found}]})
    assert (claim.verdict, claim.evidence) == (verdict, f"CRATE-T, seed 0: {counts}")
    claim = judged(tmp_path / "ista", "ISTA lowers its LASSO", looks={"CRATE-T": [{"audit": found}]})
    assert (claim.verdict, claim.evidence) == (NOT, "CRATE-T, seed 0: yes at 0 of 3 layers; untrained 0")


@pytest.mark.parametrize("nulls", [{}, {"nulls": {"compress": ["opposite"], "sparsify": ["zero"]}}])
def test_an_audit_with_fewer_nulls_needs_a_run(tmp_path, nulls):
    layers = [{"word": "no", "compress": {"grade": "yes"}, "sparsify": {"grade": "no"}}]
    looks = {"CRATE-T": [{"audit": {"trained_layers": layers} | nulls}]}
    claim = judged(tmp_path, "attention lowers R^c more", looks=looks)
    few = "1" if nulls else "5"
    assert claim.verdict == "open"
    assert claim.evidence.endswith(f"with {few} of today's {len(MOVES)} nulls, so this row needs a run")


def test_an_audit_without_nulls_needs_a_run(tmp_path):
    claim = judged(
        tmp_path, "attention lowers R^c more", looks={"CRATE-T": [{"audit": {"verdicts": ["yes: it does"]}}]}
    )
    assert (claim.verdict, claim.evidence) == (
        "not run",
        "the audit of CRATE-T, seed 0 was made without nulls, so this row needs a run",
    )
