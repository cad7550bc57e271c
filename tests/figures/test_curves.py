import errno
import math
from io import BytesIO

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from PIL import Image
from scipy.linalg import subspace_angles

from opencrate.figures import (
    accuracy_curve,
    attention_grid,
    heat_maps,
    layer_curves,
    patch_rows,
    save,
    subspace_grams,
    to_png,
    token_colours,
)
from opencrate.measures import DEFINITIONS, Definition, LayerTable

from ..strategies import random


def table(rates, definition="paper", samples=64, interval=False):
    rows = []
    for i, rate in enumerate(rates):
        row = {"layer": i + 1, "Rc": rate, "nonzero": 0.5 / (i + 1), "Rc_std": 3.0, "nonzero_std": 0.01}
        if interval:
            row |= {"Rc_low": rate - 1, "Rc_high": rate + 2, "nonzero_low": 0.1, "nonzero_high": 0.6}
        rows.append(row)
    return LayerTable(DEFINITIONS[definition], samples, tuple(rows))


def band(axis, i=0):
    """The lower and upper ends of a band, layer by layer."""
    points = axis.collections[i].get_paths()[0].vertices
    layers = np.unique(points[:, 0])
    return [[end(points[points[:, 0] == layer, 1]) for layer in layers] for end in (min, max)]


def note(figure):
    return figure.get_supxlabel().replace("\n", " ")


def texts(figure):
    return [text.get_text() for text in figure.axes[0].texts]


def test_curves_are_the_tables():
    tables = {"train": table([30, 20, 10]), "validation": table([33, 22, 11, 5])}
    figure = layer_curves(tables, "CRATE-T")
    left, right = figure.axes
    for axis, name in ((left, "Rc"), (right, "nonzero")):
        for line, measured in zip(axis.lines, tables.values(), strict=True):
            assert line.get_xdata().tolist() == [row["layer"] for row in measured.rows]
            assert line.get_ydata().tolist() == [row[name] for row in measured.rows]
    assert band(left) == [[27, 17, 7], [33, 23, 13]]  # ± one standard deviation
    assert "± one standard deviation, over 64 samples" in note(figure)
    assert "(definition paper)" in left.get_ylabel()
    assert right.get_ylabel() == "non-zero fraction"
    assert left.get_xlabel() == right.get_xlabel() == "layer"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["train", "validation"]
    assert figure.get_suptitle() == "CRATE-T"
    assert figure.get_size_inches()[0] == 7
    looks = [(line.get_color(), line.get_marker(), line.get_linestyle()) for line in left.lines]
    assert all(one != other for one, other in zip(*looks, strict=True))


def test_bands_are_intervals_where_there_are_some():
    figure = layer_curves({"train": table([30, 20, 10], interval=True), "validation": table([3, 2], samples=1)})
    assert band(figure.axes[0]) == [[29, 19, 9], [32, 22, 12]]
    assert band(figure.axes[1]) == [[0.1] * 3, [0.6] * 3]
    assert "95 % bootstrap interval of the mean (train); ± one standard deviation (validation)" in note(figure)
    assert "over 1 to 64 samples" in note(figure)


def test_epochs_are_coloured_in_their_order():
    def colours(*keys):
        lines = layer_curves({key: table([2, 1]) for key in keys}).axes[0].lines
        return [to_hex(line.get_color()) for line in lines]

    brightness = [sum(matplotlib.colors.to_rgb(c)) for c in colours("epoch 100", "untrained", "epoch 9", "epoch 20")]
    assert np.argsort(brightness).tolist() == [1, 2, 3, 0]
    distinct = colours("CRATE-T", "CRATE-S", "CRATE-B", "CRATE-L")
    assert len(set(distinct)) == 4
    assert distinct[:3] == colours("epoch 1", "epoch 2", "epoch 3")  # few enough to be told apart
    assert distinct == colours("epoch 1", "epoch 2", "epoch 3", "step 4")
    assert distinct == colours("untrained", "trained", "epoch 1", "epoch 2")


def test_what_has_no_value_is_named():
    rates = [30.0, math.nan, 10.0, -math.inf, 5.0]
    unbanded = table([9.0, 8.0])
    unbanded.rows[1]["nonzero_std"] = math.nan
    vit = LayerTable(DEFINITIONS["paper"], 64, ({"layer": 1, "nonzero": 0.5, "nonzero_std": 0.1},))
    figure = layer_curves({"train": table(rates), "test": unbanded, "ViT": vit})
    np.testing.assert_equal(figure.axes[0].lines[0].get_ydata(), [30, math.nan, 10, math.nan, 5])
    assert "The coding rate of train has no finite value at layers 2, 4." in note(figure)
    assert "The non-zero fraction of test has no finite band at layer 2." in note(figure)
    assert "The coding rate of ViT has no finite value at any layer." in note(figure)
    assert "finite" not in note(layer_curves({"train": table([1, 2])}))
    to_png(figure, 50)


def test_the_best_epoch_is_marked_in_the_accuracy():
    figure = accuracy_curve({2: 60.0, 1: 50.0, 3: 55.0}, {"best": 2, "shown": 3, "lost": 9})
    curve, *points = figure.axes[0].lines
    assert (curve.get_xdata().tolist(), curve.get_ydata().tolist()) == ([1, 2, 3], [50, 60, 55])
    assert [(*point.get_xdata(), *point.get_ydata()) for point in points] == [(2, 60), (3, 55)]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "best, epoch 2: 60.0 %",
        "shown, epoch 3: 55.0 %",
    ]
    to_png(figure, 50)


def test_curves_refuse_in_a_sentence():
    with pytest.raises(ValueError, match=r"needs one definition, but 'a' is measured by 'paper', 'b' by 'official'$"):
        layer_curves({"a": table([1]), "b": table([1], "official")})
    mine, other = Definition("mine"), Definition("mine", eps=0.5)
    with pytest.raises(ValueError, match=r"'a' is measured by 'mine', 'b' by 'mine', and the two differ: .*eps=0\.5"):
        layer_curves({"a": LayerTable(mine, 1, table([1]).rows), "b": LayerTable(other, 1, table([1]).rows)})


def shown(figure):
    return [axis.images[0].get_array() for axis in figure.axes if axis.images]


def test_heat_maps_show_the_same_part_of_all_layers():
    # Every entry says where it stands, so that the part can be read off the picture.
    places = (torch.arange(60)[:, None] * 1000 + torch.arange(80) + 1).double()
    tokens = {f"layer {layer}": places for layer in range(1, 6)}
    figure = heat_maps(tokens, seed=3)
    first, *others = shown(figure)
    rows, columns = first[:, 0] // 1000, (first[0] - 1) % 1000
    assert first.shape == (50, 50)
    assert (np.diff(rows) > 0).all()
    assert (np.diff(columns) > 0).all()
    np.testing.assert_array_equal(first, rows[:, None] * 1000 + columns + 1)
    assert len(others) == 4
    assert all((other == first).all() for other in others)
    assert (shown(heat_maps(tokens, seed=3))[0] == first).all()
    assert not (shown(heat_maps(tokens, seed=4))[0] == first).all()
    assert "50 of 60 tokens (rows) × 50 of 80 coordinates (columns), at random with seed 3" in note(figure)
    assert len(figure.axes) == 6  # and the colour bar
    whole = heat_maps(tokens, size=None)
    assert (shown(whole)[0] == places.numpy()).all()
    assert "All 60 tokens (rows) × 80 coordinates (columns)" in note(whole)
    assert shown(heat_maps({"one": places[:7, :9]}))[0].shape == (7, 9)
    assert shown(heat_maps({"one": places[:, :9]}))[0].shape == (50, 9)


def test_heat_maps_have_one_scale():
    Z = random(20, 30)
    figure = heat_maps({"Z": Z.relu().bfloat16(), "2 Z": 2 * Z.relu()})
    both = np.concatenate([values.data.ravel() for values in shown(figure)])
    limits = [axis.images[0].get_clim() for axis in figure.axes[:2]]
    assert limits == [(0, pytest.approx(np.quantile(both[both > 0], 0.99), abs=1e-12))] * 2
    titles = [axis.get_title() for axis in figure.axes[:2]]
    share = 100 * (Z.relu() != 0).double().mean().item()
    assert titles == [f"Z\n{share:.1f} % non-zero", f"2 Z\n{share:.1f} % non-zero"]
    low, high = heat_maps({"Z": Z}).axes[0].images[0].get_clim()
    assert low == -high < 0
    assert heat_maps({"Z": Z}).axes[0].images[0].get_cmap().name == "RdBu_r"
    assert heat_maps({"Z": torch.zeros(3, 4)}).axes[0].images[0].get_clim() == (0, 1)


def test_heat_maps_name_what_has_no_value_and_refuse_in_a_sentence():
    Z = random(6, 5)
    Z[0, 0], Z[1, 2] = math.nan, math.inf
    figure = heat_maps({"layer 1": random(6, 5), "layer 2": Z})
    assert note(figure).endswith("Values that are not finite, in grey: layer 2 (2).")
    assert shown(figure)[1].mask.sum() == 2
    assert np.isfinite(figure.axes[0].images[0].get_clim()).all()
    with pytest.raises(ValueError, match=r"matrices of one shape \(n, d\), got \(5, 5\), \(6, 5\)"):
        heat_maps({"a": Z, "b": Z[1:]})
    with pytest.raises(ValueError, match=r"matrices of one shape \(n, d\), got \(1, 6, 5\)"):
        heat_maps({"a": Z[None]})


def test_grams_and_coherence_against_numpy_and_scipy():
    U = random(3, 12, 5)
    figure = subspace_grams({"layer 1": U, "layer 2": 2 * U}, directions=None)
    columns = np.concatenate(list(U.numpy()), axis=1)
    columns /= np.linalg.norm(columns, axis=0)
    for values in shown(figure):
        np.testing.assert_allclose(values, np.abs(columns.T @ columns), atol=1e-6)
    pairs = [np.cos(subspace_angles(U[i].numpy(), U[j].numpy()).min()) for i, j in ((0, 1), (0, 2), (1, 2))]
    assert figure.axes[0].get_title() == f"layer 1\ncoherence {np.mean(pairs):.2f}"
    assert figure.axes[1].get_title() == f"layer 2\ncoherence {np.mean(pairs):.2f}"
    assert figure.axes[0].images[0].get_clim() == (0, 1)
    borders = {line.get_xdata()[0] for line in figure.axes[0].lines} - {0}
    assert borders == {4.5, 9.5}


def test_grams_of_a_few_directions():
    U = random(3, 12, 5)
    figure = subspace_grams({"layer 1": U, "layer 2": U}, directions=2, seed=7)
    first, second = shown(figure)
    assert first.shape == (6, 6)
    assert (first == second).all()
    full = shown(subspace_grams({"layer 1": U}, None))[0]
    places = [np.flatnonzero([np.isin(np.round(row, 5), np.round(line, 5)).all() for line in full]) for row in first]
    assert all(len(place) == 1 for place in places)  # every row is a part of one row of the whole
    places = np.concatenate(places)
    assert (places // 5).tolist() == [0, 0, 1, 1, 2, 2]
    np.testing.assert_array_equal(first, full[np.ix_(places, places)])
    assert len({*places % 5}) > 2  # not the same directions of every subspace
    assert "by 2 of their 5 directions, at random with seed 7" in note(figure)
    assert "by all their directions" in note(subspace_grams({"layer 1": U}, 9))
    assert figure.axes[0].get_title() == subspace_grams({"layer 1": U}, None).axes[0].get_title()


def test_grams_of_dead_and_single_subspaces():
    U = random(3, 12, 5)
    U[1] = 0
    figure = subspace_grams({"layer 1": U.half(), "layer 2": U[:1].requires_grad_()})
    assert "Subspaces whose weights are all 0: layer 1 (2)." in note(figure)
    assert figure.axes[1].get_title() == "layer 2\none subspace"
    with pytest.raises(ValueError, match="the subspaces of 'layer 1' have weights that are not finite"):
        subspace_grams({"layer 1": U / 0})
    with pytest.raises(ValueError, match=r"shape \(k, d, p\), 'layer 1' has \(12, 5\)"):
        subspace_grams({"layer 1": U[0]})


@pytest.fixture
def picture():
    return np.random.default_rng(0).integers(0, 256, (16, 24, 3), dtype=np.uint8)


def cells(figure):
    """The pictures of a board by their places: (left, top) → those that lie there, the lowest first."""
    found = {}
    for image in figure.axes[0].images:
        left, _, _, top = image.get_extent()
        found.setdefault((round(left, 3), round(top, 3)), []).append(image)
    return found


@pytest.mark.parametrize(("layers", "k"), [(1, 1), (3, 4)])
def test_attention_lies_over_the_picture(picture, layers, k):
    maps = random(layers, k, 4, 6).softmax(-1)
    figure = attention_grid(picture, maps)
    placed = cells(figure)
    corner = min(placed)
    np.testing.assert_array_equal(placed.pop(corner)[0].get_array(), picture)
    assert corner[1] == 0
    assert len(placed) == layers * k
    for (place, (under, over)), expected in zip(
        sorted(placed.items(), key=lambda cell: cell[0][::-1]), maps.flatten(0, 1), strict=True
    ):
        assert under.get_array().shape == (16, 24)
        np.testing.assert_allclose(over.get_array(), expected.numpy())
        assert over.get_extent() == under.get_extent()
        assert over.get_extent()[1] - place[0] == pytest.approx(1.5, abs=1e-3)  # as wide as the picture
        assert over.get_clim() == (0, pytest.approx(expected.max().item()))
        assert 0 < over.get_alpha() < 1
    words = texts(figure)
    assert words.count("picture") == 1
    assert [word for word in words if "layer" in word] == [f"layer {layer + 1}" for layer in range(layers)]
    assert [word for word in words if "head" in word] == [f"head {head + 1}" for head in range(k)]


def test_many_heads_have_room_for_their_words(picture):
    figure = attention_grid(picture, torch.ones(24, 16, 2, 3))
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert not any(box.overlaps(other) for i, box in enumerate(boxes) for other in boxes[:i])
    (left, bottom), (right, top) = figure.bbox.get_points()
    assert all(left <= box.x0 and box.x1 <= right and bottom <= box.y0 and box.y1 <= top for box in boxes)


def test_attention_without_values(picture):
    maps = torch.ones(2, 2, 4, 6, dtype=torch.bfloat16)
    maps[0, 1, 0, 0], maps[1, 0], maps[1, 1] = math.nan, math.inf, 0
    figure = attention_grid(torch.from_numpy(picture), maps)
    assert note(figure).endswith("Values that are not finite are left out: layer 1 head 2, layer 2 head 1.")
    to_png(figure, 50)
    with pytest.raises(ValueError, match=r"\(…, H, W, 3\) of uint8, got \(16, 24, 3\) of float64"):
        attention_grid(picture / 255, maps)
    with pytest.raises(ValueError, match=r"must have the shape \(layers, k, h, w\), got \(2, 4, 6\)"):
        attention_grid(picture, maps[0])


def test_tokens_as_colours(picture):
    pictures = np.stack([picture, 255 - picture])
    colours = random(3, 2, 24, 3).sigmoid()
    colours[2, 1, 5] = math.nan
    figure = token_colours(pictures, colours, (4, 6))
    placed = sorted(cells(figure).items(), key=lambda cell: cell[0][::-1])
    images = [found[0].get_array() for _, found in placed]
    assert len(images) == 8
    np.testing.assert_array_equal(images[0], picture)
    np.testing.assert_array_equal(images[1], 255 - picture)
    np.testing.assert_allclose(images[2 + 2 * 1 + 1], colours[1, 1].reshape(4, 6, 3).numpy())
    assert images[-1][0, 5].tolist() == [1, 1, 1]
    assert note(figure).endswith("Values that are not finite are white: layer 3 picture 2.")
    assert texts(figure) == ["pictures", "layer 1", "layer 2", "layer 3"]


def test_rows_of_patches(picture):
    rows = {"layer 4, head 2": [picture[:8, i : i + 8] for i in range(5)], "none $1 $2": [], "one": [picture[:4, :4]]}
    figure = patch_rows(rows)
    placed = cells(figure)
    assert sorted(top for _, top in placed) == [0] * 5 + [pytest.approx(2.12, abs=1e-3)]
    for (_, found), expected in zip(sorted(placed.items())[2:], rows["layer 4, head 2"][1:], strict=True):
        np.testing.assert_array_equal(found[0].get_array(), expected)
    assert texts(figure) == ["layer 4, head 2", r"none \$1 \$2", "one", "nothing is active"]  # no formula in a name
    assert texts(patch_rows({"a": []})) == ["a", "nothing is active"]


def test_files(tmp_path):
    before = dict(matplotlib.rcParams)
    figure = layer_curves({"train": table([3, 2, 1])}, "50 $ or 60 $")
    paths = save(figure, tmp_path / "new" / "folder", "layers.v1")
    assert [path.name for path in paths] == ["layers.v1.png", "layers.v1.pdf"]
    png, pdf = (path.read_bytes() for path in paths)
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    assert pdf.startswith(b"%PDF-")
    assert b"/FontFile2" in pdf  # TrueType
    assert b"/Type3" not in pdf
    assert Image.open(BytesIO(png)).width == 1400  # 7 inches of 200 dots
    assert save(figure, tmp_path, "again")[1].read_bytes() == pdf
    assert Image.open(BytesIO(to_png(figure))).width == 1050
    assert Image.open(BytesIO(to_png(figure, dpi=100))).width == 700
    assert dict(matplotlib.rcParams) == before


def test_a_disk_that_is_full_leaves_no_half_of_a_figure(tmp_path, monkeypatch):
    figure, flushed = layer_curves({"train": table([3, 2, 1])}), []

    def full(_):
        flushed.append(1)
        if len(flushed) == 3:  # of a file and its folder, each
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match=r"layers\.pdf could not be written: the disk is full"):
        save(figure, tmp_path, "layers")
    assert [path.name for path in tmp_path.iterdir()] == ["layers.png"]


def test_without_matplotlib(without_matplotlib):
    with pytest.raises(ValueError, match=r"figures need the package 'matplotlib': pip install 'opencrate\[report\]'"):
        patch_rows({"a": []})
