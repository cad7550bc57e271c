"""CRATEs beside ViTs over the epochs: which pairs are compared, and what is told of them."""

import json

import numpy as np
import pytest

from reproduction.document import write_document
from reproduction.learning import learning_figure, learning_table, pairs_learning
from reproduction.run_one import learning_curve

from .filling import SMALL, filled, row_of

CURVE = {"epoch": [6, 12, 18], "top1": [50.0, 70.0, 68.5], "loss": [1.5, 0.7504, 0.8]}
CRATE = {"epoch": [2, 4], "top1": [50.0, 60.0], "loss": [1.5, 1.25], "training_top1": [51.0, 70.0]}
VIT = {"epoch": [2, 4], "top1": [40.0, 45.0], "loss": [1.75, None]}


def curves(folder, *keys):
    """Results in which these runs alone have curves."""
    return filled(SMALL, folder, lambda run: row_of(run, SMALL, 68.5, curve=CURVE if run.key in keys else {}))


def told(results):
    return [(name, words, list(pairs)) for name, words, pairs in pairs_learning(SMALL, results)]


def test_pairs_that_both_have_curves_are_compared(tmp_path):
    of_half = [f"cifar-10/{model}/lr_1.2e-4/seed0" for model in ("crate-t", "vit-t", "crate-b", "vit-s", "crate-s")]
    of_mixed = [f"cifar-10/{model}/mixed/seed0" for model in ("crate-b", "vit-s")]
    of_fashion = [f"fashion-mnist/{model}/light/seed0" for model in ("crate-s", "vit-t+")]
    assert told(curves(tmp_path, *of_half, *of_mixed, *of_fashion)) == [
        ("cifar-10_lr_1.2e-4", "CIFAR-10, with ½ × the learning rate", ["CRATE-T, ViT-T", "CRATE-B, ViT-S"]),
        ("cifar-10_mixed", "CIFAR-10, with our strong recipe and mixing", ["CRATE-B, ViT-S"]),
        ("fashion-mnist_light", "Fashion-MNIST, with the paper's settings", ["CRATE-S, ViT-T+"]),
    ]


@pytest.mark.parametrize("of", ["fashion-mnist-to-cifar-10/{}/light/seed0", "cifar-10/{}/light/seed2"])
def test_fine_tuning_and_other_seeds_are_not(tmp_path, of):
    """The last of the plan with that network and setting, too."""
    assert told(curves(tmp_path, *(of.format(model) for model in ("crate-t", "vit-t")))) == []


def test_the_table():
    crate = CURVE | {"training_top1": [50.0, 75.0, 90.25], "training_loss": [2.0, 1.5, 1.0625]}
    vit = CURVE | {"loss": [None, None, None], "training_loss": [2.0, 1.5, 1.25]}
    head, *rows = learning_table({"CRATE-T, ViT-T": {"CRATE-T": crate, "ViT-T": vit}})
    assert len(head) == 7
    assert rows == [
        ["CRATE-T", "90.25", "68.50", "+21.75", "1.062", "0.750, epoch 12", "0.800"],
        ["ViT-T", "–", "68.50", "–", "1.250", "–", "–"],
    ]


def test_a_training_loss_that_has_none_beside_it_is_left_out():
    crate = CURVE | {"training_loss": [2.0, 1.5, 1.0625]}
    head, *_ = learning_table({"CRATE-T, ViT-T": {"CRATE-T": crate, "ViT-T": CURVE}})
    assert "training loss" not in head


def test_columns_of_which_nothing_is_known_are_left_out():
    head, *rows = learning_table({"CRATE-T, ViT-T": {"CRATE-T": CURVE, "ViT-T": CURVE}})
    assert head == ["", "validation accuracy", "lowest validation loss", "validation loss in the end"]
    assert rows == [[model, "68.50", "0.750, epoch 12", "0.800"] for model in ("CRATE-T", "ViT-T")]


def drawn(axis):
    return [(list(line.get_xdata()), list(line.get_ydata())) for line in axis.lines]


def test_every_pair_has_a_column_of_accuracies_and_losses():
    figure = learning_figure({"small": {"CRATE-T": CRATE, "ViT-T": VIT}, "large": {"CRATE-B": CRATE}}, "both")
    above, other, below, _ = figure.axes
    epochs = CRATE["epoch"]
    assert drawn(above) == [(epochs, CRATE["top1"]), (epochs, CRATE["training_top1"]), (epochs, VIT["top1"])]
    assert drawn(below)[0] == (epochs, CRATE["loss"])
    assert np.isnan(np.asarray(drawn(below)[1][1], dtype=float)).tolist() == [False, True]  # a gap
    assert [text.get_text() for text in above.get_legend().get_texts()] == ["CRATE-T", "ViT-T"]
    assert [axis.get_title() for axis in (above, other)] == ["small", "large"]
    assert above.lines[1].get_color() == above.lines[0].get_color() != above.lines[2].get_color()
    assert "training pictures" in figure.get_supxlabel()


def test_only_what_is_drawn_is_explained():
    figure = learning_figure({"small": {"ViT-T": VIT}})
    assert len(figure.axes[0].lines) == 1
    assert "training" not in figure.get_supxlabel()


def test_training_losses_are_drawn_where_all_networks_have_one():
    crate, vit = (of | {"training_loss": losses} for of, losses in ((CRATE, [2.0, 1.5]), (VIT, [2.5, 2.25])))
    figure = learning_figure({"small": {"CRATE-T": crate, "ViT-T": vit}})
    assert [values for _, values in drawn(figure.axes[2])] == [[2.0, 1.5], [2.5, 2.25]]
    assert "label smoothing" in figure.get_supxlabel()
    figure = learning_figure({"small": {"CRATE-T": crate, "ViT-T": VIT}})
    assert len(figure.axes) == 2
    assert "label smoothing" not in figure.get_supxlabel()


def test_the_document_shows_them(tmp_path):
    results = curves(tmp_path, "cifar-10/crate-t/light/seed0", "cifar-10/vit-t/light/seed0")
    text = write_document(SMALL, results, tmp_path, tmp_path).read_text(encoding="utf-8")
    assert "## Learning curves of CRATEs and ViTs\n\n![CIFAR-10, with the paper's settings](" in text
    assert "| ViT-T | 68.50 | 0.750, epoch 12 | 0.800 |" in text
    assert (tmp_path / "figures" / "learning_cifar-10_light.png").stat().st_size > 1000


def test_no_curves_no_section(tmp_path):
    assert "Learning curves" not in write_document(SMALL, curves(tmp_path), tmp_path, tmp_path).read_text("utf-8")


def recorded(folder, *lines):
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def window(step, epoch, **more):
    return {"kind": "train", "step": step, "epoch": epoch, "loss": 1.5} | more


def evaluated(step, epoch, top1, loss):
    return {"kind": "validation", "step": step, "epoch": epoch, "top1": top1, "top5": 99.0, "loss": loss}


def test_a_curve_from_the_records_of_a_run(tmp_path):
    recorded(
        tmp_path,
        window(50, 1, accuracy=0.0),
        window(97, 1, accuracy=0.0),
        window(100, 2, loss=8.0, accuracy=0.25),  # 3 steps
        window(150, 2, loss=4.0, accuracy=0.5),  # 50
        window(194, 2, loss=2.0, accuracy=0.75),  # 44
        evaluated(194, 2, 61.25, 1.125),
        window(200, 3, accuracy=1.0),
        window(250, 3, loss=None),  # no step of it was finite
        evaluated(291, 3, 62.123456, None),
    )
    assert learning_curve(tmp_path) == {
        "epoch": [2, 3],
        "top1": [61.25, 62.123],
        "loss": [1.125, None],
        "training_top1": [float(f"{100 * (3 * 0.25 + 50 * 0.5 + 44 * 0.75) / 97:.5g}"), 100.0],
        "training_loss": [float(f"{(3 * 8 + 50 * 4 + 44 * 2) / 97:.5g}"), 1.5],
    }


def test_a_curve_of_mixed_pictures_has_no_training_accuracy(tmp_path):
    recorded(tmp_path, window(97, 1), evaluated(97, 1, 10.0, 2.25))
    assert learning_curve(tmp_path) == {"epoch": [1], "top1": [10.0], "loss": [2.25], "training_loss": [1.5]}


def test_a_curve_without_any_loss_is_told_of(tmp_path):
    recorded(tmp_path, evaluated(97, 1, 10.0, None), evaluated(194, 2, 10.0, None))
    curve = learning_curve(tmp_path)
    assert learning_table({"CRATE-T, ViT-T": {"CRATE-T": curve, "ViT-T": curve}})[1:] == [
        ["CRATE-T", "10.00"],
        ["ViT-T", "10.00"],
    ]


def test_no_records_no_curve(tmp_path):
    assert learning_curve(tmp_path) == {"epoch": [], "top1": [], "loss": []}
