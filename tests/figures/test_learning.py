import numpy as np
import pytest

from opencrate.figures.learning import learning_curves

CRATE = {"epoch": [2, 4], "top1": [50.0, 60.0], "loss": [1.5, 1.25], "training_top1": [51.0, 70.0]}
VIT = {"epoch": [2, 4], "top1": [40.0, 45.0], "loss": [1.75, None]}


def drawn(axis):
    return [(list(line.get_xdata()), list(line.get_ydata())) for line in axis.lines]


def test_every_pair_has_a_column_of_accuracies_and_losses():
    figure = learning_curves({"small": {"CRATE-T": CRATE, "ViT-T": VIT}, "large": {"CRATE-B": CRATE}}, "both")
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
    figure = learning_curves({"small": {"ViT-T": VIT}})
    assert len(figure.axes[0].lines) == 1
    assert "training" not in figure.get_supxlabel()


def test_training_losses_are_drawn_where_all_networks_have_one():
    crate, vit = (of | {"training_loss": losses} for of, losses in ((CRATE, [2.0, 1.5]), (VIT, [2.5, 2.25])))
    figure = learning_curves({"small": {"CRATE-T": crate, "ViT-T": vit}})
    assert [values for _, values in drawn(figure.axes[2])] == [[2.0, 1.5], [2.5, 2.25]]
    assert "label smoothing" in figure.get_supxlabel()
    figure = learning_curves({"small": {"CRATE-T": crate, "ViT-T": VIT}})
    assert len(figure.axes) == 2
    assert "label smoothing" not in figure.get_supxlabel()


@pytest.mark.parametrize("panels", [{}, {"small": {}}])
def test_nothing_to_draw(panels):
    with pytest.raises(ValueError, match="there are no curves to draw"):
        learning_curves(panels)
