"""What is published with a network: its model card, and what Hugging Face's transformers reads."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import timm
import torch
from huggingface_hub import ModelCard
from PIL import Image
from torch import nn

import opencrate
from opencrate import Card, load, push_to_hub, save_pretrained
from opencrate.checkpoints.for_transformers import CODE
from opencrate.data import Dataset
from opencrate.data.augment.transforms import evaluation_transform
from opencrate.files import write_json
from opencrate.recipes import RECIPES, named, recipe_text
from opencrate.run_recipe import card_of
from opencrate.shipped import NETWORK

from ..networks import small

IMAGES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
PHOTO = next((NETWORK.parent / "photos").glob("*cat.jpg"))
RESULT = {"recipe": "digits", "steps": 1, "epochs": 1, "skipped_steps": 0, "training_seconds": 1, "start_up_seconds": 1}


def card_in(folder):
    return ModelCard((folder / "README.md").read_text(encoding="utf-8"))


@pytest.fixture
def run(tmp_path):
    """The folder of a finished run, with a network."""
    folder = tmp_path / "runs" / "digits"
    save_pretrained(small(in_chans=1), folder / "model", card=None)
    (folder / "recipe.yaml").write_text(recipe_text(named("digits", RECIPES)))
    result = {**RESULT, "top1": 97.25, "best": {"top1": 98.5}, "layers": None, "model": str(folder / "model")}
    write_json(folder / "result.json", result)
    return folder


class TestCard:
    def test_it_says_what_is_stated(self, tmp_path):
        card = Card("cc-by-4.0", "cifar10", 88.71, "200 epochs of Lion", "Colour photos only.")
        save_pretrained(small(), tmp_path / "mine", card)
        written = card_in(tmp_path / "mine")
        (result,) = written.data.eval_results
        assert (written.data.license, written.data.library_name) == ("cc-by-4.0", "timm")
        assert (result.dataset_name, result.metric_type, result.metric_value) == ("cifar10", "accuracy", 88.71)
        assert written.data.pipeline_tag == "image-classification"
        for text in ("# mine", "3 layers, dimension 24", "200 epochs of Lion", "88.71 % top-1", "Colour photos only."):
            assert text in written.text
        assert "the licence `cc-by-4.0`" in written.text
        assert "modeling_crate.py" not in written.text
        record = json.loads((tmp_path / "mine" / "config.json").read_text())["pretrained_cfg"]
        assert record["license"] == "cc-by-4.0"

    def test_no_licence_is_assumed(self, tmp_path, hub):
        """Neither by the card nor in timm's record, also after a network whose licence was stated."""
        model = load(save_pretrained(small(), tmp_path / "stated", Card(license="mit")))
        save_pretrained(model, tmp_path / "mine")
        push_to_hub(timm.create_model("crate_tiny_patch4_32", depth=1), "someone/crate")
        for folder in (tmp_path / "mine", hub):
            written = card_in(folder)
            assert written.data.license is None
            assert written.data.eval_results is None
            assert "No licence was stated for these weights. Without one they may not be reused" in written.text
            assert re.findall("Dataset: (.*)\n- Accuracy: (.*)\n- Recipe: (.*)\n", written.text) == [
                ("not stated",) * 3
            ]
            assert "license" not in (folder / "config.json").read_text()

    def test_what_a_person_wrote_stays(self, tmp_path):
        file = tmp_path / "README.md"
        save_pretrained(small(), tmp_path)
        save_pretrained(small(), tmp_path, Card(dataset="cifar10"))
        assert "Dataset: cifar10" in file.read_text()
        for text in ("# My network", file.read_text().replace("cifar10", "my photos"), file.read_text() + "More.\n"):
            file.write_text(text)
            save_pretrained(small(), tmp_path, Card(dataset="digits"))
            assert file.read_text() == text

    def test_no_card(self, tmp_path):
        save_pretrained(small(), tmp_path / "mine", card=None)
        assert {file.name for file in (tmp_path / "mine").iterdir()} == {"config.json", "model.safetensors"}

    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            ({"img_size": (8, 32), "in_chans": 4}, "The network takes 4-channel images of 8 × 32 pixels"),
            ({"in_chans": 1, "num_classes": 0}, "The network has no classifier: it gives features."),
        ],
        ids=str,
    )
    def test_of_other_networks(self, tmp_path, arguments, sentence):
        save_pretrained(small(**arguments), tmp_path)
        assert sentence in card_in(tmp_path).text

    def test_of_a_run(self, run, tmp_path):
        card = card_of(run, license="mit")
        assert card == Card(license="mit", dataset="digits", recipe="digits of opencrate", top1=97.25)
        assert card_of(run / "model").top1 == 97.25
        assert card_of(run / "best").top1 == 98.5
        assert card_of(run / "checkpoints" / "epoch-0001.pt").top1 is None
        with pytest.raises(ValueError, match=r"no run folder found for .*mine"):
            card_of(tmp_path / "mine")


class TestPush:
    def test_what_is_sent_is_what_load_reads(self, hub):
        push_to_hub(small(), "someone/crate", Card(license="mit"))
        assert torch.equal(load(hub)(IMAGES), small()(IMAGES))
        assert 'timm.create_model("hf_hub:someone/crate", pretrained=True)' in card_in(hub).text
        (hub / "README.md").write_text("# My network")
        push_to_hub(small(seed=1), "someone/crate")
        assert (hub / "README.md").read_text() == "# My network"
        assert torch.equal(load(hub)(IMAGES), small(seed=1)(IMAGES))

    def test_what_is_refused_makes_no_repository(self, monkeypatch):
        monkeypatch.setattr("opencrate.checkpoints.save.HfApi", None)
        with pytest.raises(ValueError, match="transformers needs a network with a classifier"):
            push_to_hub(small(num_classes=0), "someone/crate", transformers=True)

    def test_the_lines_in_the_document(self, run, hub, tmp_path, monkeypatch):
        text = (Path(opencrate.__file__).parents[1] / "docs/howto/publish.md").read_text(encoding="utf-8")
        (snippet,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        monkeypatch.chdir(tmp_path)
        exec(compile(snippet, "publish.md", "exec"), {"__name__": "snippet"})
        assert (hub / "modeling_crate.py").read_bytes() == (tmp_path / "crate-digits" / CODE.name).read_bytes()
        assert "97.25 % top-1" in card_in(hub).text


@pytest.fixture
def code(monkeypatch):
    """modeling_crate.py beside the two classes that it takes from transformers."""

    class Config:
        def __init__(self, **values):
            vars(self).update(values)

    class Model(nn.Module):
        def __init__(self, config):
            super().__init__()

        def post_init(self):
            pass

    stub, outputs = ModuleType("transformers"), ModuleType("transformers.modeling_outputs")
    stub.PretrainedConfig, stub.PreTrainedModel, outputs.ImageClassifierOutput = Config, Model, Config
    monkeypatch.setitem(sys.modules, "transformers", stub)
    monkeypatch.setitem(sys.modules, "transformers.modeling_outputs", outputs)
    spec = importlib.util.spec_from_file_location("modeling_crate", CODE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


NETWORKS = [
    {},
    {"compress": "mssa_tied", "compress_args": {"eps": 0.7}},
    {"compress_args": {"bias": False, "causal": True}, "sparsify_args": {"eta": 0.2, "lam": 0.3}},
    {"num_heads": 1},
    {"num_heads": 3, "head_dim": 5, "global_pool": "avg", "norm": "rmsnorm", "norm_eps": 1e-3},
    {"global_pool": "", "norm": "unit", "patch_size": (4, 8), "in_chans": 1},
]


class TestTransformers:
    @pytest.mark.unhooked
    @pytest.mark.parametrize("arguments", NETWORKS, ids=str)
    def test_its_network_is_the_crate(self, tmp_path, code, arguments):
        model = small(**arguments, dtype=torch.float64)
        save_pretrained(model, tmp_path, transformers=True)
        config = json.loads((tmp_path / "config.json").read_text())
        theirs = code.CRATEForImageClassification(code.CRATEConfig(**config, num_labels=5)).double()
        theirs.load_state_dict(load(tmp_path).state_dict())
        images = torch.randn(2, model.in_chans, 16, 16, dtype=torch.float64)
        torch.testing.assert_close(theirs(images).logits, model(images), rtol=0, atol=1e-12)
        assert config["dtype"] == "float64"

    def test_the_loss_is_the_cross_entropy(self, code):
        model = small()
        theirs = code.CRATEForImageClassification(code.CRATEConfig(model_args=model.config(), num_labels=5))
        theirs.load_state_dict(model.state_dict())
        output = theirs(IMAGES, labels=torch.tensor([0, 3]))
        assert torch.equal(output.loss, nn.functional.cross_entropy(output.logits, torch.tensor([0, 3])))

    def test_one_folder_for_opencrate_and_timm_too(self, tmp_path):
        """They never run its code, which is another's to write."""
        model = small(dtype=torch.bfloat16)
        model.pretrained_cfg = {
            **timm.get_pretrained_cfg("crate_tiny_patch4_32").to_dict(),
            "label_names": list("abcde"),
        }
        save_pretrained(model, tmp_path, transformers=True)
        (tmp_path / CODE.name).write_text("raise SystemExit('ran')")
        assert torch.equal(load(tmp_path)(IMAGES), model.float()(IMAGES))
        from_timm = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
        assert torch.equal(from_timm(IMAGES), model(IMAGES))
        config = json.loads((tmp_path / "config.json").read_text())
        assert config["id2label"] == {"0": "a", "1": "b", "2": "c", "3": "d", "4": "e"}
        assert config["label2id"] == {"a": 0, "b": 1, "c": 2, "d": 3, "e": 4}
        assert (config["model_type"], config["dtype"]) == ("crate", "float32")
        assert card_in(tmp_path).data.library_name == "transformers"

    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            ({"compress": "softmax_step"}, "has no compress='softmax_step', only mssa and mssa_tied"),
            ({"sparsify": "prox_mm"}, "has no sparsify='prox_mm', only ista"),
            ({"compress_args": {"basis": "orthonormal"}}, "has no orthonormal bases"),
            ({"num_classes": 0}, "needs a network with a classifier"),
            ({"img_size": (8, 32)}, "makes square images only"),
        ],
        ids=str,
    )
    def test_what_it_cannot_express_is_refused(self, tmp_path, arguments, sentence):
        with pytest.raises(ValueError, match=sentence) as error:
            save_pretrained(small(**arguments), tmp_path / "mine", transformers=True)
        assert str(error.value).endswith("; leave out transformers=True")
        assert not (tmp_path / "mine").exists()

    @pytest.mark.slow
    @pytest.mark.unhooked
    def test_it_predicts_without_opencrate(self, tmp_path):
        """In a process that finds neither opencrate nor timm, with the network off."""
        pytest.importorskip("transformers")
        model = load(NETWORK)
        save_pretrained(model, tmp_path / "crate", transformers=True)
        script = f"""
import json, os, sys
sys.modules["opencrate"] = sys.modules["timm"] = None
import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForImageClassification

folder = {str(tmp_path / "crate")!r}
model, problems = AutoModelForImageClassification.from_pretrained(
    folder, trust_remote_code=True, output_loading_info=True
)
assert not any(problems.values()), problems
images = AutoImageProcessor.from_pretrained(folder)(Image.open({str(PHOTO)!r}), return_tensors="pt")
with torch.inference_mode():
    logits = model(**images).logits
label = model.config.id2label[logits.argmax().item()]
torch.save((images["pixel_values"], logits, label), {str(tmp_path / "result.pt")!r})
"""
        home = {"PATH": "", "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home"), "PYTHONWARNINGS": "ignore"}
        done = subprocess.run([sys.executable, "-c", script], env=home, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        images, logits, label = torch.load(tmp_path / "result.pt")
        torch.testing.assert_close(logits, model(images).detach(), rtol=0, atol=1e-5)
        data = Dataset("folder", size=32, crop_pct=1.0)
        pixels = evaluation_transform(data)(Image.open(PHOTO).convert("RGB")) / 255
        mean, std = (torch.tensor(model.pretrained_cfg[key])[:, None, None] for key in ("mean", "std"))
        torch.testing.assert_close(images[0] * std + mean, pixels, rtol=0, atol=1.01 / 255)  # resized by torchvision
        assert label == "cat"
