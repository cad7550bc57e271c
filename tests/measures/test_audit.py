"""Every measure of the audit against NumPy, written from the definitions."""

import json
import math

import numpy as np
import pytest
import timm
import torch

from opencrate import trajectory
from opencrate.measures import DEFINITIONS, measure
from opencrate.measures.audit import AT_SITES, LASSO, OF_A_STEP, SITES, Audit, AuditReader, Weights, audit
from opencrate.measures.layerwise import joined
from opencrate.objective import coding_rate, subspace_coding_rate

from ..networks import small
from ..strategies import random

IMAGES = random(5, 3, 16, 16)
EPS = 0.3


def rate(Z, eps):
    n, d = Z.shape
    return 0.5 * np.linalg.slogdet(np.eye(n) + d / (n * eps**2) * Z @ Z.T)[1]


def subspace_rate(Z, U, eps):
    return sum(rate(Z @ U_k, eps) for U_k in U)


def unit(Z):
    return Z / np.linalg.norm(Z, axis=1, keepdims=True)


def layer_norm(Z, norm):
    centred = Z - Z.mean(1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(1, keepdims=True) + norm.eps)
    return scaled * norm.weight.detach().numpy() + norm.bias.detach().numpy()


def cosine(a, b):
    return (a * b).sum() / (np.linalg.norm(a) * np.linalg.norm(b))


def by_hand(sites, layer, eps):
    """All values of one sample at one layer; `sites` are Z^l, Z^{l+1/2}, Z^{l+1} as NumPy arrays."""
    U, D, lam = layer.U.detach().numpy(), layer.D.detach().numpy(), 0.1
    found = {}
    for name, Z in zip(SITES, sites, strict=True):
        R, Rc, R_unit, Rc_unit = (
            rate(Z, eps),
            subspace_rate(Z, U, eps),
            rate(unit(Z), eps),
            subspace_rate(unit(Z), U, eps),
        )
        energies = np.linalg.svd(Z, compute_uv=False) ** 2
        shares = energies[energies > 0] / energies.sum()
        values = {
            "R": R,
            "Rc": Rc,
            "dR": R - Rc,
            "R_unit": R_unit,
            "Rc_unit": Rc_unit,
            "dR_unit": R_unit - Rc_unit,
            "nonzero": np.count_nonzero(Z) / Z.size,
            "l1": np.abs(Z).mean(),
            "objective": R - Rc - lam * np.count_nonzero(Z),
            "rank": np.exp(-(shares * np.log(shares)).sum()),
        }
        found |= {f"{key}@{name}": value for key, value in values.items()}
    Z, Z_half, Z_next = sites
    X, Y = layer_norm(Z, layer.compress.norm), layer_norm(Z_half, layer.sparsify.norm)

    def lasso(A):
        return lam * np.abs(A).sum() + 0.5 * ((Y - A @ D.T) ** 2).sum()

    n, p = len(X), U.shape[2]
    gamma, scale = p / (n * eps**2), layer.compress.operator.scale
    exact, neumann, heads, grams = 0, 0, 0, []
    for U_k in U:
        V = X @ U_k
        grams.append(np.linalg.norm(V @ V.T, 2))
        exact = exact + gamma * np.linalg.solve(np.eye(n) + gamma * V @ V.T, V) @ U_k.T
        neumann = neumann + gamma * (V - gamma * V @ V.T @ V) @ U_k.T
        weights = np.exp(scale * V @ V.T - (scale * V @ V.T).max(1, keepdims=True))
        heads = heads + (weights / weights.sum(1, keepdims=True)) @ V @ U_k.T
    softmax = gamma * X - gamma * gamma * heads
    return found | {
        "aim_before": lasso(np.maximum(Y, 0)),
        "aim_after": lasso(Z_next),
        "lasso_zero": lasso(np.zeros_like(Y)),
        "lasso_signed": lasso(Y),
        "lasso_before": lasso(np.maximum(Y, 0)),
        "lasso_after": lasso(Z_next),
        "gradient_cosine": cosine(Z_half - Z, -exact),
        "unit_cosine": cosine(Z_half - Z, -unit_gradient(Z, layer.U.double(), eps)),
        "neumann_residual": np.linalg.norm(neumann - exact) / np.linalg.norm(exact),
        "neumann_cosine": cosine(neumann, exact),
        "softmax_residual": np.linalg.norm(softmax - exact) / np.linalg.norm(exact),
        "softmax_cosine": cosine(softmax, exact),
        "gram": gamma * max(grams),
    }


def unit_gradient(Z, U, eps):
    """By autograd."""
    with torch.enable_grad():
        Z = torch.tensor(Z, requires_grad=True)
        rate = subspace_coding_rate(torch.nn.functional.normalize(Z, dim=-1), U.detach(), eps)
        return torch.autograd.grad(rate, Z)[0].numpy()


@torch.no_grad()
def test_every_value_of_every_sample_and_layer():
    model = small(dtype=torch.float64)
    found = audit(model, IMAGES.split(2), eps=EPS)
    assert found.samples == 5
    for step, layer in zip(trajectory(model, IMAGES), model.blocks, strict=True):
        for sample in range(5):
            sites = [getattr(step, site)[sample].numpy() for site in SITES]
            for name, value in by_hand(sites, layer, EPS).items():
                assert found.values[name][step.number - 1, sample].item() == pytest.approx(value, rel=1e-9, abs=1e-9), (
                    name
                )
    assert found.values.keys() == {f"{name}@{site}" for name in AT_SITES for site in SITES} | set(OF_A_STEP)


@torch.no_grad()
def test_layers_that_are_read_together_give_what_each_gives():
    """As on a GPU."""
    model = small(dtype=torch.float64)
    steps = list(trajectory(model, IMAGES))
    reader = AuditReader(model, EPS)
    together, one_by_one = reader(steps), joined([reader([step]) for step in steps], dim=0)
    for name, values in together.items():
        torch.testing.assert_close(values, one_by_one[name], rtol=1e-12, atol=1e-12)
    for definition in DEFINITIONS.values():
        together, alone = measure(steps, definition), [measure([step], definition) for step in steps]
        torch.testing.assert_close(together, joined(alone, dim=0), rtol=1e-12, atol=1e-12)


def test_shares_and_rows():
    found = audit(small(), IMAGES.float())
    before, after = found.at("Rc_unit", "Z"), found.at("Rc_unit", "Z_half")
    assert found.improved("Rc_unit", "compress").tolist() == (after < before).double().mean(1).tolist()
    R = found.at("R", "Z_next") > found.at("R", "Z_half")
    assert found.improved("R", "sparsify").tolist() == R.double().mean(1).tolist()
    rows = found.rows()
    assert [row["layer"] for row in rows] == [1, 2, 3]
    assert rows[1]["Rc@Z_half"] == pytest.approx(found.at("Rc", "Z_half")[1].mean().item())
    assert rows[1]["Rc@Z_half_low"] <= rows[1]["Rc@Z_half"] <= rows[1]["Rc@Z_half_high"]
    assert rows[2]["sparsify_improves_nonzero"] == 1
    loaded = json.loads(json.dumps(found.to_dict()))
    assert loaded["definition"] == {"name": "audit", "eps": 0.1}
    assert loaded["samples"] == 5
    samples = list(found.sample_rows())
    assert len(samples) == 15
    assert (samples[7]["layer"], samples[7]["sample"]) == (2, 2)
    assert samples[7]["gram"] == found.values["gram"][1, 2].item()


def test_the_verdict_follows_from_its_evidence():
    torch.manual_seed(0)
    found = audit(timm.create_model("crate_tiny_patch16_224"), torch.randn(2, 3, 224, 224))
    for layer, verdict in enumerate(found.verdicts()):
        before, after = (found.at("Rc_unit", site)[layer] for site in ("Z", "Z_half"))
        assert verdict.compresses < 2  # an untrained network moves R^c by less than a per cent
        assert f"R^c {((after - before) / before).mean().item():+.1%}".replace("-", "−") in verdict.text
        start, end, zero = (found.values[f"lasso_{name}"][layer] for name in ("before", "after", "zero"))
        assert (end < start).all()
        assert verdict.sparsifies == (2 if (end / zero).mean() < 1 else 1)
        assert f"{(end / zero).mean().item():.0%} of the zero code's" in verdict.text
        assert verdict.text.startswith("partly: ")


def made_up(change: float, better: int = 10, of_zero: float = 0.5, **weights) -> Audit:
    """One layer and ten pictures; a half-step changes the first `better` of them so that the mean is `change`."""
    after = torch.full((1, 10), 2.0, dtype=torch.float64)
    after[0, :better] = 1 + (10 * change - (10 - better)) / better
    before = torch.ones_like(after)
    values = {f"{name}@{site}": before for name in AT_SITES for site in SITES} | dict.fromkeys(OF_A_STEP, before)
    values |= {"Rc_unit@Z_half": after, "aim_after": after, "lasso_after": of_zero * before}
    known = {"layer": 1, "aim": LASSO, "compress_aim": "R^c", "eta_D": 1.0, "lam": 0.1}
    nothing = dict.fromkeys(["U_size", "orthonormality", "coherence", "coherence_max", "orthogonality"])
    return Audit(0.1, (Weights(**{**known, **nothing, **weights}),), values)


@pytest.mark.parametrize(
    ("change", "better", "grade"),
    [
        (-0.02, 10, 2),
        (-0.0101, 10, 2),
        (-0.0099, 10, 1),
        (-0.02, 9, 2),
        (-0.02, 8, 1),
        (0.02, 9, 1),
        (0.02, 6, 1),
        (-0.02, 5, 0),
    ],
)
def test_the_grades_at_their_thresholds(change, better, grade):
    """2 for 90 % of the pictures and a per cent on average, 1 for more than half of them."""
    (verdict,) = made_up(change, better).verdicts()
    assert (verdict.compresses, verdict.sparsifies) == (grade, grade)
    assert verdict.word == {2: "yes", 1: "partly", 0: "no"}[grade]
    assert f"lower in {better}0%" in verdict.text


def test_a_code_as_dear_as_the_zero_code_does_not_sparsify_clearly():
    for of_zero, grade, word in ((0.999, 2, "yes"), (1.0, 1, "partly"), (1.5, 1, "partly")):
        (verdict,) = made_up(-0.02, of_zero=of_zero).verdicts()
        assert (verdict.compresses, verdict.sparsifies, verdict.word) == (2, grade, word)
    (verdict,) = made_up(-0.02, of_zero=1.5, aim="its aim").verdicts()
    assert verdict.sparsifies == 2


def test_what_states_no_aim_gets_no_grade():
    for missing in ("aim", "compress_aim"):
        (verdict,) = made_up(-0.02, **{missing: None}).verdicts()
        assert verdict.word == "unknown"
        assert {verdict.compresses, verdict.sparsifies} == {2, None}
        assert "the operator states no aim" in verdict.text


def test_warnings_at_their_thresholds():
    for eta_D, warned in ((1.99, 0), (2.0, 1), (None, 0)):
        (verdict,) = made_up(-0.02, eta_D=eta_D).verdicts()
        assert len(verdict.warnings) == warned
    assert made_up(-0.02, dead=(2,)).verdicts()[0].warnings == ("head 2 is dead",)
    assert made_up(-0.02, dead=(2, 5)).verdicts()[0].warnings == ("heads 2, 5 are dead",)


def test_majorise_minimise_networks_are_held_to_their_own_aim():
    model = small(sparsify="prox_mm_tight", sparsify_args={"lam": 0.2, "eps": 0.7}, dtype=torch.float64)
    found = audit(model, IMAGES)
    with torch.no_grad():
        step = next(trajectory(model, IMAGES))
        Y = model.blocks[0].sparsify.norm(step.Z_half)
        aims = [0.2 * code.abs().sum((1, 2)) - coding_rate(code, 0.7) for code in (Y.relu(), step.Z_next)]
    torch.testing.assert_close(found.values["aim_before"][0], aims[0])
    torch.testing.assert_close(found.values["aim_after"][0], aims[1])
    assert "λ‖Z‖₁ − R " in found.verdicts()[0].text
    assert "zero code" not in found.verdicts()[0].text


def test_an_exact_gradient_network_compresses_and_agrees_with_the_gradient():
    model = small(compress="gradient_step", compress_args={"kappa": 0.5, "eps": 0.5}, dtype=torch.float64)
    found = audit(model, IMAGES, eps=0.5)
    assert found.values["gradient_cosine"].min() > 1 - 1e-9


def test_large_steps_and_dead_heads_are_warned_of():
    model = small()
    with torch.no_grad():
        model.blocks[0].sparsify.operator.D.mul_(10)
        model.blocks[1].compress.operator.UT[:6] = 0
    found = audit(model, IMAGES.float())
    first, second, _ = found.verdicts()
    assert "is not below 2, so ISTA need not descend" in first.text
    assert second.text.endswith("head 1 is dead")
    assert all(value.isfinite().all() for value in found.values.values())


@pytest.mark.parametrize("images", [torch.full((3, 3, 16, 16), 0.5), torch.zeros(1, 3, 16, 16)])
def test_constant_pictures_and_a_batch_of_one_give_finite_values(images):
    found = audit(small(), images)
    assert all(math.isfinite(value) for row in found.rows() for value in row.values() if isinstance(value, float))


def test_half_precision():
    model = small().to(torch.bfloat16)
    assert all(value.isfinite().all() for value in audit(model, IMAGES).values.values())
    with pytest.raises(ValueError, match="eps must be positive"):
        audit(small(), IMAGES.float(), eps=0.0)


@pytest.mark.unhooked
def test_a_network_without_a_design_is_refused():
    with pytest.raises(ValueError, match="an audit needs layers that state their design, which VisionTransformer"):
        audit(timm.create_model("vit_tiny_patch16_224", depth=1), torch.zeros(1, 3, 224, 224))
