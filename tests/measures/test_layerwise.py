import csv
import io
import json
import math
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import timm
import torch
from scipy.stats import bootstrap
from torch.nn.functional import layer_norm, normalize

from opencrate import layerwise, load, trajectory
from opencrate.measures import DEFINITIONS, Definition, LayerTable, interval, layerwise_by
from opencrate.measures.layerwise import GPU_BYTES, _measured_together, summary
from opencrate.objective import coding_rate, subspace_coding_rate

from ..networks import small, transcribed
from ..strategies import random

IMAGES = random(7, 3, 16, 16)


def by_hand(model, images, rate):
    """Mean and deviation of R^c over samples for every layer, one sample at a time."""
    values = torch.stack(
        [
            torch.stack([rate(step, layer) for step, layer in zip(trajectory(model, image), model.blocks, strict=True)])
            for image in images.unsqueeze(1)
        ]
    )
    return values.mean(0).tolist(), values.std(0).tolist()


def literal_paper(step, layer):
    return subspace_coding_rate(step.Z_half[0], layer.U, 0.1)


def literal_official(step, layer):
    """The authors' script: U* LN(Z^l) with unit columns V, ½ logdet(I + p/(N·0.01) V*V), summed over the heads."""
    norm = layer.compress.norm
    Y = layer_norm(step.Z[0], (24,), norm.weight, norm.bias, 1e-5)
    total = 0
    for U_k in layer.U:
        V = normalize(U_k.T @ Y.T, dim=0)  # (p, N)
        p, n = V.shape
        total += 0.5 * torch.logdet(torch.eye(n, dtype=V.dtype) + p / (n * 0.01) * V.T @ V)
    return total


def literal_unit(step, layer):
    """Z^{l+1/2} U_k with unit rows, by singular values: ½ Σ_k Σ_i log(1 + p/(N ε²) σ_i²)."""
    total = 0
    for U_k in layer.U:
        V = step.Z_half[0] @ U_k
        V = V / V.norm(dim=1, keepdim=True)
        n, p = V.shape
        total += 0.5 * torch.log1p(p / (n * 0.1**2) * torch.linalg.svdvals(V) ** 2).sum()
    return total


@pytest.mark.parametrize(
    ("name", "rate"), [("paper", literal_paper), ("official", literal_official), ("unit", literal_unit)]
)
@torch.no_grad()
def test_named_definitions_are_what_they_say(name, rate):
    model = small(dtype=torch.float64)
    table = layerwise(model, IMAGES, definition=name)
    mean, std = by_hand(model, IMAGES, rate)
    assert [row["Rc"] for row in table.rows] == pytest.approx(mean, rel=1e-9)
    assert [row["Rc_std"] for row in table.rows] == pytest.approx(std, rel=1e-9)
    assert [row["layer"] for row in table.rows] == [1, 2, 3]
    nonzero = [(step.Z_next != 0).double().mean((1, 2)) for step in trajectory(model, IMAGES)]
    assert [row["nonzero"] for row in table.rows] == pytest.approx([share.mean().item() for share in nonzero])
    assert [row["nonzero_std"] for row in table.rows] == pytest.approx([share.std().item() for share in nonzero])
    for row, step in zip(table.rows, trajectory(model, IMAGES), strict=True):
        tokens = step.Z if name == "official" else step.Z_half
        unit = tokens / tokens.norm(dim=-1, keepdim=True)
        assert row["spread"] == pytest.approx((1 - unit.mean(1).norm(dim=-1)).mean().item())


@torch.no_grad()
def test_official_on_the_authors_weights(tmp_path):
    """Their network, by the pseudocode, with their file: what its projections give, in NumPy."""
    authors = transcribed(small(dtype=torch.float64))
    torch.save({"state_dict": authors.state_dict()}, tmp_path / "model_best.pth.tar")
    model = load(tmp_path / "model_best.pth.tar", num_heads=4).double()
    x = authors.to_patch_embedding(IMAGES)
    x = torch.cat([authors.cls_token.repeat(len(IMAGES), 1, 1), x], dim=1) + authors.pos_embedding
    expected = []
    for compress, sparsify in authors.transformer.layers:
        given = compress.fn.qkv(compress.norm(x)).unflatten(-1, (4, -1)).permute(0, 2, 3, 1).numpy()  # (b, k, p, N)
        rates = []
        for heads in given:
            V = heads / np.linalg.norm(heads, axis=1, keepdims=True)
            p, n = V.shape[1:]
            rates.append(sum(0.5 * np.linalg.slogdet(np.eye(n) + p / (n * 0.01) * v.T @ v)[1] for v in V))
        expected.append(np.mean(rates))
        x = sparsify(compress(x) + x)
    assert [row["Rc"] for row in layerwise(model, IMAGES, "official").rows] == pytest.approx(expected, rel=1e-9)


@torch.no_grad()
def test_every_part_of_a_definition_counts():
    model = small(dtype=torch.float64)
    values = {}
    for change in (
        {},
        {"site": "Z"},
        {"site": "Z_next"},
        {"norm": True},
        {"unit": True},
        {"eps": 0.5},
        {"class_token": False},
        {"scaling": "d"},
        {"unit": True, "scaling": "d"},
    ):
        values[str(change)] = layerwise(model, IMAGES, Definition("mine", **change)).rows[1]["Rc"]
    assert len(set(values.values())) == len(values)
    step = list(trajectory(model, IMAGES))[1]
    U = model.blocks[1].U
    without = subspace_coding_rate(step.Z_half[:, 1:], U, 0.1).mean().item()
    assert values["{'class_token': False}"] == pytest.approx(without)
    V = normalize(torch.stack([step.Z_half @ U_k for U_k in U]), dim=-1)
    gram = torch.eye(17, dtype=torch.float64) + 24 / (17 * 0.01) * V @ V.mT
    assert values[str({"unit": True, "scaling": "d"})] == pytest.approx(0.5 * torch.logdet(gram).sum(0).mean().item())
    assert values["{'unit': True}"] == pytest.approx(coding_rate(V, 0.1).sum(0).mean().item())


def test_several_definitions_in_one_pass_are_what_each_is_alone():
    passes, model = [], small(dtype=torch.float64)
    model.patch_embed.register_forward_hook(lambda *_: passes.append(1))
    tables = layerwise_by(model, [IMAGES[:3], IMAGES[3:]], ("unit", "paper", "official"))
    assert len(passes) == 2
    for table, name in zip(tables, ("unit", "paper", "official"), strict=True):
        assert table == layerwise(model, [IMAGES[:3], IMAGES[3:]], name)


def test_batches_stream():
    model = small(dtype=torch.float64)
    whole = layerwise(model, IMAGES)
    batches = [(IMAGES[:3], torch.zeros(3)), (IMAGES[3:4], torch.zeros(1)), [IMAGES[4:], torch.zeros(3)]]
    for table in (layerwise(model, batches), layerwise(model, [IMAGES[:3], IMAGES[3:]])):
        assert table.samples == 7
        for row, expected in zip(table.rows, whole.rows, strict=True):
            assert row == pytest.approx(expected, rel=1e-9)
    assert layerwise(model, [IMAGES[:0], IMAGES, IMAGES[:0]]).rows == whole.rows
    assert layerwise(model, IMAGES.float()).rows[0] == pytest.approx(layerwise(model, IMAGES.float().double()).rows[0])
    for samples in (0, -1, 2.5):
        with pytest.raises(ValueError, match="samples must be a whole number"):
            layerwise(model, IMAGES, samples=samples)
    with pytest.raises(ValueError, match="a batch must be a tensor of pictures, or begin with one, got a dict"):
        layerwise(model, [{"image": IMAGES}])
    asked = iter(batches * 2)
    few = layerwise(model, asked, samples=5)
    assert few.samples == 5
    assert len(list(asked)) == 3  # no batch more than needed was asked for
    assert few.rows[0] == pytest.approx(layerwise(model, IMAGES[:5]).rows[0], rel=1e-9)
    assert layerwise(model, IMAGES[:1]).rows[0]["Rc_std"] == 0


def test_the_network_is_left_as_it_was():
    model = small(drop_rate=0.5, attn_drop_rate=0.5, dtype=torch.float64).train()
    first, second = layerwise(model, IMAGES), layerwise(model, IMAGES)
    assert first.rows == second.rows  # without dropout
    assert model.training
    assert all(weight.grad is None for weight in model.parameters())
    with pytest.raises(ValueError, match="no pictures"):
        layerwise(model, [])
    assert model.training


def test_tables_carry_their_definition():
    table = layerwise(small(), IMAGES.float(), "official")
    assert str(table).splitlines()[0] == "definition official, 7 samples"
    assert all(re.fullmatch(r" +\d +[\d.]+ ± [\d.]+ +\d\.\d+ ± \d\.\d+", line) for line in str(table).splitlines()[2:])
    loaded = json.loads(table.to_json())
    assert loaded["definition"] == {
        "name": "official",
        "site": "Z",
        "norm": True,
        "unit": True,
        "eps": 0.1,
        "class_token": True,
        "scaling": "p",
    }
    assert LayerTable.from_dict(loaded) == table
    rows = list(csv.DictReader(io.StringIO(table.to_csv())))
    assert [float(row["Rc"]) for row in rows] == [row["Rc"] for row in table.rows]
    assert {row["definition"] for row in rows} == {"official"}


def test_an_untrained_network_of_the_papers_size():
    """The figures of docs/ERRATA.md, 1.4, at the first layer."""
    torch.manual_seed(0)
    model, images = timm.create_model("crate_tiny_patch16_224"), torch.randn(2, 3, 224, 224)
    assert layerwise(model, images, "paper").rows[0]["Rc"] == pytest.approx(1550, rel=0.01)
    assert layerwise(model, images, "official").rows[0]["Rc"] == pytest.approx(835, rel=0.01)


def test_bad_definitions_are_one_sentence():
    with pytest.raises(ValueError, match=r"unknown definition 'papr'; did you mean 'paper'\?"):
        layerwise(small(), IMAGES, "papr")
    with pytest.raises(ValueError, match="the name 'paper' is taken by another definition"):
        layerwise(small(), IMAGES, Definition("paper", eps=5.0))
    with pytest.raises(ValueError, match="scaling must be p or d, got 'q'"):
        Definition("mine", unit=True, scaling="q")
    with pytest.raises(ValueError, match="eps must be positive"):
        Definition("mine", eps=0.0)
    with pytest.raises(ValueError, match="site must be Z, Z_half or Z_next, got 'Zhalf'"):
        Definition("mine", site="Zhalf")
    assert DEFINITIONS.keys() == {"paper", "official", "unit"}


@pytest.mark.parametrize(
    ("model", "name"), [(small().fold(), "FoldedCRATE"), (timm.create_model("vit_tiny_patch16_224", depth=1), "Visi")]
)
def test_other_networks_are_refused_in_a_sentence(model, name):
    with pytest.raises(ValueError, match=f"layerwise needs a network with `embed` and `layers`, got {name}"):
        layerwise(model, random(2, 3, 16, 16))


def test_batches_of_1_7_and_64_give_the_same_table():
    model, images = small(), random(64, 3, 16, 16).float()
    whole = layerwise(model, images)
    for size in (1, 7, 64):
        table = layerwise(model, images.split(size))
        for row, expected in zip(table.rows, whole.rows, strict=True):
            assert row == pytest.approx(expected, rel=1e-5)


def test_the_interval_is_scipys_bootstrap():
    values = torch.stack([random(40), 3 + 2 * random(40)])
    low, high = interval(values, resamples=4000)
    for row, a, b in zip(values.numpy(), low, high, strict=True):
        theirs = bootstrap((row,), np.mean, n_resamples=4000, method="percentile", rng=0).confidence_interval
        assert (a.item(), b.item()) == pytest.approx((theirs.low, theirs.high), abs=0.05 * row.std())
        assert a < row.mean() < b
    assert [end.item() for end in interval(torch.tensor([2.5]))] == [2.5, 2.5]
    assert torch.equal(interval(values)[0], interval(values)[0])
    few = layerwise(small(), IMAGES.float())
    assert all(row["Rc_low"] < row["Rc"] < row["Rc_high"] for row in few.rows)
    assert "Rc_low" not in layerwise(small(), IMAGES.float(), resamples=0).rows[0]


def test_a_summary_is_over_the_samples():
    values = random(2, 3, 5)
    result = summary({"a": values})
    np.testing.assert_allclose(result["a"], values.numpy().mean(2), rtol=1e-12)
    np.testing.assert_allclose(result["a_std"], values.numpy().std(2, ddof=1), rtol=1e-12)
    assert ((result["a_low"] < result["a"]) & (result["a"] < result["a_high"])).all()


def test_the_interval_holds_the_mean_as_often_as_it_says():
    draws = torch.randn(400, 60, generator=torch.Generator().manual_seed(1))
    low, high = interval(draws, resamples=500)
    held = ((low < 0) & (high > 0)).double().mean().item()
    assert held == pytest.approx(0.94, abs=0.03)  # a bootstrap of 60 samples is a little narrow


def test_a_network_in_half_precision():
    model = small()
    exact = layerwise(model, IMAGES.float(), "official")
    for dtype in (torch.bfloat16, torch.float16):
        for definition in DEFINITIONS:
            table = layerwise(model.to(dtype), IMAGES, definition)
            assert all(row["Rc"] > 0 for row in table.rows)
        assert table.rows[0]["Rc"] == pytest.approx(exact.rows[0]["Rc"], rel=0.02)


def test_constant_pictures_and_a_dead_head_have_finite_values():
    model = small()
    with torch.no_grad():
        model.blocks[1].compress.operator.UT[:6] = 0
    for definition in DEFINITIONS:
        for row in layerwise(model, torch.full((2, 3, 16, 16), 0.5), definition).rows:
            assert all(math.isfinite(value) for value in row.values())


MEMORY = """
import pathlib, re, torch
from opencrate import CRATE, layerwise
torch.set_num_threads(1)
most = lambda: int(re.search(r"VmHWM:\\s+(\\d+) kB", pathlib.Path("/proc/self/status").read_text())[1])
model = CRATE(img_size=16, patch_size=4, in_chans=1, num_classes=10, embed_dim=96, depth=4, num_heads=4)
before = most()
table = layerwise(model, (torch.randn(256, 1, 16, 16) for _ in range(40)), samples=10_000)
assert table.samples == 10_000
print(most() - before)
"""  # not ru_maxrss, which a process inherits from the one that started it


@pytest.mark.unhooked
def test_ten_thousand_digits_stream_through_a_network():
    """Their tokens at three sites of four layers would take 780 MB."""
    run = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True, timeout=200)
    assert int(run.stdout) < 300_000  # kB


@pytest.mark.parametrize(("is_cuda", "sizes"), [(False, [1] * 7), (True, [3, 3, 1])])
def test_layers_wait_for_each_other_on_a_gpu_alone(is_cuda, sizes):
    steps = [SimpleNamespace(Z=SimpleNamespace(nbytes=GPU_BYTES // 2, is_cuda=is_cuda)) for _ in range(7)]
    together = list(_measured_together(steps))
    assert [len(part) for part in together] == sizes
    assert [step for part in together for step in part] == steps
