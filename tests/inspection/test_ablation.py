import numpy as np
import pytest
import torch
from scipy.special import log_softmax, softmax

from opencrate import trajectory
from opencrate.inspection import ablation
from opencrate.inspection.ablation import ablated, divergence, head_importance
from opencrate.inspection.recording import record
from opencrate.inspection.views import attention_rows, top_patches
from opencrate.objective.rates import rate_scale, subspace_coding_rate_gradient
from opencrate.operators import compressions
from opencrate.operators.attention import ssa_reference

from ..networks import own, small
from ..strategies import random

IMAGES = random(4, 3, 16, 16)


def literal_move(step, Y, on):
    """What the compression adds to the tokens, head by head, with the heads of `on` (counted from 0) alone."""
    n, p, options = Y.shape[-2], step.head_dim, step.options
    S, V = ssa_reference(Y, step.U, p**-0.5), torch.einsum("bnd,kdp->bknp", Y, step.U)
    if step.name == "mssa":
        if step.W is None:
            return sum([torch.zeros_like(Y), *(S[:, k] for k in on)])
        return step.W.bias + sum(S[:, k] @ step.W.weight[:, k * p : (k + 1) * p].T for k in on)
    if step.name == "gradient_step":
        return -options["kappa"] * sum(subspace_coding_rate_gradient(Y, step.U[k : k + 1], options["eps"]) for k in on)
    if step.name == "mixture_step":
        shares = (V.square().sum(-1) / (2 * options["sigma"] ** 2)).exp()
        shares = shares / shares.sum(1, keepdim=True)
        return sum(shares[:, k, :, None] * (S[:, k] @ step.U[k].T) for k in on) - Y
    gamma = rate_scale(n, p, options["eps"])
    if step.name == "neumann_step":
        terms = (V[:, k] - gamma * V[:, k] @ V[:, k].mT @ V[:, k] for k in on)
        return -options["kappa"] * gamma * sum(T @ step.U[k].T for T, k in zip(terms, on, strict=True))
    tied = gamma * sum(S[:, k] @ step.U[k].T for k in on)
    return tied if step.name == "mssa_tied" else options["kappa"] * gamma * (tied - Y)


def literal(model, images, heads=(), atoms=()):
    """Z^{l+1} of all layers without the heads and coordinates, pairs counted from 1, and the logits."""
    Z, tokens = model.embed(images), []
    for layer, block in enumerate(model.blocks, start=1):
        on = [k for k in range(model.num_heads) if (layer, k + 1) not in heads]
        Z = block.sparsify(Z + literal_move(block.compress.operator, block.compress.norm(Z), on))
        for at, j in atoms:
            if at == layer:
                Z[:, :, j - 1] = 0
        tokens.append(Z)
    return tokens, model.forward_head(Z)


def check(model, heads=(), atoms=()):
    """Compare with the definition; the network's own recording, and that of the copy."""
    recordings = record(model, IMAGES), record(ablated(model, heads, atoms), IMAGES)
    for recording, off in zip(recordings, ({}, {"heads": heads, "atoms": atoms}), strict=True):
        with torch.no_grad():
            tokens, logits = literal(model, IMAGES, **off)
        torch.testing.assert_close(recording.logits, logits, rtol=1e-9, atol=1e-10)
        for step, expected in zip(recording.steps, tokens, strict=True):
            torch.testing.assert_close(step.Z_next, expected, rtol=1e-8, atol=1e-10)
    return recordings


def importance_of(model, images):
    return head_importance(model, [step.Z for step in record(model, images).steps])


@pytest.mark.parametrize("pool", ["token", "avg"])
@pytest.mark.parametrize("compress", own(compressions))
def test_heads_against_the_definition(compress, pool):
    model = small(compress=compress, global_pool=pool, dtype=torch.float64)
    before, after = check(model, heads=[(2, 3)])
    changed = [(one.Z_next != other.Z_next).any().item() for one, other in zip(before.steps, after.steps, strict=True)]
    assert changed == [False, True, True]
    assert (before.logits != after.logits).any(-1).all()
    check(model, heads=[(1, 1), (3, 4), (3, 2), (3, 2)])


@pytest.mark.parametrize("pool", ["token", "avg"])
@pytest.mark.parametrize("sparsify", ["ista", "ista_unrolled", "prox_mm"])
def test_atoms_against_the_definition(sparsify, pool):
    model = small(sparsify=sparsify, global_pool=pool, dtype=torch.float64)
    before, after = check(model, atoms=[(2, 5)])
    assert torch.equal(before.steps[0].Z_next, after.steps[0].Z_next)
    assert (before.steps[1].code.count_nonzero() > after.steps[1].code.count_nonzero()).all()
    check(model, atoms=[(1, 1), (3, 24), (3, 2)], heads=[(2, 4)])
    without = ablated(model, atoms=[(2, 5), (2, 6)])
    _, second, third = record(without, IMAGES).steps
    assert (second.Z_next[..., 4:6] == 0).all()
    assert (third.Z_next[..., 4] != 0).any()
    assert len(top_patches(second, 5)) == 0


def test_a_single_head_without_an_output_map():
    model = small(num_heads=1, dtype=torch.float64)
    assert model.blocks[0].compress.operator.W is None
    check(model, heads=[(2, 1)])
    without = ablated(model, heads=[(2, 1)])
    with torch.no_grad():
        step = list(trajectory(without, IMAGES))[1]
    assert torch.equal(step.Z_half, step.Z)


def test_all_heads_of_a_layer_leave_the_bias():
    model = small(dtype=torch.float64)
    without = ablated(model, heads=[(1, k) for k in range(1, 5)])
    with torch.no_grad():
        step = next(trajectory(without, IMAGES))
    torch.testing.assert_close(step.Z_half - step.Z, model.blocks[0].compress.operator.W.bias.expand_as(step.Z))


def test_the_original_is_left_as_it_was():
    model = small(drop_rate=0.5, attn_drop_rate=0.5, dtype=torch.float64)
    state = {name: weight.clone() for name, weight in model.state_dict().items()}
    with torch.no_grad():
        logits = model(IMAGES)
    without = ablated(model, heads=[(1, 2)], atoms=[(2, 3)])
    assert not torch.equal(record(without, IMAGES).logits, logits)
    importance_of(model, IMAGES)
    with torch.no_grad():
        assert torch.equal(model(IMAGES), logits)
    assert all(torch.equal(weight, state[name]) for name, weight in model.state_dict().items())
    assert all(a is b for a, b in zip(model.parameters(), without.parameters(), strict=True))
    assert [model.blocks[i].compress.operator.name for i in range(3)] == ["mssa"] * 3


def test_what_goes_by_the_name_does_not_mistake_the_copy():
    without = ablated(small(), heads=[(1, 2), (1, 1)])
    assert without.blocks[0].compress.operator.name == "mssa without heads 1, 2"
    with pytest.raises(ValueError, match="a network with heads switched off does not fold"):
        without.fold()
    without = ablated(small(), atoms=[(1, 2)])
    with pytest.raises(ValueError, match="ista without coordinates 2 does not fold"):
        without.fold()
    model = small(dtype=torch.float64)
    without = ablated(model, heads=[(1, 2)])
    theirs, ours = (attention_rows(record(network, IMAGES).steps[0], 0) for network in (without, model))
    assert torch.equal(theirs, ours)  # maps remain


@pytest.mark.parametrize("compress", ["mssa", "mssa_tied", "mixture_step"])
def test_copies_of_copies(compress):
    model = small(compress=compress, dtype=torch.float64)
    once = ablated(model, heads=[(2, 1), (2, 3)], atoms=[(1, 4), (1, 6)])
    twice = ablated(ablated(model, heads=[(2, 1)], atoms=[(1, 4)]), heads=[(2, 3)], atoms=[(1, 6)])
    with torch.no_grad():
        assert torch.equal(once(IMAGES), twice(IMAGES))


def test_training_mode_takes_the_first_token_alone():
    """In training the last layer computes only the class token, also without a head or an atom."""
    model = small(dtype=torch.float64)
    for parts in ({"heads": [(3, 1)]}, {"atoms": [(3, 1)]}):
        without = ablated(model, **parts)
        with torch.no_grad():
            torch.testing.assert_close(without.train()(IMAGES), without.eval()(IMAGES))


def test_the_divergence_against_scipy():
    model = small(dtype=torch.float64)
    logits, after = (record(network, IMAGES).logits for network in (model, ablated(model, [(1, 1), (1, 2), (1, 3)])))
    before_p, log_before, log_after = softmax(logits, 1), log_softmax(logits, 1), log_softmax(after, 1)
    np.testing.assert_allclose(divergence(logits, after), (before_p * (log_before - log_after)).sum(1), rtol=1e-9)
    assert not divergence(logits, logits).any()


@pytest.mark.parametrize("pool", ["token", "avg"])
def test_importance_is_what_ablation_finds(pool, monkeypatch):
    model = small(global_pool=pool, dtype=torch.float64)
    with torch.no_grad():
        model.blocks[1].compress.operator.UT[6:12] = 0  # head 2 of layer 2 is dead
        logits = model(IMAGES)
    importance = importance_of(model, IMAGES)
    assert importance.shape == (3, 4)
    for layer in range(3):
        for k in range(4):
            after = record(ablated(model, heads=[(layer + 1, k + 1)]), IMAGES).logits
            alone = divergence(logits, after).mean().item()
            assert importance[layer, k].item() == pytest.approx(alone, rel=1e-9, abs=1e-15)
    assert importance[1, 1] < 1e-15
    assert (importance[0] > 1e-6).all()
    monkeypatch.setattr(ablation, "TOGETHER", 3)  # one picture with its four heads
    torch.testing.assert_close(importance_of(model, IMAGES), importance)


def test_importance_takes_the_head_off_by_the_definition():
    model = small(dtype=torch.float64)
    with torch.no_grad():
        logits, after = literal(model, IMAGES)[1].numpy(), literal(model, IMAGES, heads=[(2, 4)])[1].numpy()
    kl = (softmax(logits, 1) * (log_softmax(logits, 1) - log_softmax(after, 1))).sum(1).mean()
    assert importance_of(model, IMAGES)[1, 3].item() == pytest.approx(kl, rel=1e-7)


def test_nothing_off_changes_nothing():
    model = small()
    assert torch.equal(record(ablated(model), IMAGES.float()).logits, record(model, IMAGES.float()).logits)


def test_half_precision_and_one_constant_picture():
    model, images = small(dtype=torch.float16), torch.zeros(1, 3, 16, 16, dtype=torch.float16)
    before, after = record(model, images), record(ablated(model, heads=[(1, 1)], atoms=[(2, 2)]), images)
    assert (before.steps[0].Z_next != after.steps[0].Z_next).any()
    assert divergence(before.logits, after.logits).isfinite().all()


def test_any_size_of_picture():
    model, images = small(dtype=torch.float64, dynamic_img_size=True), random(2, 3, 8, 20)
    assert importance_of(model, images).isfinite().all()


def test_bad_input_is_one_sentence():
    model = small(dtype=torch.float64)
    with pytest.raises(ValueError, match="layer must be a whole number from 1 to 3, got 4"):
        ablated(model, heads=[(4, 1)])
    with pytest.raises(ValueError, match="head must be a whole number from 1 to 4, got 0"):
        ablated(model, heads=[(1, 0)])
    with pytest.raises(ValueError, match="coordinate must be a whole number from 1 to 24, got 25"):
        ablated(model, atoms=[(1, 25)])
    with torch.no_grad():
        model.head.weight.fill_(torch.nan)
    with pytest.raises(ValueError, match="the classifier's output holds NaN or infinite values"):
        importance_of(model, IMAGES)


@pytest.mark.unhooked
def test_a_network_has_layers_and_numbers_are_whole():
    with pytest.raises(ValueError, match="ablated needs a network with `embed` and `layers`, got Linear"):
        ablated(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"head must be a whole number from 1 to 4, got 1\.5"):
        ablated(small(), heads=[(1, 1.5)])
