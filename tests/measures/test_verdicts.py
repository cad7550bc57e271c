"""Operators that are wrong on purpose are recognised for what they are, and right ones pass."""

import json
import math

import pytest
import torch
from torch import nn

from opencrate.files import json_text
from opencrate.layers import HalfStep, Layer
from opencrate.measures import verdicts as verdict_values
from opencrate.measures.audit import AT_SITES, HALVES, OF_A_STEP, SITES, Audit, Weights, audit
from opencrate.measures.nulls import CODES, MOVES, null_codes, null_moves, register
from opencrate.measures.verdicts import PICTURES, Judgement, certified, null_rows, summary, to_dict, verdicts
from opencrate.objective import lasso
from opencrate.objective.denoising import LowRankMixture
from opencrate.operators import Compression, Sparsification
from opencrate.operators.gradient import GradientStep
from opencrate.operators.ista import ISTA
from opencrate.operators.none import NoSparsification
from opencrate.operators.prox_mm import TightProxMM
from opencrate.stack import Network, Step, trajectory

from ..networks import small
from ..strategies import random
from ..user_operators import Dictionary

K, P, D, N, SAMPLES = 4, 3, 12, 32, 24
EPS, KAPPA = 0.3, 2.0


def network(compress, sparsify):
    """A stack whose inputs are its tokens, without norms, so that the operators see them as they are."""
    layer = Layer(HalfStep(nn.Identity(), compress), HalfStep(nn.Identity(), sparsify))
    return Network(nn.Identity(), nn.Sequential(layer), nn.Identity()).double()


# compressions, on noisy tokens of a mixture of orthogonal subspaces


def bases():
    torch.manual_seed(0)
    return torch.linalg.qr(torch.randn(D, D, dtype=torch.float64))[0].unflatten(1, (K, P)).transpose(0, 1).contiguous()


def noisy_tokens():
    """(samples, n, d): every token in one of the subspaces, and noise."""
    U = bases()
    mixture = LowRankMixture(torch.full((K,), 1 / K, dtype=torch.float64), U, torch.ones(K, P, dtype=torch.float64))
    clean, _ = mixture.sample(SAMPLES * N, torch.Generator().manual_seed(1))
    return (clean + 0.3 * torch.randn(clean.shape, generator=torch.Generator().manual_seed(2))).view(SAMPLES, N, D)


class Right(GradientStep):
    """The exact step along −∇R^c."""

    def __init__(self):
        super().__init__(D, K, kappa=KAPPA, eps=EPS, head_dim=P)
        with torch.no_grad():
            self.UT.copy_(bases().mT.flatten(0, 1))


class Opposite(Right):
    def forward(self, Y):
        return -super().forward(Y)


class Reordered(Right):
    def forward(self, Y):
        return super().forward(Y).flip(-2)


class Noise(Right):
    def forward(self, Y):
        length = super().forward(Y).norm(dim=-1, keepdim=True)
        return length * nn.functional.normalize(torch.randn(Y.shape, dtype=Y.dtype), dim=-1)


class Mean(Right):
    def forward(self, Y):
        return Y.mean(-2, keepdim=True) - Y


class AlmostMean(Right):
    def forward(self, Y):
        return 0.9 * (Y.mean(-2, keepdim=True) - Y)


class Common(Right):
    def forward(self, Y):
        return 0.5 * Y.norm(dim=-1, keepdim=True) * nn.functional.normalize(torch.ones_like(Y), dim=-1)


class Identity(Right):
    def forward(self, Y):
        return torch.zeros_like(Y)


class Zeros(Right):
    def forward(self, Y):
        return -Y


class TowardFirst(Right):
    def forward(self, Y):
        return 0.35 * (Y[:, :1] - Y)


class TowardMean(Right):
    def forward(self, Y):
        return 0.4 * (Y.mean(-2, keepdim=True) - Y)


class EveryThird(Right):
    """Takes every third token away."""

    def forward(self, Y):
        return -Y * (torch.arange(N) % 3 == 0)[:, None]


class Grouped(Right):
    """Of every four tokens, all become the first."""

    def forward(self, Y):
        return Y[:, ::4].repeat_interleave(4, 1) - Y


class WholeSpace(Right):
    """Attention that does not know the subspaces."""

    def forward(self, Y):
        return 0.5 * ((4 * Y @ Y.mT / D**0.5).softmax(-1) @ Y - Y)


class NoAim(Compression):
    def __init__(self):
        super().__init__()
        self.size = nn.Parameter(torch.tensor(-0.1))

    def forward(self, Y):
        return self.size * Y


def judged_compression(compress):
    (verdict,) = verdicts(audit(network(compress, NoSparsification(D)), noisy_tokens(), eps=EPS))
    assert verdict.sparsify.grade == verdict.word == "unknown"
    return verdict


def test_the_exact_gradient_step_compresses():
    verdict = judged_compression(Right())
    assert verdict.compress.grade == "yes", verdict.text
    assert verdict.compress.change.high < 0
    assert all(difference.high < 0 for difference in verdict.compress.nulls.values())
    assert set(verdict.compress.nulls) == set(MOVES)


@pytest.mark.parametrize(
    ("operator", "grade", "unbeaten"),
    [
        (Opposite, "no", "opposite"),
        (Reordered, "no", "shuffled"),
        (Noise, "no", "noise"),
        (Common, "no", "common"),
        (Mean, "collapse", None),
        (AlmostMean, "collapse", None),
        (Zeros, "collapse", None),
        (Identity, "no", "noise"),
        (TowardFirst, "no", "first"),
        (TowardMean, "no", "mean"),
        (EveryThird, "no", "shorter"),
        (NoAim, "unknown", None),
    ],
)
def test_a_wrong_compression_is_recognised(operator, grade, unbeaten):
    torch.manual_seed(3)
    verdict = judged_compression(operator())
    assert verdict.compress.grade == grade, verdict.text
    if unbeaten:
        null = verdict.compress.nulls[unbeaten]
        assert null.mean > -1e-6 or not null.falls
    assert any("tokens collapse" in note for note in verdict.notes) == (grade == "collapse")
    if grade == "unknown":
        assert "states no aim" in verdict.text


@pytest.mark.parametrize("operator", [Grouped, WholeSpace])
def test_averaging_passes_in_whatever_space(operator):
    """A limit that docs/AUDIT.md names: merging like tokens lowers R^c, also without knowing the subspaces."""
    assert judged_compression(operator()).compress.grade == "yes"


# sparsifications, of tokens that are sparse in a dictionary


def dictionary(m):
    torch.manual_seed(4)
    return nn.functional.normalize(torch.randn(D, m, dtype=torch.float64), dim=0)


def sparse_tokens(atoms):
    """(samples, n, d): each the sum of few atoms, and a little noise."""
    draw = torch.Generator().manual_seed(5)
    shape = (SAMPLES, N, atoms.shape[1])
    codes = torch.rand(shape, generator=draw, dtype=torch.float64) * (torch.rand(shape, generator=draw) < 0.15)
    noise = torch.randn((SAMPLES, N, D), generator=draw, dtype=torch.float64)
    return codes @ atoms.mT + 0.02 * noise


class FromZero(Dictionary):
    """ISTA from zero in the true, overcomplete dictionary."""

    def __init__(self):
        super().__init__(D, expansion=2, eta=0.2, lam=0.02, steps=5)
        self.D = nn.Parameter(dictionary(2 * D))


class Square(ISTA):
    """What the wrong ones extend: they have the true dictionary, and its LASSO as their aim."""

    def __init__(self):
        super().__init__(D, eta=0.2, lam=0.02)
        self.D = nn.Parameter(dictionary(D))


class ZeroDictionary(Square):
    def __init__(self):
        super().__init__()
        self.D = nn.Parameter(torch.zeros(D, D))


class HalfReLU(Square):
    def code(self, Y):
        return 0.5 * Y.relu()


class ReLUOfMinus(Square):
    def code(self, Y):
        return (-Y).relu()


class Unchanged(Square):
    def code(self, Y):
        return Y


class ZeroCode(Square):
    def code(self, Y):
        return torch.zeros_like(Y)


class OtherAtoms(Square):
    """A good code, whose entries have changed places."""

    def code(self, Y):
        A = torch.zeros_like(Y)
        for _ in range(20):
            A = (A + 0.2 * (Y - A @ self.D.mT) @ self.D - 0.004).relu()
        return A.roll(1, -1)


class NoStatedAim(Sparsification):
    replaces = True

    def code(self, Y):
        return Y.relu()


def judged_sparsification(sparsify, atoms):
    (verdict,) = verdicts(audit(network(Right(), sparsify), sparse_tokens(atoms), eps=EPS))
    return verdict.sparsify


def test_ista_from_zero_in_the_true_dictionary_sparsifies(monkeypatch):
    monkeypatch.setattr(Right, "forward", lambda self, Y: torch.zeros_like(Y))  # the tokens stay sparse
    judged = judged_sparsification(FromZero(), dictionary(2 * D))
    assert judged.grade == "yes", judged.evidence
    assert set(judged.nulls) == {"zero", "permuted"}
    assert all(difference.high < -0.1 for difference in judged.nulls.values())


@pytest.mark.parametrize(
    ("operator", "unbeaten"),
    [
        (ZeroDictionary, "zero"),
        (HalfReLU, "multiple"),
        (ReLUOfMinus, "zero"),
        (ZeroCode, "zero"),  # and it collapses
        (OtherAtoms, "zero"),
        (Unchanged, None),
        (NoStatedAim, None),
    ],
)
def test_a_wrong_sparsification_is_recognised(operator, unbeaten, monkeypatch):
    monkeypatch.setattr(Right, "forward", lambda self, Y: torch.zeros_like(Y))
    judged = judged_sparsification(operator(), dictionary(D))
    assert judged.grade == {NoStatedAim: "unknown", ZeroCode: "collapse"}.get(operator, "no"), judged.evidence
    if unbeaten:
        assert not judged.nulls[unbeaten].falls
    if operator is Unchanged:
        assert "is infinite" in judged.evidence


# the nulls themselves


@torch.no_grad()
def test_null_moves_are_as_long_as_the_layers_own():
    model = small(dtype=torch.float64)
    for step in trajectory(model, random(3, 3, 16, 16)):
        move, moves = step.Z_half - step.Z, null_moves(step)
        assert moves.keys() == MOVES.keys()
        assert not moves["first"][:, 0].any()  # which is there already
        for name, null in moves.items():
            own, first = move.norm(dim=-1), int(name == "first")
            torch.testing.assert_close(null.norm(dim=-1)[:, first:], own[:, first:], msg=name)
        torch.testing.assert_close(moves["opposite"], -move)
        common = nn.functional.normalize(moves["common"], dim=-1)
        torch.testing.assert_close(common, common[:, :1].expand_as(common))
        assert (common[0, 0] @ common[1, 0]).abs() < 0.99  # every picture has a direction of its own
        for name, target in (("mean", step.Z.mean(1, keepdim=True)), ("first", step.Z[:, :1]), ("shorter", 0.0)):
            toward = nn.functional.cosine_similarity(moves[name], target - step.Z, dim=-1)[:, 1:]
            torch.testing.assert_close(toward, torch.ones_like(toward), msg=name)
        own = nn.functional.normalize(move, dim=-1)
        same = nn.functional.normalize(moves["shuffled"], dim=-1) @ own.mT > 1 - 1e-9  # (b, n, n): token i has j's
        assert (same.sum(-1) == 1).all()
        assert not same.diagonal(dim1=-2, dim2=-1).any()
        # The mean projection in every subspace, through the free output map.
        operator, Y = step.layer.compress.operator, step.layer.compress.norm(step.Z)
        heads = torch.cat([(Y @ U_k).mean(1) for U_k in operator.U], dim=-1)
        uniform = heads @ operator.W.weight.mT + operator.W.bias
        wanted = nn.functional.normalize(uniform, dim=-1)[:, None].expand_as(move) * move.norm(dim=-1, keepdim=True)
        torch.testing.assert_close(moves["uniform"], wanted)
        again = null_moves(step)
        assert all(torch.equal(again[name], moves[name]) for name in moves)


def test_the_best_multiple_is_where_the_lasso_is_lowest():
    operator, Y = Square().double(), sparse_tokens(dictionary(D))[:4].detach()
    with torch.no_grad():
        codes = null_codes(operator, Y, Y.relu(), number=1)
        best = lasso(codes["multiple"], Y, operator.D, operator.lam)
        grid = torch.stack([lasso(c * Y.relu(), Y, operator.D, operator.lam) for c in torch.linspace(0, 4, 4001)])
    torch.testing.assert_close(best, grid.amin(0), rtol=1e-6, atol=1e-6)
    assert torch.equal(codes["permuted"].sort(-1).values, Y.relu().sort(-1).values)
    assert not torch.equal(codes["permuted"], Y.relu())


def test_an_aim_that_does_not_see_the_dictionary_has_no_permuted_null():
    operator = TightProxMM(D).double()
    Y = sparse_tokens(dictionary(D))[:2]
    with torch.no_grad():
        assert set(null_codes(operator, Y, Y.relu(), number=1)) == set(CODES) - {"permuted"}


def test_a_null_of_ones_own_is_one_function():
    try:
        register(MOVES, "double", "twice the move")(lambda step, move, chance: 2 * move)
        Z = noisy_tokens()
        half = Z + 0.1 * Z.flip(-1)
        step = Step(1, network(Right(), NoSparsification(D)).layers[0], Z, half, half, None)
        torch.testing.assert_close(null_moves(step)["double"], half - Z)
        verdict = judged_compression(Right())
        assert verdict.compress.grade == "no"  # it is as good as itself
        assert "beside twice the move" in verdict.text
    finally:
        del MOVES["double"]


class NoCode(Sparsification):
    aim_name = "an aim"

    def forward(self, Y):
        return 0.1 * Y

    def aim(self, Y, code):
        return code.square().sum((-2, -1))


def test_an_aim_without_a_code_is_unknown():
    (verdict,) = verdicts(audit(network(Right(), NoCode()), noisy_tokens(), eps=EPS))
    assert verdict.sparsify.grade == "unknown"
    assert "follows from no code" in verdict.text


class OtherForward(FromZero):
    """A good code, which its forward pass does not use."""

    def forward(self, Y):
        return (-Y).relu()


class SameForward(FromZero):
    def forward(self, Y):
        return self.decode(self.code(Y))


def test_a_forward_pass_that_does_not_follow_from_the_code_is_unknown(monkeypatch):
    monkeypatch.setattr(Right, "forward", lambda self, Y: torch.zeros_like(Y))
    judged = judged_sparsification(OtherForward(), dictionary(2 * D))
    assert judged.grade == "unknown"
    assert "follows from no code" in judged.evidence
    assert judged_sparsification(SameForward(), dictionary(2 * D)).grade == "yes"


def test_a_trajectory_passes_what_the_forward_pass_passes():
    model, Z = network(Right(), OtherForward()), sparse_tokens(dictionary(2 * D))
    (step,) = trajectory(model, Z)
    assert torch.equal(step.Z_next, model(Z))
    assert not step.follows_from_code()


class DecodesToNothing(FromZero):
    replaces = True

    def decode(self, code):
        return torch.zeros(*code.shape[:-1], D, dtype=code.dtype)


class DecodesToMean(DecodesToNothing):
    def decode(self, code):
        return (code @ self.D.mT).mean(-2, keepdim=True).expand(-1, N, -1)


@pytest.mark.parametrize("operator", [DecodesToNothing, DecodesToMean])
def test_a_good_code_from_which_collapsed_tokens_come_is_a_collapse(operator, monkeypatch):
    monkeypatch.setattr(Right, "forward", lambda self, Y: torch.zeros_like(Y))
    (verdict,) = verdicts(audit(network(Right(), operator()), sparse_tokens(dictionary(2 * D)), eps=EPS))
    assert verdict.sparsify.grade == "collapse"
    assert "the tokens collapse in sparsification" in verdict.text


class Logarithm(FromZero):
    """An aim that no null can have."""

    def aim(self, Y, code):
        return super().aim(Y, code) - code.sum((-2, -1)).log().clamp(max=0).where(code.any(), -torch.inf)


def test_an_aim_that_is_infinite_for_every_null_is_unknown(monkeypatch):
    monkeypatch.setattr(Right, "forward", lambda self, Y: torch.zeros_like(Y))
    monkeypatch.setattr("opencrate.measures.nulls.CODES", {"zero": CODES["zero"]})
    judged = judged_sparsification(Logarithm(), dictionary(2 * D))
    assert (judged.grade, judged.nulls) == ("unknown", None), judged.evidence
    assert "no null" in judged.evidence


# grades at their thresholds


def test_the_thresholds():
    """As docs/AUDIT.md has them."""
    assert (verdict_values.PICTURES, verdict_values.EFFECT, verdict_values.HALF) == (20, 0.01, 0.5)


def test_the_null_that_is_hardest_to_beat_has_the_highest_interval():
    noisy, steady = (verdict_values.Mean(*values) for values in ((-0.05, -0.2, 0.1), (-0.02, -0.03, -0.01)))
    assert Judgement("no", nulls={"steady": steady, "noisy": noisy}).best == "noisy"


def made_up(own, null, pictures=PICTURES, spread=0.0, rank=0.0, dR=1.0, code=0.5, **weights):
    """One layer: R^c changes from 1 by `own`, under every null by `null`; the code costs `code` of the zero code."""
    ones = torch.ones((1, pictures), dtype=torch.float64)
    wiggle = torch.linspace(-1e-4, 1e-4, pictures, dtype=torch.float64)[None]
    values = dict.fromkeys(OF_A_STEP, ones) | {f"{name}@{site}": 2 * ones for name in AT_SITES for site in SITES}
    values |= {f"compress_null_{name}": (1 + null) * ones + wiggle for name in MOVES}
    values |= {"compress_after": (1 + own) * ones - wiggle, "sparsify_after": code * ones + wiggle}
    values |= {f"{name}@Z_half": ones * x for name, x in (("spread", 2 - 2 * spread), ("rank", 2 - rank))}
    values["dR_unit@Z_next"] = (2 + dR) * ones + wiggle
    known = {"layer": 1, "aim": "LASSO", "compress_aim": "R^c", "lam": 0.1}
    nothing = dict.fromkeys(["U_size", "orthonormality", "coherence", "coherence_max", "orthogonality"])
    return Audit(0.1, (Weights(**{**known, **nothing, **weights}),), values)


@pytest.mark.parametrize(
    ("arguments", "grade"),
    [
        ({"own": -0.02, "null": 0.0}, "yes"),
        ({"own": -0.0102, "null": 0.0}, "yes"),
        ({"own": -0.0098, "null": 0.0}, "no"),  # by less than a per cent
        ({"own": -0.02, "null": -0.02}, "no"),
        ({"own": -0.02, "null": -0.05}, "no"),
        ({"own": 0.02, "null": 0.05}, "no"),  # all nulls raise it, but so does the layer
        ({"own": -0.02, "null": 0.0, "spread": 0.49, "rank": 0.49}, "yes"),
        ({"own": -0.02, "null": 0.0, "spread": 0.5}, "yes"),
        ({"own": -0.02, "null": 0.0, "spread": 0.51}, "collapse"),
        ({"own": -0.02, "null": 0.0, "rank": 0.51}, "collapse"),
        ({"own": -0.02, "null": 0.0, "pictures": PICTURES - 1}, "too few"),
        ({"own": -0.02, "null": 0.0, "compress_aim": None}, "unknown"),
    ],
)
def test_grades_of_a_compression(arguments, grade):
    (verdict,) = verdicts(made_up(**arguments))
    assert verdict.compress.grade == grade, verdict.text
    few = grade == "too few"
    assert verdict.sparsify.grade == ("too few" if few else "yes")
    word = {"yes": "yes", "unknown": "unknown", "too few": "too few"}.get(grade, "partly")
    assert verdict.word == word
    assert verdict.text.startswith(f"{word}: ")


@pytest.mark.parametrize(("code", "grade"), [(0.5, "yes"), (0.989, "yes"), (0.9905, "no"), (1.0, "no"), (2.0, "no")])
def test_grades_of_a_sparsification(code, grade):
    (verdict,) = verdicts(made_up(0.1, 0.0, code=code))
    assert (verdict.compress.grade, verdict.sparsify.grade) == ("no", grade)
    assert verdict.word == ("partly" if grade == "yes" else "no")


def test_dead_heads_are_noted():
    assert verdicts(made_up(-0.02, 0.0, dead=(2,)))[0].notes == ("head 2 is dead",)
    assert verdicts(made_up(-0.02, 0.0, dead=(2, 5)))[0].notes == ("heads 2, 5 are dead",)


# what is said of a network


def test_three_sentences():
    good, bad = made_up(-0.02, 0.0), made_up(-0.02, -0.05, code=2.0, dR=-1.0)
    compression, sparsification, altogether = summary(good, bad)
    more = "falls by at least 1 % more than with every null at 1 of 1 layers."
    assert compression == f"Compression: R^c of the tokens at unit length {more}"
    assert sparsification == f"Sparsification: the LASSO {more}"
    assert altogether == (
        "Altogether: the tokens' effective rank goes from 2.0 to 2.0, and ΔR rises over both halves at 1 of 1 layers;"
        " in the untrained network such layers are 0 for compression, 0 for sparsification, 0 for ΔR."
    )
    compression, sparsification, altogether = summary(bad)
    assert compression.endswith("at 0 of 1 layers; its own opposite does as well or better at 1.")
    assert sparsification.endswith("at 0 of 1 layers; the code of zeros does as well or better at 1.")
    assert altogether.endswith("at 0 of 1 layers.")
    assert "; at 1 the tokens collapse." in summary(made_up(-0.02, 0.0, spread=0.6))[0]
    assert all("too few" in sentence for sentence in summary(made_up(-0.02, 0.0, pictures=8))[:2])
    assert "states no aim" in summary(made_up(-0.02, 0.0, compress_aim=None))[0]


def test_rows_and_json():
    found = audit(small(), random(PICTURES, 3, 16, 16).float())
    rows = list(null_rows(found))
    judged = [verdict.compress for verdict in verdicts(found)]
    assert len(rows) == sum(len(one.nulls) for one in judged) + 3 * len(CODES)
    assert all({"opposite", "noise"} <= one.nulls.keys() <= MOVES.keys() for one in judged)
    first = next(row for row in rows if (row["layer"], row["null"]) == (2, "noise"))
    difference = found.differences("compress")["noise"][1]
    assert first["mean"] == pytest.approx(difference.mean().item())
    assert first["low"] <= first["mean"] <= first["high"]
    own, null = found.values["compress_after"], found.values["compress_null_noise"]
    torch.testing.assert_close(difference, ((own - null) / found.values["compress_before"])[1])
    values = json.loads(json_text(to_dict(found, found)))
    assert values["samples"] == PICTURES
    assert len(values["summary"]) == 3
    assert len(values["rows"]) == len(values["untrained"]) == 3
    grades = values["rows"][1]["grades"]
    assert set(grades) == {*HALVES, "reduction"}
    assert math.isclose(grades["compress"]["nulls"]["noise"]["mean"], first["mean"])
    assert grades["compress"]["best"] in MOVES
    assert any("η‖D‖² < 2, which holds at" in sentence for sentence in certified(found))


@torch.no_grad()
def test_attention_maps_average():
    """The theorem of their certificate, on maps of random weights."""
    for seed in range(5):
        torch.manual_seed(seed)
        model = small(dtype=torch.float64)
        for step in trajectory(model, 3 * random(2, 3, 16, 16)):
            values = torch.linalg.eigvals(step.maps)
            assert values.imag.abs().max() < 1e-9
            assert values.real.min() > -1e-9
            assert values.real.max() < 1 + 1e-9
