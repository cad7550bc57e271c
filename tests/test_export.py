"""Exported files, run by ONNX Runtime and by torch alone, compared with the network; and what they say about it."""

import json
import sys

import pytest
import timm
import torch

import opencrate
from opencrate import save_pretrained
from opencrate.cli import main
from opencrate.export import RECORD, export
from opencrate.training.building import save_network

from .networks import small

pytestmark = pytest.mark.unhooked


@pytest.fixture
def checkpoint(tmp_path):
    model = small(num_classes=3)
    model.pretrained_cfg = {"label_names": ["ä", "b", "c"], "mean": (0.1, 0.2, 0.3), "std": (0.5,) * 3, "crop_pct": 0.9}
    return save_pretrained(model, tmp_path / "network")


def logits_of(file, images):
    if file.suffix == ".onnx":
        onnxruntime = pytest.importorskip("onnxruntime")
        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        return torch.from_numpy(session.run(["logits"], {"images": images.numpy()})[0])
    return torch.export.load(file).module()(images)


def record_in(file):
    if file.suffix == ".onnx":
        properties = pytest.importorskip("onnx").load(file).metadata_props
        return {entry.key: json.loads(entry.value) for entry in properties if not entry.key.startswith("pkg")}
    extra = {RECORD: ""}
    torch.export.load(file, extra_files=extra)
    return json.loads(extra[RECORD])


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
def test_it_gives_the_networks_logits_and_says_how_pictures_are_prepared(checkpoint, tmp_path, capsys, suffix):
    file = tmp_path / "new" / f"crate{suffix}"
    main(["export", str(checkpoint), str(file)])
    printed = capsys.readouterr().out
    assert printed.startswith(f"wrote {file}: 0.")
    assert "folded into plain linear layers" in printed
    images = torch.randn(5, 3, 16, 16)
    with torch.inference_mode():
        torch.testing.assert_close(logits_of(file, images), opencrate.load(checkpoint)(images), rtol=1e-4, atol=1e-5)
    record = record_in(file)
    assert record["classes"] == ["ä", "b", "c"]
    assert (record["size"], record["mean"], record["crop_pct"]) == (16, [0.1, 0.2, 0.3], 0.9)
    assert [path.name for path in file.parent.iterdir()] == [file.name]


@pytest.mark.parametrize(("source", "how"), [("unrolled", "not folded: the sparsification"), ("vit", "only CRATEs")])
def test_what_does_not_fold_is_exported_as_it_is(tmp_path, source, how):
    if source == "vit":
        arguments = {"depth": 1, "img_size": 32, "num_classes": 3}
        model = timm.create_model("vit_tiny_patch16_224", **arguments)
        model.built_with = arguments
        source = save_network(model, tmp_path / "vit")
    else:
        source = save_pretrained(model := small(sparsify="ista_unrolled"), tmp_path / "network")
    file = tmp_path / "x.pt2"
    assert how in export(str(source), file)
    images = torch.randn(2, 3, *model.patch_embed.img_size)
    with torch.inference_mode():
        torch.testing.assert_close(logits_of(file, images), model.eval()(images), rtol=1e-4, atol=1e-5)


def test_a_wrong_file_is_never_written(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr("opencrate.export._folded", lambda model: (small(1, num_classes=3), "another network"))
    with pytest.raises(ValueError, match="logits differ from the network's by"):
        export(str(checkpoint), tmp_path / "x.pt2")
    assert not (tmp_path / "x.pt2").exists()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("x.pt", r"must end in \.onnx or \.pt2"),
        ("old.pt2", "exists: --force replaces it"),
        ("x.onnx", r"ONNX needs onnx, onnxscript and onnxruntime: pip install 'opencrate\[export\]'"),
    ],
)
def test_what_is_wrong_is_a_sentence(checkpoint, tmp_path, monkeypatch, name, sentence):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    (tmp_path / "old.pt2").write_text("old")
    with pytest.raises(ValueError, match=sentence):
        export(str(checkpoint), tmp_path / name)
    assert (tmp_path / "old.pt2").read_text() == "old"
    if name == "old.pt2":
        export(str(checkpoint), tmp_path / name, force=True)
        assert record_in(tmp_path / name)["size"] == 16
