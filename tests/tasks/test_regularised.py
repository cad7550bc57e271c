"""The objective as a regulariser: its values and gradients, and that training with it does what it is for."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from opencrate import load, trajectory
from opencrate.data import Split
from opencrate.distributed import World
from opencrate.recipes import Model, Objective, read_recipe
from opencrate.tasks import Classification, Regularised, RegularisedNetwork
from opencrate.tasks.regularised import objective_per_token, orthogonality
from opencrate.training import Options, train
from opencrate.training.building import build_model, build_optimizer
from opencrate.training.step import Stepper
from tests.networks import small
from tests.runs import SMALL, command, interrupted_at, losses, metrics, small_options, small_recipe
from tests.strategies import random

IMAGES = random(6, 3, 16, 16)
ALL = Objective(0.3, (1, 3), eps=0.5, lam=0.2, orthogonal_U=0.7, orthogonal_D=0.4)


def by_numpy(Z, U, eps, lam):
    """[½ logdet(I + d/(nε²) ZZᵀ) − Σ_k ½ logdet(I + p/(nε²) ZU_kU_kᵀZᵀ) − λ Σ|Z|]/n of one sample."""

    def rate(V):
        n, dim = V.shape
        return 0.5 * np.linalg.slogdet(np.eye(n) + dim / (n * eps**2) * V @ V.T)[1]

    return (rate(Z) - sum(rate(Z @ U_k) for U_k in U) - lam * np.abs(Z).sum()) / len(Z)


def gap_by_numpy(frame):
    return np.linalg.norm(frame.T @ frame - np.eye(frame.shape[1])) ** 2 / frame.shape[1]


def terms_by_numpy(model, images, objective):
    """The three terms of a network, from its trajectory."""
    layers = [layer.detach().numpy() for layer in torch.stack([layer.U for layer in model.blocks])]
    with torch.no_grad():
        tokens = {step.number: step.Z_next.numpy() for step in trajectory(model, images)}
    values = [
        by_numpy(Z, layers[number - 1], objective.eps, objective.lam)
        for number in objective.layers or tokens
        for Z in tokens[number]
    ]
    return {
        "objective": np.mean(values),
        "orthogonal_U": np.mean([gap_by_numpy(U_k) for U in layers for U_k in U]),
        "orthogonal_D": np.mean([gap_by_numpy(layer.D.detach().numpy()) for layer in model.blocks]),
    }


# values and gradients


@pytest.mark.parametrize("n", [5, 17], ids=["fewer tokens than dimensions", "more"])
def test_the_objective_and_its_gradient_are_numpys(n):
    Z, U = random(3, n, 8), random(2, 8, 4, seed=1)
    value = objective_per_token(Z.requires_grad_(), U.requires_grad_(), 0.5, 0.3)
    expected = [by_numpy(sample, U.detach().numpy(), 0.5, 0.3) for sample in Z.detach().numpy()]
    np.testing.assert_allclose(value.detach(), expected, rtol=1e-12)
    value.sum().backward()
    for tensor in (Z, U):
        way, h = random(*tensor.shape, seed=2), 1e-5
        ends = []
        for side in (h, -h):
            with torch.no_grad():
                tensor += side * way
            ends.append(sum(by_numpy(sample, U.detach().numpy(), 0.5, 0.3) for sample in Z.detach().numpy()))
            with torch.no_grad():
                tensor -= side * way
        assert (tensor.grad * way).sum().item() == pytest.approx((ends[0] - ends[1]) / (2 * h), rel=1e-7)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_tokens_that_are_not_finite_have_an_objective_of_the_same_type(dtype):
    Z, U = random(3, 5, 8).to(dtype), random(2, 8, 4, seed=1).to(dtype)
    finite = objective_per_token(Z, U, 0.5, 0.3)
    Z[1, 2, 3] = torch.inf
    value = objective_per_token(Z, U, 0.5, 0.3)
    assert value.isnan().all()
    assert (value.dtype, value.shape) == (finite.dtype, finite.shape)


def test_orthogonality():
    frames = random(3, 6, 4)
    expected = [gap_by_numpy(frame) for frame in frames.numpy()]
    np.testing.assert_allclose(orthogonality(frames), expected, rtol=1e-12)
    np.testing.assert_allclose(orthogonality(frames.expand(2, 3, 6, 4)), [expected] * 2, rtol=1e-12)
    assert orthogonality(torch.linalg.qr(frames).Q).max() < 1e-28
    assert orthogonality(torch.zeros(6, 4)) == 1


@pytest.mark.parametrize("pool", ["token", "avg"])
@pytest.mark.parametrize("layers", [(), (1,), (3,), (1, 2)], ids=str)
def test_terms_and_logits_of_a_network(layers, pool):
    model = small(dtype=torch.float64, global_pool=pool).train()
    objective = replace(ALL, layers=layers)
    network = RegularisedNetwork(model, objective)
    assert network.measures_last_layer == (layers in ((), (3,)))
    assert not RegularisedNetwork(model, replace(objective, weight=0.0)).measures_last_layer
    logits, terms = network(IMAGES)
    torch.testing.assert_close(logits, model(IMAGES), rtol=1e-12, atol=1e-12)
    assert terms.keys() == objective.weights().keys()
    for name, value in terms_by_numpy(model, IMAGES, objective).items():
        assert terms[name].item() == pytest.approx(value, rel=1e-10), name


def test_only_terms_with_a_weight_are_computed():
    assert Objective(layers=(7,), eps=3.0).weights() == {}
    assert ALL.weights() == {"objective": -0.3, "orthogonal_U": 0.7, "orthogonal_D": 0.4}
    for changes in ({"weight": 0.3}, {"orthogonal_U": 0.7}, {"orthogonal_D": 0.4}):
        assert (
            RegularisedNetwork(small(), Objective(**changes))(IMAGES.float())[1].keys()
            == Objective(**changes).weights().keys()
        )


def stepper(objective, model, precision="fp32", parts=1):
    """A step of the engine on a network of the tests."""
    optimizer = build_optimizer(small_recipe(optim={"name": "sgd", "weight_decay": 0.0}), model)
    trained, task = model, Classification(5, label_smoothing=0.1)
    if objective.weights():
        trained, task = RegularisedNetwork(model, objective), Regularised(task, objective)
    world, split = World(0, 1, torch.device("cpu")), Split(len(IMAGES), parts)
    return Stepper(trained, optimizer, task, split, world, precision=precision)


def terms_of(outcome):
    """What was added to the loss, without its weight."""
    return {name: value for name, value in outcome.report.items() if name not in ("loss", "accuracy")}


def gradients(objective, parts=1, **settings):
    """The gradients of a step, in as many micro-batches as asked, and its outcome."""
    model = settings.pop("model", None) or small().train()
    targets, dtype = torch.arange(len(IMAGES)) % 5, model.cls_token.dtype
    batches = zip(IMAGES.to(dtype).chunk(parts), targets.chunk(parts), strict=True)
    outcome = stepper(objective, model, parts=parts, **settings).step(batches, 0)
    return {name: weight.grad for name, weight in model.named_parameters()}, outcome


def test_what_is_minimised_has_the_gradient_of_the_formula():
    """Cross-entropy − weight · objective + the orthogonality terms, by finite differences of what NumPy computes."""
    gradient_of, outcome = gradients(ALL, model=small(dtype=torch.float64).train())
    model, targets = small(dtype=torch.float64).train(), torch.arange(len(IMAGES)) % 5
    weights = dict(model.named_parameters())

    def minimised():
        with torch.no_grad():
            loss = cross_entropy(model(IMAGES), targets, label_smoothing=0.1).item()
        terms = terms_by_numpy(model, IMAGES, ALL)
        return loss - 0.3 * terms["objective"] + 0.7 * terms["orthogonal_U"] + 0.4 * terms["orthogonal_D"]

    assert terms_of(outcome) == pytest.approx(terms_by_numpy(model, IMAGES, ALL), rel=1e-6)
    for name in (
        "pos_embed",
        "blocks.0.compress.operator.UT",
        "blocks.1.sparsify.operator.D",
        "blocks.2.sparsify.operator.D",
    ):
        way, ends = random(*weights[name].shape, seed=3), []
        for side in (1e-6, -1e-6):
            with torch.no_grad():
                weights[name] += side * way
            ends.append(minimised())
            with torch.no_grad():
                weights[name] -= side * way
        assert (gradient_of[name] * way).sum().item() == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-5), name


def test_without_weights_a_step_is_what_it_was_to_the_bit():
    model, targets = small().train(), torch.arange(len(IMAGES)) % 5
    cross_entropy(model(IMAGES.float()), targets, label_smoothing=0.1).backward()
    gradient_of, outcome = gradients(Objective(layers=(1,), eps=0.5))
    assert terms_of(outcome) == {}
    assert all(torch.equal(weight.grad, gradient_of[name]) for name, weight in model.named_parameters())


def test_micro_batches_add_up():
    whole, outcome = gradients(ALL)
    parts, again = gradients(ALL, parts=3)
    assert terms_of(again) == pytest.approx(terms_of(outcome), rel=1e-6)
    assert again.loss == pytest.approx(outcome.loss, rel=1e-6)
    for name, gradient in whole.items():
        torch.testing.assert_close(parts[name], gradient, rtol=1e-4, atol=1e-6)


def test_half_precision():
    """The tokens are bfloat16's; the rates of them and the Gram matrices of weights are not."""
    full, outcome = gradients(ALL)
    half, again = gradients(ALL, precision="bf16")
    assert again.report["objective"] == pytest.approx(outcome.report["objective"], rel=0.02)
    for name in ("orthogonal_U", "orthogonal_D"):
        assert again.report[name] == outcome.report[name]
    for name in ("blocks.0.compress.operator.UT", "blocks.2.sparsify.operator.D", "pos_embed"):
        error = (half[name] - full[name]).norm() / full[name].norm()
        assert 0 < error < 0.05, name


def test_tokens_that_are_not_finite_skip_the_step():
    """Where the cross-entropy is finite: patches of the last layer do not reach the class token."""
    model = small().train()
    last = model.blocks[-1].sparsify
    last.register_forward_hook(lambda module, given, Z: torch.cat([Z[:, :-1], Z[:, -1:] * torch.inf], dim=1))
    before = [weight.clone() for weight in model.parameters()]
    _, outcome = gradients(Objective(0.1), model=model)
    assert np.isfinite(outcome.loss)
    assert np.isnan(outcome.report["objective"])
    assert not outcome.finite
    assert all(torch.equal(weight, old) for weight, old in zip(model.parameters(), before, strict=True))


# runs


def after(folder, **objective):
    """The network of a short run, and the three terms on the same pictures."""
    short = {"schedule": {"epochs": 3, "warmup_epochs": 0}, "optim": {"lr": 5e-3}, "probe": 0}
    recipe = small_recipe(objective=Objective(**objective), **short)
    train(recipe, small_options(folder, evaluate_epochs=3))
    model = load(folder / "model").double()
    return terms_by_numpy(model, random(16, 1, 16, 16), Objective(1.0))


@pytest.fixture(scope="module")
def without(tmp_path_factory):
    return after(tmp_path_factory.mktemp("without"))


def test_training_with_the_objective_raises_it(tmp_path, without):
    trained = after(tmp_path, weight=1.0, layers=(1, 2))
    objectives = [line["objective"] for line in metrics(tmp_path, "train")]
    assert np.mean(objectives[-9:]) > np.mean(objectives[:9]) + 0.1
    assert trained["objective"] > without["objective"] + 0.1


@pytest.mark.parametrize("name", ["orthogonal_U", "orthogonal_D"])
def test_training_with_orthogonality_lowers_the_gap(tmp_path, without, name):
    trained = after(tmp_path, **{name: 10.0})
    assert trained[name] < 0.8 * without[name]
    lines = metrics(tmp_path, "train")
    assert lines[-1][name] < 0.8 * lines[0][name]
    assert "objective" not in lines[0]


def test_a_run_in_micro_batches_goes_the_same_way(tmp_path):
    runs = []
    for micro_batch in (144, 36):
        recipe = small_recipe(objective=replace(ALL, layers=()), schedule={"epochs": 1, "warmup_epochs": 0}, probe=0)
        train(recipe, small_options(tmp_path / str(micro_batch), micro_batch=micro_batch))
        runs.append(metrics(tmp_path / str(micro_batch), "train"))
    for whole, parts in zip(*runs, strict=True):
        for name in ("loss", "objective", "orthogonal_U", "orthogonal_D"):
            assert parts[name] == pytest.approx(whole[name], abs=1e-5, rel=1e-5), name


def test_a_run_that_is_stopped_goes_on_to_the_bit(tmp_path, monkeypatch):
    recipe = small_recipe(objective=Objective(0.5, (2,), orthogonal_U=0.1), optim={"ema": 0.9})
    train(recipe, small_options(tmp_path / "whole"))
    with interrupted_at(13, monkeypatch):
        train(recipe, small_options(tmp_path / "stopped"))
    train(recipe, small_options(tmp_path / "stopped"))
    names = ("step", "loss", "objective", "orthogonal_U")
    whole, stopped = (
        [[line[name] for name in names] for line in metrics(tmp_path / run, "train")] for run in ("whole", "stopped")
    )
    assert stopped == whole
    assert metrics(tmp_path / "stopped", "validation")[-1] == metrics(tmp_path / "whole", "validation")[-1]
    assert load(tmp_path / "whole").state_dict().keys() == build_model(recipe).state_dict().keys()


def test_on_the_command_line_and_again_from_the_saved_recipe(tmp_path):
    short = ("--schedule.epochs", "1", "--schedule.warmup-epochs", "0", "--probe", "0")
    words = ["--objective.weight", "0.01", "--objective.layers", "1", "2", "--objective.orthogonal-U", "0.5"]
    code, printed = command([*SMALL, *short, "--out", tmp_path / "run", *words], tmp_path)
    assert code == 0, printed
    saved = read_recipe(tmp_path / "run" / "recipe.yaml")
    assert saved.objective == Objective(0.01, (1, 2), orthogonal_U=0.5)
    how = ["--out", tmp_path / "again", "--device", "cpu", "--log-steps", "1", "--no-tensorboard"]
    code, printed = command(["train", tmp_path / "run" / "recipe.yaml", *how], tmp_path)
    assert code == 0, printed
    assert losses(tmp_path / "again") == losses(tmp_path / "run")
    assert metrics(tmp_path / "run", "train")[0].keys() == {
        *("kind", "step", "epoch", "loss", "accuracy", "objective", "orthogonal_U", "images_per_second", "lr")
    }


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"objective": Objective(0.1, (1, 3))}, "objective.layers names layer 3, but the network has 2 layers"),
        (
            {"objective": Objective(orthogonal_D=0.1), "model": Model("test_vit", patch_size=4)},
            "objective.weight, orthogonal_U and orthogonal_D need a network with layers to walk, got VisionTransformer",
        ),
    ],
    ids=["layers", "baseline"],
)
def test_one_sentence_before_anything_is_trained(tmp_path, changes, sentence):
    with pytest.raises(ValueError) as caught:  # noqa: PT011, compared below
        train(small_recipe(**changes), small_options(tmp_path))
    assert str(caught.value) == sentence
    assert not (tmp_path / "metrics.jsonl").exists()


# on a CUDA device


@pytest.mark.gpu
@pytest.mark.unhooked
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # torch 2.11's own compiler's
@pytest.mark.parametrize("objective", [ALL, replace(ALL, weight=0.0)], ids=["objective", "orthogonality alone"])
def test_compiled_and_graphed_steps_are_those_of_single_kernels(tmp_path, objective):
    runs = []
    for number, how in enumerate(({}, {"graphs": "on"}, {"compile": "on", "graphs": "on"})):
        folder = tmp_path / str(number)
        options = Options(out=folder, device="cuda", log_steps=1, tensorboard=False, workers=0, **how)
        train(small_recipe(objective=replace(objective, layers=(1,))), options)
        names = ("loss", *objective.weights())
        runs.append([line[name] for line in metrics(folder, "train") for name in names])
    for again in runs[1:]:
        assert again == pytest.approx(runs[0], abs=1e-4, rel=1e-4)
