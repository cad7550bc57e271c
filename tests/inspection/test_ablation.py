import numpy as np
import pytest
import torch
from scipy.special import log_softmax, softmax

from opencrate import trajectory
from opencrate.inspection import views
from opencrate.inspection.ablation import ablate, ablated, head_importance
from opencrate.inspection.views import attention_of, top_patches
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
    found = ablate(model, IMAGES, heads, atoms)
    with torch.no_grad():
        before, logits = literal(model, IMAGES)
        after, logits_after = literal(model, IMAGES, heads, atoms)
    torch.testing.assert_close(found.logits, logits, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(found.logits_after, logits_after, rtol=1e-9, atol=1e-10)
    for l, (old, new) in enumerate(zip(before, after, strict=True)):
        old, new = old.numpy(), new.numpy()
        change = [np.linalg.norm(b - a) / np.linalg.norm(a) for a, b in zip(old, new, strict=True)]
        np.testing.assert_allclose(found.tokens[l].numpy(), change, rtol=1e-8, atol=1e-12)
        np.testing.assert_allclose(found.nonzero[l].numpy(), ((new > 0) * 1.0 - (old > 0)).mean((1, 2)), atol=1e-12)
    return found


@pytest.mark.parametrize("pool", ["token", "avg"])
@pytest.mark.parametrize("compress", own(compressions))
def test_heads_against_the_definition(compress, pool):
    model = small(compress=compress, global_pool=pool, dtype=torch.float64)
    found = check(model, heads=[(2, 3)])
    assert found.tokens[0].tolist() == [0] * 4
    assert found.nonzero[0].tolist() == [0] * 4
    assert (found.tokens[1:] > 0).all()
    assert (found.logits != found.logits_after).any(-1).all()
    check(model, heads=[(1, 1), (3, 4), (3, 2), (3, 2)])


@pytest.mark.parametrize("pool", ["token", "avg"])
@pytest.mark.parametrize("sparsify", ["ista", "ista_unrolled", "prox_mm"])
def test_atoms_against_the_definition(sparsify, pool):
    model = small(sparsify=sparsify, global_pool=pool, dtype=torch.float64)
    found = check(model, atoms=[(2, 5)])
    assert found.tokens[0].tolist() == [0] * 4
    assert found.nonzero[0].tolist() == [0] * 4
    assert (found.nonzero[1] < 0).all()
    check(model, atoms=[(1, 1), (3, 24), (3, 2)], heads=[(2, 4)])
    without = ablated(model, atoms=[(2, 5), (2, 6)])
    with torch.no_grad():
        codes = [step.Z_next for step in trajectory(without, IMAGES)]
    assert (codes[1][..., 4:6] == 0).all()
    assert (codes[2][..., 4] != 0).any()
    assert len(top_patches(without, IMAGES, 2, 5)) == 0


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
    model.train()
    without = ablated(model, heads=[(1, 2)], atoms=[(2, 3)])
    first, second = (ablate(model, IMAGES, heads=[(1, 2)], atoms=[(2, 3)]) for _ in range(2))
    head_importance(model, IMAGES)
    assert all(module.training for module in model.modules())
    model.eval()
    with torch.no_grad():
        assert torch.equal(model(IMAGES), logits)
        torch.testing.assert_close(without.eval()(IMAGES), first.logits_after)
    assert all(torch.equal(weight, state[name]) for name, weight in model.state_dict().items())
    assert torch.equal(first.logits, logits)
    assert torch.equal(first.logits_after, second.logits_after)  # without dropout
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
    torch.testing.assert_close(attention_of(without, IMAGES)[0], attention_of(model, IMAGES)[0])  # maps remain


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


def test_probabilities_and_classes():
    found = ablate(small(dtype=torch.float64), IMAGES, heads=[(1, k) for k in (1, 2, 3)])
    before, after = found.logits.numpy(), found.logits_after.numpy()
    np.testing.assert_allclose(found.probabilities.numpy(), softmax(after, 1) - softmax(before, 1), atol=1e-12)
    assert found.predicted.tolist() == before.argmax(1).tolist()
    assert found.predicted_after.tolist() == after.argmax(1).tolist()
    kl = (softmax(before, 1) * (log_softmax(before, 1) - log_softmax(after, 1))).sum(1)
    np.testing.assert_allclose(found.divergence.numpy(), kl, rtol=1e-9)


@pytest.mark.parametrize("pool", ["token", "avg"])
def test_importance_is_what_ablation_finds(pool, monkeypatch):
    model = small(global_pool=pool, dtype=torch.float64)
    with torch.no_grad():
        model.blocks[1].compress.operator.UT[6:12] = 0  # head 2 of layer 2 is dead
    importance = head_importance(model, IMAGES)
    assert importance.shape == (3, 4)
    for layer in range(3):
        for k in range(4):
            alone = ablate(model, IMAGES, heads=[(layer + 1, k + 1)]).divergence.mean().item()
            assert importance[layer, k].item() == pytest.approx(alone, rel=1e-9, abs=1e-15)
    assert importance[1, 1] < 1e-15
    assert (importance[0] > 1e-6).all()
    whole = ablate(model, IMAGES, heads=[(2, 1)])
    monkeypatch.setattr(views, "TOGETHER", 3)  # one picture with its four heads, three without
    torch.testing.assert_close(head_importance(model, IMAGES), importance)
    parts = ablate(model, IMAGES, heads=[(2, 1)])
    for name in ("logits", "logits_after", "tokens", "nonzero"):
        torch.testing.assert_close(getattr(parts, name), getattr(whole, name))


def test_importance_takes_the_head_off_by_the_definition():
    model = small(dtype=torch.float64)
    with torch.no_grad():
        logits, after = literal(model, IMAGES)[1].numpy(), literal(model, IMAGES, heads=[(2, 4)])[1].numpy()
    kl = (softmax(logits, 1) * (log_softmax(logits, 1) - log_softmax(after, 1))).sum(1).mean()
    assert head_importance(model, IMAGES)[1, 3].item() == pytest.approx(kl, rel=1e-7)


def test_nothing_off_changes_nothing():
    found = ablate(small(), IMAGES)
    assert torch.equal(found.logits, found.logits_after)
    assert not found.tokens.any()
    assert not found.divergence.any()


def test_half_precision_one_constant_picture_and_dead_layers():
    found = ablate(small(dtype=torch.float16), torch.zeros(1, 3, 16, 16), heads=[(1, 1)], atoms=[(2, 2)])
    assert all(part.isfinite().all() for part in (found.tokens, found.nonzero, found.probabilities, found.divergence))
    assert (found.tokens[0] > 0).all()
    model = small(dtype=torch.float64)
    with torch.no_grad():
        sparsify = model.blocks[1].sparsify
        sparsify.norm.weight.zero_()
        sparsify.norm.bias.fill_(-1)  # a negative constant, of which ISTA leaves nothing
        sparsify.operator.D.zero_()
    dead = ablate(model, IMAGES, heads=[(1, 1)])
    assert (dead.tokens[0] > 0).all()
    assert not dead.tokens[1:].any()  # 0/0 of tokens that are all 0


def test_any_size_of_picture():
    model, images = small(dtype=torch.float64, dynamic_img_size=True), random(2, 3, 8, 20)
    assert ablate(model, images, heads=[(1, 1)]).tokens.shape == (3, 2)
    assert head_importance(model, images).isfinite().all()


def test_bad_input_is_one_sentence():
    model = small(dtype=torch.float64)
    with pytest.raises(ValueError, match="layer must be a whole number from 1 to 3, got 4"):
        ablated(model, heads=[(4, 1)])
    with pytest.raises(ValueError, match="head must be a whole number from 1 to 4, got 0"):
        ablate(model, IMAGES, heads=[(1, 0)])
    with pytest.raises(ValueError, match="coordinate must be a whole number from 1 to 24, got 25"):
        ablate(model, IMAGES, atoms=[(1, 25)])
    with pytest.raises(ValueError, match="no pictures"):
        ablate(model, IMAGES[:0], heads=[(1, 1)])
    with pytest.raises(ValueError, match="the network has no classifier"):
        ablate(small(num_classes=0), IMAGES, heads=[(1, 1)])
    with pytest.raises(ValueError, match="global_pool=''"):
        head_importance(small(global_pool=""), IMAGES)
    with torch.no_grad():
        model.head.weight.fill_(torch.nan)
    with pytest.raises(ValueError, match="the classifier's output holds NaN or infinite values"):
        head_importance(model, IMAGES)


@pytest.mark.unhooked
def test_pairs_are_pairs_and_a_network_is_a_crate():
    with pytest.raises(ValueError, match="only a CRATE can be looked into, got Linear"):
        ablated(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"heads must be pairs such as \[\(1, 2\)\].*, got 1"):
        ablate(small(), IMAGES, heads=(1, 2))
    with pytest.raises(ValueError, match=r"head must be a whole number from 1 to 4, got 1\.5"):
        ablated(small(), heads=[(1, 1.5)])
