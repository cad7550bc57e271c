"""The plans: what each is made of, what is kept of it, and where its pictures are."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from PIL import Image

from opencrate.data import Augmentation, Dataset, open_feeds
from opencrate.data.datasets.packing import pack
from opencrate.data.opening import open_pictures
from opencrate.objective.rates import rate_scale
from opencrate.recipes import FINETUNING, RECIPES, Optim, Schedule, differences
from opencrate.training.building import build_model
from reproduction.claims import pairs_of
from reproduction.plan import LOOKS, PARTS
from reproduction.scales import SCALES, _dataset_in, plan_for

# What the paper varies, each as a factor or a value of its own setting.
TABLE_2 = {
    "eta_0.02": ("model.sparsify_args {} → {'eta': 0.02, 'lam': 0.1}",),
    "eta_0.5": ("model.sparsify_args {} → {'eta': 0.5, 'lam': 0.1}",),
    "lam_0.02": ("model.sparsify_args {} → {'eta': 0.1, 'lam': 0.02}",),
    "lam_0.5": ("model.sparsify_args {} → {'eta': 0.1, 'lam': 0.5}",),
    "epochs_90": ("schedule.epochs 60 → 36",),
    "epochs_300": ("schedule.epochs 60 → 120",),
    "wd_1.0": ("optim.weight_decay 0.5 → 1.0",),
    "wd_0.05": ("optim.weight_decay 0.5 → 0.05",),
    "lr_4.8e-4": ("optim.lr 0.00024 → 0.00048",),
    "lr_1.2e-4": ("optim.lr 0.00024 → 0.00012",),
}
TABLE_3 = {
    "mssa_tied": ("model.compress None → 'mssa_tied'", "model.compress_args {} → {'eps': 0.87}"),
    "prox_mm": ("model.sparsify None → 'prox_mm'", "model.sparsify_args {} → {'eps': 0.616}"),
    "prox_mm_tight": ("model.sparsify None → 'prox_mm_tight'", "model.sparsify_args {} → {'eps': 0.616}"),
    "softmax_step": ("model.compress None → 'softmax_step'", "model.compress_args {} → {'kappa': 0.1, 'eps': 0.87}"),
    "mssa_tied_short": ("model.compress None → 'mssa_tied'", "model.compress_args {} → {'eps': 2.415}"),
    "gradient_step": ("model.compress None → 'gradient_step'", "model.compress_args {} → {'eps': 0.87}"),
}
SIZES = ("CRATE-T", "CRATE-S", "CRATE-B", "ViT-T", "ViT-T+", "ViT-S")
TASKS = ("CIFAR-10", "CIFAR-10 → Fashion-MNIST", "Fashion-MNIST", "Fashion-MNIST → CIFAR-10")
ONCE = {*TABLE_2, *TABLE_3} - {"eta_0.5", "mssa_tied", "prox_mm"}  # what no claim is about


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Where nobody has put a folder `data`."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(params=SCALES)
def plan(request):
    return plan_for(request.param, {})


@pytest.fixture
def small():
    return plan_for("small", {})


def test_every_run_has_a_name_of_its_own_and_comes_after_its_start(plan):
    before = set()
    for run in plan.runs:
        assert run.key not in before
        assert run.start is None or run.start in before
        assert (run.start is None) == (" → " not in run.task) == (not run.recipe.model.start)
        before.add(run.key)


def test_every_part_has_runs(plan):
    """The paper has no strong recipe; Tiny-ImageNet has no ablations, and alone tells of frozen features and masks."""
    lacking = {
        "smoke": {"masks"},
        "small": {"probe", "masks"},
        "medium": {"table2", "table3"},
        "full": {"strong", "probe", "masks"},
    }[plan.scale]
    assert set().union(*(run.parts for run in plan.runs)) == set(PARTS) - lacking


def test_a_plan_is_told_in_a_line_for_every_run(plan):
    lines = plan.describe().splitlines()
    assert [line.split()[0] for line in lines[:-1]] == [run.key for run in plan.runs]
    assert lines[-1] == f"{len(plan.runs)} runs"


def test_only_some_parts(plan):
    kept = plan.only(["fig3", "audit"])
    assert {part for run in kept.runs for part in run.parts} == {"fig3", "audit"}
    assert [run.key for run in kept.runs] == [run.key for run in plan.runs if run.parts & {"fig3", "audit"}]
    assert all(set(run.looks) <= {"fig3", "audit"} for run in kept.runs)


def test_only_some_runs_and_what_they_start_from(small):
    kept = small.only((), ["fashion-mnist-to-*/crate-t/*/seed1", "*/vit-s/light/seed2"])
    assert [run.key for run in kept.runs] == [
        "fashion-mnist/crate-t/light/seed1",
        "fashion-mnist-to-cifar-10/crate-t/light/seed1",
        "cifar-10/vit-s/light/seed2",
        "cifar-10-to-fashion-mnist/vit-s/light/seed2",
        "fashion-mnist/vit-s/light/seed2",
        "fashion-mnist-to-cifar-10/vit-s/light/seed2",
    ]


def test_runs_of_the_first_pattern_come_first_behind_what_they_start_from(small):
    patterns = ["*/vit-s/mixed/*", "fashion-mnist-to-*/crate-b/lr*", "*/crate-b/lr*", "cifar-10/crate-t/lr*"]
    assert [run.key for run in small.only((), patterns).runs] == [
        "cifar-10/vit-s/mixed/seed0",
        "fashion-mnist/crate-b/lr_1.2e-4/seed0",  # which the third pattern names, too
        "fashion-mnist-to-cifar-10/crate-b/lr_1.2e-4/seed0",
        "cifar-10/crate-b/lr_1.2e-4/seed0",
        "cifar-10-to-fashion-mnist/crate-b/lr_1.2e-4/seed0",
        "cifar-10/crate-t/lr_1.2e-4/seed0",
        "cifar-10/crate-t/lr_4.8e-4/seed0",
    ]


def test_parts_and_patterns_together(small):
    kept = small.only(["table3"], ["*/seed2"])
    assert [run.variant for run in kept.runs] == ["light", *(name for name in TABLE_3 if name not in ONCE)]
    assert {run.recipe.seed for run in kept.runs} == {2}


def test_all_where_nothing_is_given(plan):
    assert plan.only() == plan


@pytest.mark.parametrize(
    ("parts", "patterns", "sentence"),
    [
        (["tabel1"], [], f"unknown part 'tabel1'; known: {', '.join(PARTS)}"),
        ([], ["cifar/*"], "no run of the plan matches cifar/*; --dry prints the names"),
        (["strong"], [], "scale full has no run for strong"),
        (["strong"], ["imagenet/*"], "scale full has no run for strong"),
        (["table3"], ["*/vit-t/*", "x"], "no run of table3 matches */vit-t/* or x; --dry prints the names"),
    ],
)
def test_one_sentence_where_nothing_is_left(parts, patterns, sentence):
    with pytest.raises(ValueError) as caught:  # noqa: PT011, compared below
        plan_for("full", {}).only(parts, patterns)
    assert str(caught.value) == sentence


def test_full_is_the_papers():
    """Four CRATE and two ViT, each fine-tuned on four sets, and the ablations of the base size, one seed."""
    runs = plan_for("full", {}).runs
    assert {run.recipe.seed for run in runs} == {0}
    scratch = [run for run in runs if run.start is None]
    registered = {name: maker() for name, maker in RECIPES.items() if name.startswith("imagenet1k")}
    assert {run.recipe.name: run.recipe for run in scratch} == registered
    assert len(scratch) == 4 + 2 + 10 + 2
    assert [run.model for run in runs if run.real] == ["CRATE-T", "CRATE-S", "CRATE-B", "CRATE-L", "ViT-T", "ViT-S"]
    assert all("real" in run.looks for run in runs if run.real)
    for run in scratch:
        optim, schedule = run.recipe.optim, run.recipe.schedule
        changed = {run.variant.partition("_")[0]} & {"epochs", "wd", "lr"}
        if not changed:
            assert optim == Optim("lion", lr=2.4e-4, weight_decay=0.5, batch=2048)
            assert schedule == Schedule(epochs=150, warmup_epochs=5)
    assert [run.variant for run in runs if run.parts == {"table2"}] == list(TABLE_2)
    assert [run.variant for run in runs if run.parts == {"table3"}] == ["mssa_tied", "prox_mm"]
    tuned = [run for run in runs if run.start is not None]
    names = ("cifar10", "cifar100", "flowers102", "pets")
    for size in ("crate-t", "crate-s", "crate-b", "crate-l", "vit-t", "vit-s"):
        of_size = [run.recipe for run in tuned if run.start == f"imagenet/{size}/light/seed0"]
        assert of_size == [
            replace(recipe := FINETUNING[n](), data=replace(recipe.data, root=f"data/{n}")) for n in names
        ]
        assert {recipe.optim for recipe in of_size} == {Optim("adamw", lr=5e-5, weight_decay=0.01, batch=512)}
    assert len(tuned) == 6 * 4


def test_small_has_pairs_of_equal_size(small):
    recipes = {run.model: run.recipe for run in small.runs if run.variant == "light" and run.start is None}
    pairs = pairs_of(small)
    assert pairs == [("CRATE-T", "ViT-T"), ("CRATE-S", "ViT-T+"), ("CRATE-B", "ViT-S")]
    for pair in pairs:
        sizes = []
        for model in pair:
            with torch.device("meta"):
                sizes.append(sum(weight.numel() for weight in build_model(recipes[model]).parameters()))
        assert abs(sizes[0] / sizes[1] - 1) < 0.03


def test_small_has_the_papers_settings_but_for_batch_and_epochs(small):
    light = next(run.recipe for run in small.runs)
    assert light.optim == Optim("lion", lr=2.4e-4, weight_decay=0.5, batch=512)
    assert (light.augment.randaugment, light.augment.mixes, light.label_smoothing) == ("", False, 0.1)
    assert (light.data.size, light.model.name) == (32, "crate_tiny_patch4_32")


def test_every_run_of_small_has_three_seeds_but_for_the_costly(small):
    seeds = {}
    for run in small.runs:
        seeds.setdefault((run.model, run.task, run.variant), []).append(run.recipe.seed)
    for model in ("CRATE-T", "ViT-T", "CRATE-B", "ViT-S"):
        assert seeds.pop((model, "CIFAR-10", "mixed")) == [0]
    for model, task in product(SIZES, TASKS):
        assert seeds.pop((model, task, "lr_1.2e-4")) == [0]
    for costly in ONCE - {"lr_1.2e-4"}:
        assert seeds.pop(("CRATE-T", "CIFAR-10", costly)) == [0]
    assert set(map(tuple, seeds.values())) == {(0, 1, 2)}
    for run in small.runs:
        start = next((other for other in small.runs if other.key == run.start), run)
        assert start.recipe.seed == run.recipe.seed


@pytest.mark.parametrize(("part", "table"), [("table2", TABLE_2), ("table3", TABLE_3)])
def test_small_varies_one_thing_at_a_time(small, part, table):
    for seed in range(3):
        runs = [run for run in small.runs if part in run.parts and run.recipe.seed == seed]
        base = runs[0]
        assert base.variant == "light"
        assert {run.variant: differences(base.recipe, run.recipe) for run in runs[1:]} == {
            name: list(lines) for name, lines in table.items() if seed == 0 or name not in ONCE
        }


@pytest.mark.parametrize("scale", ["smoke", "small"])
def test_operators_step_as_far_as_in_the_papers_network(scale):
    """γ = p/(Nε²) and α = d/(Nε²) are those of CRATE-Base at 224 pixels with ε = 0.5, whatever the pictures."""
    runs = [run for run in plan_for(scale, {}).runs if run.variant in TABLE_3 and run.recipe.seed == 0]
    assert {run.variant for run in runs} == set(TABLE_3)
    for run in runs:
        with torch.device("meta"):
            network = build_model(run.recipe)
        n, d, p = network.pos_embed.shape[1], network.embed_dim, network.config()["head_dim"]
        if run.variant.startswith("prox"):
            assert rate_scale(n, d, run.recipe.model.sparsify_args["eps"]) == pytest.approx(15.59, rel=4e-3)
        else:  # the short step has the factor κγ² of the weighted skip's attention
            gamma = 0.1 * 1.299**2 if run.variant == "mssa_tied_short" else 1.299
            assert rate_scale(n, p, run.recipe.model.compress_args["eps"]) == pytest.approx(gamma, rel=4e-3)


def test_what_is_not_varied_is_the_papers(small):
    """Nothing given is η = λ = 0.1, and every network of the tables differs from theirs in no other option."""
    built = {}
    for run in small.runs:
        if run.parts & {"table2", "table3"} and run.recipe.seed == 0:
            with torch.device("meta"):
                built[run.variant] = build_model(run.recipe).config()
    base = built["light"]
    assert (base["compress"], base["sparsify"], base["sparsify_args"]) == ("mssa", "ista", {"eta": 0.1, "lam": 0.1})
    changed = {name: {key for key in base if config[key] != base[key]} for name, config in built.items()}
    for name in ("eta_0.02", "eta_0.5", "lam_0.02", "lam_0.5"):
        assert changed[name] == {"sparsify_args"}
    for name in TABLE_3:
        kind = "sparsify" if name.startswith("prox") else "compress"
        assert kind in changed[name] <= {kind, f"{kind}_args"}


def test_strong_recipes_are_the_same_for_all_networks(small):
    runs = [run for run in small.runs if run.parts & {"strong"} and run.recipe.seed == 0]
    light, changes = small.runs[0].recipe, {"strong": {}, "mixed": {}}
    for run in runs:
        changes[run.variant][run.model] = differences(light, replace(run.recipe, model=light.model))
    longer, augmented = "schedule.epochs 60 → 200", "augment.randaugment '' → 'torchvision-n2-m9'"
    mixing = ["augment.mixup 0.0 → 0.2", "augment.cutmix 0.0 → 1.0", "optim.lr 0.00024 → 0.00012"]
    assert changes == {
        "strong": {model: [augmented, longer] for model in ("CRATE-T", "ViT-T")},
        "mixed": {model: [augmented, *mixing, longer] for model in ("CRATE-T", "ViT-T", "CRATE-B", "ViT-S")},
    }


def test_networks_of_table_1_have_the_same_settings(small):
    """All have half the learning rate as well, from scratch on both sets."""
    first, others = {}, {}
    for run in small.runs:
        if "table1" in run.parts:
            base = first.setdefault(run.task, run.recipe)
            same = replace(run.recipe, model=base.model, seed=base.seed)
            others.setdefault(run.variant, set()).update(differences(base, same))
            assert run.start is None or f"/{run.variant}/" in run.start
    assert others == {"light": set(), "lr_1.2e-4": {"optim.lr 0.00024 → 0.00012"}}
    gentle = [run for run in small.runs if run.variant == "lr_1.2e-4"]
    assert sorted((run.model, run.task) for run in gentle) == sorted(product(SIZES, TASKS))
    both = frozenset({"table1", "table2"})
    assert {run.key: run.parts for run in gentle if run.parts & {"table2"}} == {
        "cifar-10/crate-t/lr_1.2e-4/seed0": both
    }


def test_only_a_crate_is_opened(plan):
    assert all(run.model.startswith("CRATE") for run in plan.runs if run.parts & set(LOOKS))
    assert [run.key for run in plan.runs if set(LOOKS) <= run.parts] == [
        run.key for run in plan.runs if "audit" in run.parts
    ]


def write_folder(root):
    draw = np.random.default_rng(0)
    for split, name in (("train", "a"), ("train", "b"), ("validation", "a"), ("validation", "b")):
        (root / split / name).mkdir(parents=True)
        Image.fromarray(draw.integers(0, 256, (8, 8, 3), np.uint8)).save(root / split / name / "0.png")


def write_idx(root):
    root.mkdir()
    for prefix in ("train", "t10k"):
        for name, shape in ((f"{prefix}-images-idx3-ubyte", (2, 8, 8)), (f"{prefix}-labels-idx1-ubyte", (2,))):
            values = (np.arange(math.prod(shape)) % 2).astype(np.uint8).tobytes()
            head = bytes([0, 0, 8, len(shape)]) + np.array(shape, ">u4").tobytes()
            (root / name).write_bytes(head + values)


def write_packed(root):
    write_folder(root.with_name("source"))
    data = Dataset("folder", str(root.with_name("source")), num_classes=2, size=8)
    for split, training in (("train", True), ("validation", False)):
        pack(open_pictures(data, training), root / split, 8, workers=1)


@pytest.mark.parametrize(("name", "write"), [("idx", write_idx), ("folder", write_folder), ("packed", write_packed)])
def test_a_set_is_dataset_in_as_it_lies(tmp_path, name, write):
    write(tmp_path / "set")
    data = Dataset("torch/cifar10", num_classes=2, size=8)
    found = _dataset_in(data, str(tmp_path / "set"))
    assert found == replace(data, name=name, root=str(tmp_path / "set"))
    assert [len(feed) for feed in open_feeds(found, Augmentation())] == [2, 2]


def test_a_set_that_is_not_dataset_in_is_as_the_recipe_says(tmp_path):
    data = Dataset("torch/cifar10", num_classes=2)
    (tmp_path / "cifar-10-batches-py").mkdir()
    assert _dataset_in(data, str(tmp_path)) == replace(data, root=str(tmp_path))


def test_a_plan_knows_where_its_pictures_are(tmp_path):
    write_idx(tmp_path / "grey")
    runs = plan_for("small", {"fashion_mnist": str(tmp_path / "grey")}).runs
    roots = {run.task: (run.recipe.data.name, run.recipe.data.root) for run in runs}
    grey, colour = ("idx", str(tmp_path / "grey")), ("torch/cifar10", "data/cifar10")
    assert roots == {
        "CIFAR-10": colour,
        "CIFAR-10 → Fashion-MNIST": grey,
        "Fashion-MNIST": grey,
        "Fashion-MNIST → CIFAR-10": colour,
    }


@pytest.mark.parametrize(
    ("scale", "name", "sentence"),
    [
        ("small", "cifar", "scale small has no dataset 'cifar'; did you mean 'cifar10'?"),
        ("small", "imagenet", "scale small has no dataset 'imagenet'; known: cifar10, fashion_mnist"),
        ("smoke", "digits", "scale smoke has no dataset 'digits'; its pictures come with the package"),
    ],
)
def test_one_sentence_for_an_unknown_set(scale, name, sentence):
    with pytest.raises(ValueError) as caught:  # noqa: PT011, compared below
        plan_for(scale, {name: "somewhere"})
    assert str(caught.value) == sentence
