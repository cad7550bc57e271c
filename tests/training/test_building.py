"""From recipes and folders to networks and optimisers."""

import json
from dataclasses import replace

import pytest
import timm
import torch
from timm.models import save_for_hf

import opencrate
from opencrate.checkpoints import load_any
from opencrate.recipes import FINETUNING, RECIPES, Model, Optim
from opencrate.training.building import build_model, build_optimizer, save_network
from tests.networks import small

NAMES = ("ant", "bee", "cat")
IMAGES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def pictures(recipe, **changes):
    return replace(recipe, data=replace(recipe.data, **{"num_classes": 3, **changes}))


def baseline(size=16, **changes):
    """A small ViT of timm's, for pictures of other size, patches and classes than its name says."""
    arguments = {"embed_dim": 12, "depth": 2, "num_heads": 3, "patch_size": 4, "global_pool": "avg", **changes}
    return pictures(replace(RECIPES["cifar10_vit_tiny"](), model=Model("vit_tiny_patch16_224", **arguments)), size=size)


@pytest.mark.parametrize("inside", ["", "model", "best"], ids=["checkpoint", "run", "unfinished run"])
def test_a_network_of_ours(tmp_path, inside):
    opencrate.save_pretrained(small(), tmp_path / "run" / inside)
    model = load_any(str(tmp_path / "run"))
    assert isinstance(model, opencrate.CRATE)
    assert not model.training
    assert torch.equal(model(IMAGES), small()(IMAGES))


def test_the_last_network_of_a_run_comes_before_the_best(tmp_path):
    for seed, inside in enumerate(("model", "best")):
        opencrate.save_pretrained(small(seed), tmp_path / inside)
    assert torch.equal(load_any(tmp_path)(IMAGES), small(0)(IMAGES))
    assert torch.equal(load_any(tmp_path / "best")(IMAGES), small(1)(IMAGES))


def test_a_file(tmp_path):
    opencrate.checkpoints.save_authors(small(), tmp_path / "model.pth")
    assert torch.equal(load_any(tmp_path / "model.pth")(IMAGES), small()(IMAGES))


@pytest.mark.parametrize("inside", ["", "model"])
def test_a_baseline_that_the_engine_saved(tmp_path, inside):
    model = build_model(baseline(), NAMES).eval()
    save_network(model, tmp_path / inside)
    again = load_any(tmp_path)
    assert not again.training
    assert torch.equal(again(IMAGES), model(IMAGES))
    assert tuple(again.pretrained_cfg["label_names"]) == NAMES
    assert tuple(again.pretrained_cfg["mean"]) == baseline().data.mean
    assert torch.equal(
        timm.create_model(f"local-dir:{tmp_path / inside}", pretrained=True).eval()(IMAGES), model(IMAGES)
    )


def test_a_grey_baseline(tmp_path):
    recipe = pictures(baseline(), in_chans=1, mean=(0.5,), std=(0.5,))
    model = build_model(recipe).eval()
    again = load_any(save_network(model, tmp_path))
    assert torch.equal(again(IMAGES[:, :1]), model(IMAGES[:, :1]))


def test_a_finetuned_baseline_is_saved_as_it_has_become(tmp_path):
    first = save_network(build_model(baseline(), NAMES), tmp_path / "first")
    recipe = replace(FINETUNING["fashion_mnist"](), model=Model(start=str(first)))
    kept = build_model(pictures(recipe, size=16), NAMES)
    assert torch.equal(kept.head.weight, load_any(first).head.weight)
    tuned = build_model(pictures(recipe, size=24, num_classes=5)).eval()
    again = load_any(save_network(tuned, tmp_path / "second"))
    larger = torch.randn(2, 3, 24, 24)
    assert tuned(larger).shape == (2, 5)
    assert torch.equal(again(larger), tuned(larger))


def test_finetuning_starts_from_a_file_too(tmp_path):
    opencrate.checkpoints.save_authors(small(), tmp_path / "model.pth")
    recipe = replace(FINETUNING["fashion_mnist"](), model=Model(start=str(tmp_path / "model.pth")))
    model = build_model(pictures(recipe, size=16), NAMES).eval()
    assert torch.equal(model.forward_features(IMAGES), small().forward_features(IMAGES))


def test_a_folder_that_timm_wrote(tmp_path):
    model = timm.create_model("test_vit", num_classes=4).eval()
    save_for_hf(model, tmp_path, safe_serialization=True)
    images = torch.randn(1, *model.pretrained_cfg["input_size"])
    assert torch.equal(load_any(tmp_path)(images), model(images))


def test_a_new_baseline_does_not_claim_timms_weights():
    record = build_model(baseline()).pretrained_cfg
    assert record["architecture"] == "vit_tiny_patch16_224"
    assert not record.keys() & {"url", "hf_hub_id", "tag", "custom_load", "license"}


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("model.safetensors", b"x" * 40, "{} cannot be read as a checkpoint: "),
        ("model.safetensors", None, "{} cannot be read as a checkpoint: No suitable checkpoints found in {}."),
        ("config.json", b"{", "{}/config.json is not JSON that can be read: "),
        ("config.json", b"[]", "{}/config.json is not a checkpoint's configuration: it names no architecture"),
    ],
)
def test_one_sentence_for_a_damaged_baseline(tmp_path, name, content, sentence):
    save_network(build_model(baseline()), tmp_path)
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError) as caught:  # noqa: PT011, compared below
        load_any(tmp_path)
    assert str(caught.value).startswith(sentence.replace("{}", str(tmp_path)))
    assert "\n" not in str(caught.value)


def test_one_sentence_for_a_baseline_that_timm_does_not_know(tmp_path):
    save_network(build_model(baseline()), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"architecture": "vit_tny"}))
    with pytest.raises(ValueError, match=r"cannot be read as a checkpoint: Unknown model \(vit_tny\)$"):
        load_any(tmp_path)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (Model("crate_tny_patch4_32"), "unknown network 'crate_tny_patch4_32'; did you mean 'crate_tiny_patch4_32'?"),
        (Model("crate_tiny_patch4_32", compress="msa"), "unknown compression 'msa'; did you mean 'mssa'?"),
        (Model("crate_tiny_patch4_32", num_heads=7), "embed_dim 384 is not divisible by num_heads 7"),
        (
            Model("vit_tiny_patch16_224", compress="mssa"),
            "vit_tiny_patch16_224 cannot be built as the recipe says:"
            " VisionTransformer.__init__() got an unexpected keyword argument 'compress'",
        ),
    ],
)
def test_one_sentence_for_a_network_that_cannot_be_built(model, sentence):
    with pytest.raises(ValueError) as caught:  # noqa: PT011, compared below
        build_model(replace(RECIPES["cifar10_tiny"](), model=model))
    assert str(caught.value) == sentence


def test_an_unknown_optimiser():
    recipe = replace(RECIPES["digits"](), optim=Optim("adamww"))
    with pytest.raises(ValueError, match=r"^unknown optimiser 'adamww'; did you mean 'adamw'\?$"):
        build_optimizer(recipe, torch.nn.Linear(1, 1))


def test_the_optimisers_own_momentum_can_be_changed():
    for betas in (None, (0.8, 0.9)):
        optimizer = build_optimizer(replace(RECIPES["digits"](), optim=Optim(betas=betas)), torch.nn.Linear(1, 1))
        assert optimizer.param_groups[0]["betas"] == (betas or (0.9, 0.99))
