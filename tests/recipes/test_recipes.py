"""The recipes: the paper's values, and that each builds what it says."""

import math
from dataclasses import replace

import pytest
import timm.optim
import torch
from torchvision import transforms as T

import opencrate
from opencrate.data import Augmentation
from opencrate.data.augment.transforms import training_transform
from opencrate.recipes import FINETUNING, RECIPES, Model, Optim, Recipe, Schedule, differences, named, tiny_imagenet
from opencrate.training import Options
from opencrate.training.building import build_model, build_optimizer, build_schedule
from tests.networks import small

EVERY = {**RECIPES, **{f"finetune_{name}": maker for name, maker in FINETUNING.items()}}

# Table 1 of the paper, and the parameters of its networks.
TABLE_1 = {
    "imagenet1k_tiny": ("crate_tiny_patch16_224", 66.7, 6_090_856),
    "imagenet1k_small": ("crate_small_patch16_224", 69.2, 13_116_328),
    "imagenet1k_base": ("crate_base_patch16_224", 70.8, 22_796_008),
    "imagenet1k_large": ("crate_large_patch16_224", 71.3, 77_641_192),
    "imagenet1k_vit_tiny": ("vit_tiny_patch16_224", 71.5, 5_717_416),
    "imagenet1k_vit_small": ("vit_small_patch16_224", 72.4, 22_050_664),
}

# The paper's ablations of CRATE-Base: the field, its value, the accuracy.
ABLATIONS = {
    "eta_0.02": ("model.sparsify_args", {"eta": 0.02, "lam": 0.1}, 70.7),
    "eta_0.5": ("model.sparsify_args", {"eta": 0.5, "lam": 0.1}, 66.7),
    "lam_0.02": ("model.sparsify_args", {"eta": 0.1, "lam": 0.02}, 70.8),
    "lam_0.5": ("model.sparsify_args", {"eta": 0.1, "lam": 0.5}, 70.5),
    "epochs_90": ("schedule.epochs", 90, 69.5),
    "epochs_300": ("schedule.epochs", 300, 70.9),
    "wd_1.0": ("optim.weight_decay", 1.0, 70.3),
    "wd_0.05": ("optim.weight_decay", 0.05, 70.2),
    "lr_4.8e-4": ("optim.lr", 4.8e-4, 70.2),
    "lr_1.2e-4": ("optim.lr", 1.2e-4, 70.3),
    "mssa_tied": ("model.compress", "mssa_tied", 63.3),
    "prox_mm": ("model.sparsify", "prox_mm", 68.6),
}


def on_meta(recipe: Recipe) -> torch.nn.Module:
    """The recipe's network without memory for its weights; fine-tuning's is CRATE-Base for its classes."""
    if recipe.model.start:
        recipe = replace(recipe, model=Model("crate_base_patch16_224"))
    with torch.device("meta"):
        return build_model(recipe)


@pytest.mark.parametrize("name", EVERY)
def test_every_recipe_builds_its_parts(name):
    recipe = EVERY[name]()
    assert recipe.name == name
    assert recipe.expected.source
    model = on_meta(recipe)
    assert model.num_classes == recipe.data.num_classes
    images = torch.empty(2, recipe.data.in_chans, recipe.data.size, recipe.data.size, device="meta")
    assert model(images).shape == (2, recipe.data.num_classes)

    optimizer = build_optimizer(recipe, model)
    assert type(optimizer) is {"lion": timm.optim.Lion, "adamw": torch.optim.AdamW}[recipe.optim.name]
    decayed = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
    assert decayed == {id(weight) for weight in model.parameters()}
    assert {(group["lr"], group["weight_decay"]) for group in optimizer.param_groups} == {
        (recipe.optim.lr, recipe.optim.weight_decay)
    }

    picture = T.ToPILImage()(torch.zeros(recipe.data.in_chans, 40, 30))
    prepared = training_transform(recipe.data, recipe.augment)(picture)
    assert prepared.dtype == torch.uint8
    assert prepared.shape == (recipe.data.in_chans, recipe.data.size, recipe.data.size)


@pytest.mark.parametrize("name", EVERY)
def test_the_learning_rate_over_time(name):
    """Linear from 0 to the peak, then lr (1 + cos πt)/2 for t from 0 to 1."""
    recipe, steps = EVERY[name](), 10
    optimizer = build_optimizer(recipe, torch.nn.Linear(1, 1))
    schedule = build_schedule(recipe, optimizer, steps)
    peak = recipe.optim.lr
    warmup, total = recipe.schedule.warmup_epochs * steps, recipe.schedule.epochs * steps

    def rate(step):
        schedule.step_update(step)
        return optimizer.param_groups[0]["lr"]

    assert rate(0) == 0
    assert rate(warmup) == peak
    assert rate((warmup + total) // 2) == pytest.approx(peak / 2, rel=1e-12)
    for step in range(0, total, 7):
        formula = peak * step / warmup
        if step >= warmup:
            formula = peak * (1 + math.cos(math.pi * (step - warmup) / (total - warmup))) / 2
        assert rate(step) == pytest.approx(formula, rel=1e-9)
    assert 0 < rate(total - 1) < 1e-4 * peak
    assert rate(total) == 0


def test_the_ends_of_a_schedule_can_be_set():
    recipe = replace(EVERY["digits"](), schedule=Schedule(epochs=4, warmup_epochs=2, warmup_lr=1e-6, min_lr=1e-5))
    optimizer = build_optimizer(recipe, torch.nn.Linear(1, 1))
    schedule = build_schedule(recipe, optimizer, 5)
    rates = {}
    for step in (0, 5, 10, 15, 20):
        schedule.step_update(step)
        rates[step] = optimizer.param_groups[0]["lr"]
    peak = recipe.optim.lr
    assert rates == pytest.approx({0: 1e-6, 5: (1e-6 + peak) / 2, 10: peak, 15: (1e-5 + peak) / 2, 20: 1e-5}, rel=1e-12)


@pytest.mark.parametrize("name", TABLE_1)
def test_imagenet_as_in_the_paper(name):
    network, top1, parameters = TABLE_1[name]
    recipe = RECIPES[name]()
    assert recipe.model == Model(network)
    assert recipe.expected.top1 == top1
    assert recipe.expected.source.endswith("paper, table 1")
    assert recipe.optim == Optim("lion", lr=2.4e-4, weight_decay=0.5, batch=2048, decay="all", clip=0.0, ema=0.0)
    assert recipe.schedule == Schedule(epochs=150, warmup_epochs=5, warmup_lr=0.0, min_lr=0.0)
    assert recipe.label_smoothing == 0.1
    assert (recipe.data.size, recipe.data.num_classes) == (224, 1000)
    steps = training_transform(recipe.data, recipe.augment).transforms
    assert [type(step) for step in steps] == [T.RandomResizedCrop, T.RandomHorizontalFlip, T.PILToTensor]
    assert not recipe.augment.mixes
    assert sum(weight.numel() for weight in on_meta(recipe).parameters()) == parameters


@pytest.mark.parametrize("key", ABLATIONS)
def test_an_ablation_differs_in_one_field(key):
    path, value, top1 = ABLATIONS[key]
    recipe, base = RECIPES[f"imagenet1k_base_{key}"](), RECIPES["imagenet1k_base"]()
    part, name = path.split(".")
    assert recipe == replace(
        base,
        name=f"imagenet1k_base_{key}",
        expected=recipe.expected,
        **{part: replace(getattr(base, part), **{name: value})},
    )
    assert recipe.expected.top1 == top1


def test_the_ablations_are_all_of_the_papers():
    assert {name for name in RECIPES if name.startswith("imagenet1k")} == {
        *TABLE_1,
        *(f"imagenet1k_base_{key}" for key in ABLATIONS),
    }


@pytest.mark.parametrize(
    ("name", "classes", "top1"),
    [("cifar10", 10, 96.8), ("cifar100", 100, 82.7), ("flowers102", 102, 88.7), ("pets", 37, 85.3)],
)
def test_finetuning_as_in_the_paper(name, classes, top1):
    recipe = FINETUNING[name]()
    assert recipe.optim == Optim("adamw", lr=5e-5, weight_decay=0.01, batch=512)
    assert (recipe.data.size, recipe.data.num_classes, recipe.expected.top1) == (224, classes, top1)
    first = training_transform(recipe.data, recipe.augment).transforms[0]
    assert isinstance(first, T.RandAugment)
    assert (first.num_ops, first.magnitude) == (2, 14)


def test_fashion_mnist_is_finetuned_with_crop_and_flip_alone():
    recipe = FINETUNING["fashion_mnist"]()
    assert (recipe.augment, recipe.data.size, recipe.schedule.epochs) == (Augmentation(crop="padded"), 32, 20)
    assert recipe.expected.top1 is None


@pytest.mark.parametrize("network", ["crate_tiny_patch4_32", "vit_tiny_patch16_224"])
def test_matrices_alone_can_be_decayed(network):
    recipe = replace(RECIPES["cifar10_tiny"](), model=Model(network, patch_size=4), optim=Optim(decay="matrices"))
    model = on_meta(recipe)
    optimizer = build_optimizer(recipe, model)
    decays = {id(weight): group["weight_decay"] for group in optimizer.param_groups for weight in group["params"]}
    for name, weight in model.named_parameters():
        matrix = weight.ndim >= 2 and name not in ("cls_token", "pos_embed")
        assert decays[id(weight)] == (0.5 if matrix else 0.0), name
    assert {decays[id(model.cls_token)], decays[id(model.pos_embed)]} == {0.0}


@pytest.mark.parametrize("name", EVERY)
def test_what_is_compiled_and_recorded_by_default(name):
    """On CUDA all but the digits, on a CPU none. In 0.1 recipes said so, but four fine-tunings were not recorded."""
    precision = EVERY[name]().precision
    for choice in (Options().compiles, Options().records):
        assert choice("cuda", precision) == (name != "digits")
        assert not choice("cpu", precision)
    assert Options(compile="on").compiles("cpu", precision)
    assert not Options(graphs="off").records("cuda", precision)


def test_an_unknown_recipe():
    with pytest.raises(ValueError, match=r"^unknown recipe 'cifar10_tny'; did you mean 'cifar10_tiny'\?$"):
        named("cifar10_tny", RECIPES)


# fine-tuning starts from a checkpoint

NAMES = ("ant", "bee", "cat", "dog", "eel")


def finetuning(start, classes=5, size=16, channels=3, **model) -> Recipe:
    base = FINETUNING["fashion_mnist"]()
    stretch = {"mean": (0.5,) * channels, "std": (0.5,) * channels}
    data = replace(base.data, num_classes=classes, size=size, in_chans=channels, **stretch)
    return replace(base, model=Model(start=str(start), **model), data=data)


@pytest.fixture
def checkpoint(tmp_path):
    """A small network for five named classes, as a run would save it."""
    model = small()
    model.pretrained_cfg = {"architecture": "crate_tiny_patch4_32", "label_names": NAMES}
    return opencrate.save_pretrained(model, tmp_path / "model")


def body(model):
    return {name: weight for name, weight in model.state_dict().items() if not name.startswith("head.")}


def test_the_classifier_is_kept_for_the_same_classes(checkpoint):
    model = build_model(finetuning(checkpoint), NAMES)
    assert model.training
    assert model.state_dict().keys() == small().state_dict().keys()
    assert all(torch.equal(model.state_dict()[name], weight) for name, weight in small().state_dict().items())
    assert model.pretrained_cfg["label_names"] == NAMES


@pytest.mark.parametrize(
    "rows", [[4, 3, 2, 1, 0], [3, 0, 2]], ids=["the same in another order", "some, as folders are named"]
)
def test_the_classifier_keeps_the_rows_of_classes_that_it_knows(checkpoint, rows):
    model = build_model(finetuning(checkpoint, classes=len(rows)), tuple(NAMES[row].upper() for row in rows))
    assert torch.equal(model.head.weight, small().head.weight[rows])
    assert torch.equal(model.head.bias, small().head.bias[rows])
    assert model.num_classes == len(rows)
    assert model.start_note == f"the classifier keeps the rows of {len(rows)} of the checkpoint's 5 classes, by name"
    assert model(torch.zeros(2, 3, 16, 16)).shape == (2, len(rows))


@pytest.mark.parametrize("names", [("ant", "bee", "yak"), tuple("01234"), ()], ids=["one other", "numbers", "unnamed"])
def test_the_classifier_is_replaced_for_other_classes(checkpoint, names):
    model = build_model(finetuning(checkpoint, classes=len(names) or 7), names)
    assert model.head.weight.shape == (len(names) or 7, 24)
    assert model.num_classes == (len(names) or 7)
    assert not torch.equal(model.head.weight[:3], small().head.weight[:3])
    assert all(torch.equal(weight, body(small())[name]) for name, weight in body(model).items())


def test_positions_are_interpolated_to_another_size(checkpoint):
    model = build_model(finetuning(checkpoint, size=24), NAMES)
    assert model(torch.zeros(1, 3, 24, 24)).shape == (1, 5)
    old = small().pos_embed.detach()
    grid = old[:, 1:].reshape(1, 4, 4, 24).permute(0, 3, 1, 2)
    wanted = torch.nn.functional.interpolate(grid, (6, 6), mode="bicubic", antialias=True)
    torch.testing.assert_close(model.pos_embed[:, 1:].detach(), wanted.permute(0, 2, 3, 1).flatten(1, 2))
    assert torch.equal(model.pos_embed[:, :1], old[:, :1])
    assert model.pretrained_cfg["input_size"] == (3, 24, 24)


def test_what_was_finetuned_is_saved_and_loaded_again(checkpoint, tmp_path):
    model = build_model(finetuning(checkpoint, classes=3, size=24), NAMES[:3]).eval()
    again = opencrate.load(opencrate.save_pretrained(model, tmp_path / "tuned"))
    images = torch.randn(2, 3, 24, 24)
    assert torch.equal(again(images), model(images))
    assert tuple(again.pretrained_cfg["label_names"]) == NAMES[:3]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"start": "CHECKPOINT"}, "fine-tuning starts from a checkpoint: opencrate finetune RECIPE RUN_OR_CHECKPOINT"),
        ({"start": "/no/such/run"}, "/no/such/run does not exist"),
        ({"channels": 1}, "the checkpoint's network takes pictures of 3 channels, but the recipe has 1"),
        ({"depth": 2}, "model.depth cannot be changed: the network is the checkpoint's"),
        (
            {"name": "crate_base_patch16_224"},
            "model.name is crate_base_patch16_224, but the checkpoint holds a crate_tiny_patch4_32: leave it out",
        ),
        ({"size": 17}, "img_size 17 is not divisible by patch_size 4"),
    ],
    ids=str,
)
def test_one_sentence_for_what_cannot_be_finetuned(checkpoint, changes, sentence):
    with pytest.raises(ValueError) as caught:  # noqa: PT011, compared below
        build_model(finetuning(**{"start": checkpoint, **changes}))
    assert str(caught.value) == sentence


def test_tiny_imagenets_strong_recipe_is_the_same_for_all_networks():
    strong = [named(f"tiny_imagenet_{size}_strong", RECIPES) for size in tiny_imagenet.MODELS]
    assert [recipe.model for recipe in strong] == list(tiny_imagenet.MODELS.values())
    first = strong[0]
    assert all(replace(recipe, name=first.name, model=first.model) == first for recipe in strong)
    light = named("tiny_imagenet_tiny", RECIPES)
    assert (light.optim, light.data) == (first.optim, first.data)
    changed = [difference.split()[0] for difference in differences(light, first)]
    augmented = [f"augment.{name}" for name in ("scale", "randaugment", "mixup", "cutmix")]
    assert changed == [*augmented, "schedule.epochs", "schedule.warmup_epochs"]


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "flowers102", "pets"])
def test_finetuning_at_64_pixels_has_the_papers_settings(name):
    small, large = (named(f"{name}{size}", FINETUNING) for size in ("_64", ""))
    assert (small.data.size, small.data.num_classes) == (64, large.data.num_classes)
    assert (small.optim, small.augment) == (large.optim, large.augment)
