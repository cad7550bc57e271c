"""The scale medium: table 1 on Tiny-ImageNet with four transfers, frozen features and masks."""

from pathlib import Path

import pytest

from opencrate.recipes import differences
from reproduction.claims import claims
from reproduction.command import Reproduction
from reproduction.document import write_document
from reproduction.scales import TINY, TRANSFERS, plan_for

from .filling import filled, row_of

PLAN = plan_for("medium", {})
MODELS = {"CRATE-T": 58.0, "ViT-T": 58.5, "CRATE-B": 61.0, "ViT-S": 60.0, "CRATE-S": 59.0}


def mean(value):
    return {"mean": value, "low": value - 0.01, "high": value + 0.01}


MASKS = {
    name: {"iou": mean(iou), "above_centre": mean(iou - 0.5), "choice": "so"}
    for name, iou in {"attention": 0.58, "code": 0.55, "cut": 0.62, "centre": 0.5, "grid": 0.9}.items()
}


def row(run):
    looks = {"probe": {"knn_20": 41.25 + run.recipe.seed, "linear": 52.5}, "masks": MASKS}
    top1 = MODELS[run.model] + run.recipe.seed + (20 if run.start else 0) - (3 if run.variant == "light" else 0)
    return row_of(run, PLAN, top1, looks={name: looks[name] for name in run.looks if name in looks})


def test_every_network_is_trained_by_one_recipe_and_transferred_four_times():
    for seed in range(3):
        of_seed = [run for run in PLAN.runs if run.recipe.seed == seed and run.variant == PLAN.main]
        scratch = [run for run in of_seed if run.start is None]
        assert {run.model for run in scratch} == (set(MODELS) if seed == 0 else set(TINY))
        for run in scratch:
            tuned = [other.task for other in of_seed if other.start == run.key]
            assert tuned == [f"Tiny-ImageNet → {task}" for task in TRANSFERS]
            changed = [line.split()[0] for line in differences(scratch[0].recipe, run.recipe)]
            assert set(changed) <= {"model.name", "model.patch_size"}
    light = [run for run in PLAN.runs if run.variant == "light"]
    assert [run.model for run in light] == list(TINY)


def test_sets_are_packed_or_folders(tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "train/index.json").touch()
    runs = plan_for("medium", {"tiny_imagenet": str(tmp_path)}).runs
    assert {run.recipe.data.name for run in runs if run.start is None} == {"packed"}
    assert {run.recipe.data.name for run in runs if run.start} == {"folder"}
    assert {run.recipe.data.size for run in runs} == {64}


def test_a_folder_without_masks_is_said_before_the_first_run(tmp_path, monkeypatch):
    monkeypatch.setattr("reproduction.command._require_readable", lambda *given: None)
    for name in ("tiny_imagenet", *TRANSFERS.values()):
        (tmp_path / name / "train").mkdir(parents=True)
    data = tuple(f"{name}={tmp_path / name}" for name in ("tiny_imagenet", *TRANSFERS.values()))
    settings = Reproduction("medium", data=data)
    with pytest.raises(ValueError, match="pets has no folder trimaps"):
        settings.require_pictures(settings.plan())
    (tmp_path / "pets/trimaps").mkdir()
    settings.require_pictures(settings.plan())


def test_the_document(tmp_path):
    text = write_document(PLAN, filled(PLAN, tmp_path, row), tmp_path, tmp_path).read_text(encoding="utf-8")
    assert "| Tiny-ImageNet | 59.00 ± 1.00 | 59.50 ± 1.00 | 61.00 | 60.00 | 59.00 |" in text
    assert "| Tiny-ImageNet → Pets | 79.00 ± 1.00 |" in text
    assert "| Tiny-ImageNet, 20 neighbours | 42.2 ± 1.0 | 42.2 ± 1.0 | 41.2 | 41.2 | 41.2 |" in text
    assert "| Tiny-ImageNet → CIFAR-10, linear probe | 52.5 ± 0.0 |" in text
    assert "| cut | 62.0 (61.0 … 63.0) |" in text
    assert "our strong recipe is Lion with learning rate 0.00024" in text
    assert "RandAugment (torchvision-n2-m9), mixup, cutmix. ViTs" in text
    assert "50 to 500 epochs, `adamw`" in text
    assert "| CRATE-T | 55.00 | 59.00 ± 1.00 |" in text  # the paper's settings beside the strong recipe
    assert "| ImageNet → Pets | 81.4 |" in text


def test_the_claims(tmp_path):
    found = {claim.text: claim for claim in claims(PLAN, filled(PLAN, tmp_path, row))}
    (larger,) = (claim for text, claim in found.items() if "a larger CRATE is more accurate" in text)
    assert "CRATE-T 59.00 ± 1.00, CRATE-S 59.00" in larger.evidence
    (tuned,) = (claim for text, claim in found.items() if text.startswith("Tiny-ImageNet → Pets: fine-tuned"))
    assert "CRATE-B 81.00, ViT-S 80.00" in tuned.evidence
    assert "in the paper, ImageNet → Pets, −3.3" in tuned.evidence
    (outlined,) = (claim for text, claim in found.items() if "outlines pets" in text)
    assert outlined.verdict == "holds"
    assert "CRATE-T by cut 62.0 % (+11.0 … +13.0)" in outlined.evidence
    assert not any("η" in text for text in found)  # no ablations at this scale


def test_masks_and_features_are_measured(tmp_path, monkeypatch):
    from reproduction import analyses
    from reproduction.place import Place

    scratch, tuned = PLAN.runs[0], PLAN.runs[4]
    asked = []
    monkeypatch.setattr(
        analyses, "measure_checkpoint", lambda *given: asked.append(given) or {"knn_20": 50.123, "linear": 60.0}
    )
    place = Place(tmp_path, "cpu")
    assert analyses._probe(tuned, place) == {"knn_20": 50.12, "linear": 60.0}
    (folder, wanted), root = asked[0], Path(tuned.recipe.data.root)
    assert folder == str(place.folder(scratch.key))  # before it is tuned
    assert (wanted.data.root, wanted.knn, wanted.linear, wanted.layers) == (str(root), 20, True, None)
