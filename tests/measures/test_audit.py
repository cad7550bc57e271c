"""Every measure of the audit against NumPy, written from the definitions."""

import math

import numpy as np
import pytest
import timm
import torch
from torch import nn

from opencrate import trajectory
from opencrate.measures import DEFINITIONS, measure
from opencrate.measures.audit import AT_SITES, OF_A_STEP, SITES, AuditReader, audit
from opencrate.measures.layerwise import joined
from opencrate.measures.verdicts import verdicts
from opencrate.objective import coding_rate, subspace_coding_rate
from opencrate.operators.ista import ISTA

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
        energies = np.linalg.svd(unit(Z), compute_uv=False) ** 2
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
            "spread": 1 - np.linalg.norm(unit(Z).mean(0)),
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
        "compress_before": subspace_rate(unit(Z), U, eps),
        "compress_after": subspace_rate(unit(Z_half), U, eps),
        "compress_null_opposite": subspace_rate(unit(2 * Z - Z_half), U, eps),
        "sparsify_before": lasso(np.maximum(Y, 0)),
        "sparsify_after": lasso(Z_next),
        "sparsify_null_zero": lasso(np.zeros_like(Y)),
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
    reader, other = AuditReader(model, EPS), AuditReader(model, EPS)
    together, one_by_one = reader(steps), joined([other([step]) for step in steps], dim=0)
    for name, values in together.items():
        torch.testing.assert_close(values, one_by_one[name], rtol=1e-12, atol=1e-12)
    for definition in DEFINITIONS.values():
        together, alone = measure(steps, definition), [measure([step], definition) for step in steps]
        torch.testing.assert_close(together, joined(alone, dim=0), rtol=1e-12, atol=1e-12)


def test_batches_do_not_matter():
    """Not even to what is drawn at random."""
    model = small(dtype=torch.float64)
    whole, parts = audit(model, IMAGES), audit(model, IMAGES.split(2))
    for name, values in whole.values.items():
        torch.testing.assert_close(parts.values[name], values, rtol=1e-9, atol=1e-9, equal_nan=True)


def test_shares_and_rows():
    found = audit(small(), IMAGES.float())
    before, after = found.at("Rc_unit", "Z"), found.at("Rc_unit", "Z_half")
    torch.testing.assert_close(found.changes("compress"), (after - before) / before)
    rows = found.rows()
    assert [row["layer"] for row in rows] == [1, 2, 3]
    assert rows[1]["Rc@Z_half"] == pytest.approx(found.at("Rc", "Z_half")[1].mean().item())
    assert rows[1]["Rc@Z_half_low"] <= rows[1]["Rc@Z_half"] <= rows[1]["Rc@Z_half_high"]
    samples = list(found.sample_rows())
    assert len(samples) == 15
    assert (samples[7]["layer"], samples[7]["sample"]) == (2, 2)
    assert samples[7]["gram"] == found.values["gram"][1, 2].item()


def test_majorise_minimise_networks_are_held_to_their_own_aim():
    model = small(sparsify="prox_mm_tight", sparsify_args={"lam": 0.2, "eps": 0.7}, dtype=torch.float64)
    found = audit(model, IMAGES)
    with torch.no_grad():
        step = next(trajectory(model, IMAGES))
        Y = model.blocks[0].sparsify.norm(step.Z_half)
        aims = [0.2 * code.abs().sum((1, 2)) - coding_rate(code, 0.7) for code in (Y.relu(), step.Z_next)]
    torch.testing.assert_close(found.values["sparsify_before"][0], aims[0])
    torch.testing.assert_close(found.values["sparsify_after"][0], aims[1])
    assert (found.values["sparsify_null_zero"] == 0).all()
    assert found.values["sparsify_null_permuted"].isnan().all()  # its aim does not see the dictionary


def test_an_exact_gradient_network_compresses_and_agrees_with_the_gradient():
    model = small(compress="gradient_step", compress_args={"kappa": 0.5, "eps": 0.5}, dtype=torch.float64)
    found = audit(model, IMAGES, eps=0.5)
    assert found.values["gradient_cosine"].min() > 1 - 1e-9


def test_certificates_and_dead_heads():
    model = small()
    with torch.no_grad():
        model.blocks[0].sparsify.operator.D.mul_(10)
        model.blocks[1].compress.operator.UT[:6] = 0
    found = audit(model, IMAGES.float())
    for weights, layer in zip(found.weights, model.blocks, strict=True):
        averages, descends = weights.certificates
        size = 0.1 * np.linalg.norm(layer.D.detach().numpy(), 2) ** 2
        assert (averages.holds, averages.condition) == (True, "")
        assert descends.value == pytest.approx(size, rel=1e-5)
        assert descends.holds == (size < 2)
    assert not found.weights[0].certificates[1].holds
    step = ISTA(1, eta=0.5)
    for size, holds in ((2.0, False), (1.9, True)):
        nn.init.constant_(step.D, size)
        assert step.certificates()[0].holds == holds  # at η‖D‖² = 2 it does not
    assert [weights.dead for weights in found.weights] == [(), (1,), ()]
    assert all(value.isfinite().all() for value in found.values.values())


@pytest.mark.parametrize("images", [torch.full((3, 3, 16, 16), 0.5), torch.zeros(1, 3, 16, 16)])
def test_constant_pictures_and_a_batch_of_one_give_finite_values(images):
    found = audit(small(), images)
    assert all(math.isfinite(value) for row in found.rows() for value in row.values() if isinstance(value, float))
    assert all(mean.mean == mean.mean for verdict in verdicts(found) for mean in verdict.compress.nulls.values())


def test_half_precision():
    model = small().to(torch.bfloat16)
    assert all(value.isfinite().all() for value in audit(model, IMAGES).values.values())
    with pytest.raises(ValueError, match="eps must be positive"):
        audit(small(), IMAGES.float(), eps=0.0)


@pytest.mark.unhooked
def test_a_network_without_a_design_is_refused():
    with pytest.raises(ValueError, match="an audit needs layers that state their design, which VisionTransformer"):
        audit(timm.create_model("vit_tiny_patch16_224", depth=1), torch.zeros(1, 3, 224, 224))
