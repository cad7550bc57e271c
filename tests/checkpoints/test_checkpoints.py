import argparse
import json
import os
import pickle
import shutil
import stat
from pathlib import Path

import pytest
import safetensors.torch
import timm
import torch
from timm.models import save_for_hf

import opencrate
from benchmarks.pseudocode import PaperCRATE
from opencrate import CRATE, load, save_pretrained
from opencrate.checkpoints import convert, read, save_authors

from ..networks import SMALL, small, transcribed

IMAGES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
KEPT = pytest.mark.skipif(not hasattr(timm.models, "get_model_args"), reason="timm keeps no arguments before 1.0.31")


def authors_state(dim=24, depth=3, heads=4, head_dim=6, patch=4, patches=16, classes=5, seed=0):
    """Random weights with the keys and shapes of the authors' checkpoints, from their published table."""
    inner, pixels = heads * head_dim, 3 * patch**2
    shapes = {
        "pos_embedding": (1, patches + 1, dim),
        "cls_token": (1, 1, dim),
        "to_patch_embedding.1.weight": (pixels,),
        "to_patch_embedding.1.bias": (pixels,),
        "to_patch_embedding.2.weight": (dim, pixels),
        "to_patch_embedding.2.bias": (dim,),
        "to_patch_embedding.3.weight": (dim,),
        "to_patch_embedding.3.bias": (dim,),
    }
    for l in range(depth):
        shapes |= {
            f"transformer.layers.{l}.0.norm.weight": (dim,),
            f"transformer.layers.{l}.0.norm.bias": (dim,),
            f"transformer.layers.{l}.0.fn.qkv.weight": (inner, dim),
            f"transformer.layers.{l}.0.fn.to_out.0.weight": (dim, inner),
            f"transformer.layers.{l}.0.fn.to_out.0.bias": (dim,),
            f"transformer.layers.{l}.1.norm.weight": (dim,),
            f"transformer.layers.{l}.1.norm.bias": (dim,),
            f"transformer.layers.{l}.1.fn.weight": (dim, dim),
        }
    shapes |= {
        "mlp_head.0.weight": (dim,),
        "mlp_head.0.bias": (dim,),
        "mlp_head.1.weight": (classes, dim),
        "mlp_head.1.bias": (classes,),
    }
    generator = torch.Generator().manual_seed(seed)
    return {name: 0.3 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}


WRAPPINGS = {
    "bare": lambda state: state,
    "state_dict": lambda state: {
        "epoch": 150,
        "arch": "CRATE_tiny",
        "state_dict": state,
        "best_acc1": torch.tensor(66.7),
        "optimizer": {"state": {}, "param_groups": [{"lr": 2.4e-4, "betas": (0.9, 0.99)}]},
        "scheduler": {"last_epoch": 150},
    },
    "model": lambda state: {"model": state},
    "module.": lambda state: {"state_dict": {f"module.{key}": value for key, value in state.items()}},
    "bare module.": lambda state: {f"module.{key}": value for key, value in state.items()},
}


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_authors_checkpoint_round_trip(tmp_path, wrapping):
    """Import; predict as the paper's algorithms do; export; import again, bit for bit."""
    state = authors_state()
    torch.save(WRAPPINGS[wrapping](state), tmp_path / "model_best.pth.tar")
    model = load(tmp_path / "model_best.pth.tar", num_heads=4)
    assert not model.training
    paper = PaperCRATE(image_size=16, patch_size=4, num_classes=5, dim=24, depth=3, heads=4, dim_head=6)
    paper.load_state_dict(state)
    torch.testing.assert_close(model(IMAGES), paper.eval()(IMAGES), rtol=0, atol=1e-5)
    torch.testing.assert_close(model.double()(IMAGES.double()), paper.double()(IMAGES.double()), rtol=0, atol=1e-10)

    model = load(tmp_path / "model_best.pth.tar", num_heads=4)
    convert(save_pretrained(model, tmp_path / "ours"), tmp_path / "again.pth.tar")
    exported = torch.load(tmp_path / "again.pth.tar", weights_only=True)["state_dict"]
    assert exported.keys() == state.keys()
    assert all(torch.equal(exported[key], state[key]) for key in state)
    again = load(tmp_path / "again.pth.tar", num_heads=4)
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), model.parameters(), strict=True))
    assert torch.equal(again(IMAGES), model(IMAGES))


@pytest.mark.parametrize(
    ("size", "dim", "depth", "heads"),
    [("tiny", 384, 12, 6), ("small", 576, 12, 12), ("base", 768, 12, 12), ("large", 1024, 24, 16)],
)
def test_the_papers_sizes_are_known_by_their_shapes(tmp_path, size, dim, depth, heads):
    state = authors_state(dim, depth, heads, dim // heads, patch=16, patches=196, classes=1000)
    torch.save(state, tmp_path / "model.pth")
    found = read(tmp_path / "model.pth")
    assert found.architecture == f"crate_{size}_patch16_224"
    assert found.describe()["size"].startswith(f"{size}:")
    assert found.describe()["heads"] == f"{heads} of dimension {dim // heads} (assumed)"
    with pytest.raises(ValueError, match="in all, which 7 heads do not divide"):
        read(tmp_path / "model.pth", num_heads=7)


@pytest.mark.parametrize(
    "arguments",
    [{"global_pool": "avg"}, {"num_heads": 2}, {"img_size": (8, 32)}, {"in_chans": 4}, {"num_heads": 2, "head_dim": 5}],
    ids=str,
)
def test_what_the_authors_layout_does_not_tell_comes_back(tmp_path, arguments):
    model = small(**arguments)
    save_authors(model, tmp_path / "model.pth")
    again = load(tmp_path / "model.pth")
    assert again.config() == model.config()
    assert not any("assumed" in row for row in read(tmp_path / "model.pth").describe().values())
    images = torch.randn(2, model.patch_embed.in_chans, *model.patch_embed.img_size)
    assert torch.equal(again(images), model(images))


def test_a_configuration_of_somebody_elses_is_not_ours(tmp_path):
    torch.save({"config": {"num_heads": 9, "lr": 1e-3}, "state_dict": authors_state()}, tmp_path / "model.pth")
    assert load(tmp_path / "model.pth", num_heads=4).num_heads == 4


def test_heads_can_be_told(tmp_path):
    """A public segmentation checkpoint has the Base size's shape, patches of 8 pixels and 6 heads."""
    torch.save(authors_state(dim=768, depth=12, heads=6, head_dim=128, patch=8, patches=49), tmp_path / "model.pth")
    assert load(tmp_path / "model.pth").num_heads == 12
    model = load(tmp_path / "model.pth", num_heads=6)
    assert (model.num_heads, model.head_dim, model.patch_embed.img_size) == (6, 128, (56, 56))


def test_one_head_without_an_output_map(tmp_path):
    model = small(num_heads=1)
    save_authors(model, tmp_path / "model.pth")
    assert not any("to_out" in key for key in torch.load(tmp_path / "model.pth", weights_only=True)["state_dict"])
    again = load(tmp_path / "model.pth")
    torch.testing.assert_close(again(IMAGES), transcribed(model)(IMAGES), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"global_pool": "avg", "in_chans": 1, "num_classes": 3},
        {"compress": "softmax_step", "compress_args": {"kappa": 0.1}, "sparsify": "prox_mm_tight"},
        {"num_heads": 3, "head_dim": 16, "dynamic_img_size": True, "norm_eps": 1e-6},
        {"num_classes": 0},
        {"img_size": (8, 32), "drop_rate": 0.1, "drop_path_rate": 0.2},
        {"dtype": torch.bfloat16},
        {"dtype": torch.float64},
    ],
    ids=str,
)
def test_our_checkpoints_round_trip(tmp_path, arguments):
    model = small(**arguments)
    save_pretrained(model, tmp_path / "checkpoint")
    assert list(tmp_path.iterdir()) == [tmp_path / "checkpoint"]
    modes = {file.name: file.stat().st_mode for file in (tmp_path / "checkpoint").iterdir()}
    assert modes.keys() == {"README.md", "config.json", "model.safetensors"}
    assert len(set(modes.values())) == 1
    again = load(tmp_path / "checkpoint")
    assert again.config() == model.config()
    # Half precision is widened, as timm does it.
    dtype = torch.promote_types(model.cls_token.dtype, torch.float32)
    images = torch.randn(2, model.patch_embed.in_chans, *model.patch_embed.img_size, dtype=dtype)
    assert {weight.dtype for weight in again.parameters()} == {dtype}
    assert torch.equal(again(images), model.to(dtype)(images))
    from_timm = timm.create_model(f"local-dir:{tmp_path / 'checkpoint'}", pretrained=True, dtype=dtype).eval()
    assert torch.equal(from_timm(images), again(images))
    assert again.training is False
    assert all(weight.requires_grad for weight in again.parameters())
    assert torch.equal(load(tmp_path / "checkpoint" / "model.safetensors")(images), again(images))


def test_a_changed_network_is_saved_as_it_is(tmp_path):
    model = timm.create_model("crate_tiny_patch4_32", depth=2)
    model.reset_classifier(7, "avg")
    model.set_input_size(48)
    save_pretrained(model, tmp_path)
    again = load(tmp_path)
    assert again(torch.randn(1, 3, 48, 48)).shape == (1, 7)
    assert tuple(again.pretrained_cfg["input_size"]) == (3, 48, 48)
    assert tuple(timm.data.resolve_data_config(model=again)["input_size"]) == (3, 48, 48)
    assert json.loads((tmp_path / "config.json").read_text())["architecture"] == "crate_tiny_patch4_32"


def test_a_pruned_network(tmp_path):
    model = small()
    model.prune_intermediate_layers([0, 1])
    save_pretrained(model, tmp_path / "two layers")
    again = load(tmp_path / "two layers")
    for ours, theirs in zip(*(m.forward_intermediates(IMAGES)[1] for m in (model, again)), strict=True):
        assert torch.equal(ours, theirs)
    model.prune_intermediate_layers([0], prune_norm=True)
    with pytest.raises(ValueError, match=r"what is to be saved is not a whole network: norm\.bias is missing"):
        save_pretrained(model, tmp_path / "no norm")
    assert not (tmp_path / "no norm").exists()


def test_saving_over_an_older_checkpoint_replaces_it(tmp_path):
    save_pretrained(small(seed=0), tmp_path)
    save_pretrained(small(seed=1), tmp_path)
    assert torch.equal(load(tmp_path)(IMAGES), small(seed=1)(IMAGES))


def test_what_is_saved_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    """A power cut leaves the older checkpoint, or a whole one."""
    flushed, fsync = set(), os.fsync

    def noted(file):
        if not stat.S_ISDIR(
            os.fstat(file).st_mode
        ):  # the folder's entries are flushed after the files have their names
            assert not (tmp_path / "checkpoint").exists()
            flushed.add(os.fstat(file).st_ino)
        fsync(file)

    monkeypatch.setattr(os, "fsync", noted)
    save_pretrained(small(), tmp_path / "checkpoint")
    assert flushed == {file.stat().st_ino for file in (tmp_path / "checkpoint").iterdir()}


def test_saving_and_loading_leave_things_as_they_were(tmp_path):
    model = small()
    state = torch.random.get_rng_state()
    save_pretrained(model, tmp_path / "checkpoint")
    load(tmp_path / "checkpoint")
    assert torch.equal(torch.random.get_rng_state(), state)
    assert model.pretrained_cfg is None


def test_a_wrapped_network_is_saved_without_its_wrapper(tmp_path):
    save_pretrained(torch.compile(small()), tmp_path)
    assert torch.equal(load(tmp_path)(IMAGES), small()(IMAGES))


def test_timms_training_checkpoints(tmp_path):
    """They hold the command line as an argparse.Namespace."""
    content = {"epoch": 3, "arch": "crate", "state_dict": small().state_dict(), "args": argparse.Namespace(lr=1e-3)}
    torch.save(content, tmp_path / "model_best.pth.tar")
    assert torch.equal(load(tmp_path / "model_best.pth.tar", num_heads=4)(IMAGES), small()(IMAGES))
    assert load(tmp_path / "model_best.pth.tar", num_heads=4).num_heads == 4


def test_weights_without_a_configuration(tmp_path):
    model = small()
    torch.save(small(sparsify="prox_mm").state_dict(), tmp_path / "other.pth")
    rows = read(tmp_path / "other.pth", num_heads=4).describe()
    assert rows["sparsification"] == "ista (eta=0.1, lam=0.1) (assumed)"
    assert rows["compression"] == "mssa (bias=True, causal=False, basis=free) (assumed)"
    safetensors.torch.save_file(model.state_dict(), tmp_path / "weights.safetensors")
    assert torch.equal(load(tmp_path / "weights.safetensors", num_heads=4)(IMAGES), model(IMAGES))
    compiled = {f"_orig_mod.{key}": value for key, value in model.state_dict().items()}
    torch.save({"model": compiled}, tmp_path / "weights.pt")
    assert torch.equal(load(tmp_path / "weights.pt", num_heads=4)(IMAGES), model(IMAGES))


def test_a_folder_that_timm_wrote(tmp_path):
    """timm's own saving keeps classes and pooling, and of our arguments at most those that were given."""
    model = timm.create_model("crate_tiny_patch4_32", num_classes=3, global_pool="avg").eval()
    save_for_hf(model, tmp_path, safe_serialization="both")
    images = torch.randn(1, 3, 32, 32)
    assert torch.equal(load(tmp_path)(images), model(images))
    assert read(tmp_path).describe()["sparsification"].endswith("(assumed)")
    with torch.no_grad():
        model.head.bias.add_(1)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    assert torch.equal(load(tmp_path / "pytorch_model.bin")(images), model(images))
    assert not torch.equal(load(tmp_path)(images), model(images))


def test_what_a_folder_tells_is_not_assumed(tmp_path):
    save_pretrained(small(sparsify="prox_mm"), tmp_path)
    assert "(assumed)" not in "".join(read(tmp_path).describe().values())
    config = json.loads((tmp_path / "config.json").read_text())
    del config["model_args"]["compress"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = read(tmp_path).describe()
    assert [key for key, text in found.items() if text.endswith("(assumed)")] == ["compression"]
    assert found["sparsification"].startswith("prox_mm ")


@KEPT
def test_timms_own_saving_of_a_changed_network(tmp_path):
    model = timm.create_model("crate_tiny_patch4_32", depth=2, in_chans=1, sparsify="prox_mm").eval()
    model.reset_classifier(7, "avg")
    model.patch_embed.set_in_chans(3)
    model.set_input_size((48, 24), 8)
    save_for_hf(model, tmp_path, safe_serialization=True)
    assert load(tmp_path).config() == model.config()
    images = torch.randn(1, 3, 48, 24)
    assert torch.equal(load(tmp_path)(images), model(images))
    assert torch.equal(timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()(images), model(images))


def test_shared_and_strided_weights_convert(tmp_path):
    state = authors_state()
    state["transformer.layers.1.1.fn.weight"] = state["transformer.layers.0.1.fn.weight"]
    state["transformer.layers.2.1.fn.weight"] = state["transformer.layers.2.1.fn.weight"].T
    torch.save(state, tmp_path / "model.pth")
    convert(tmp_path / "model.pth", tmp_path / "ours", num_heads=4)
    assert torch.equal(load(tmp_path / "ours")(IMAGES), load(tmp_path / "model.pth", num_heads=4)(IMAGES))


def test_hub_repository(tmp_path, monkeypatch):
    """A repository in the Hub's local cache, with the network off."""
    snapshot = tmp_path / "models--someone--crate" / "snapshots" / "0123abc"
    save_pretrained(small(), snapshot, transformers=True)
    refs = tmp_path / "models--someone--crate" / "refs"
    refs.mkdir()
    (refs / "main").write_text("0123abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    found = read("someone/crate")
    assert found.origin == "Hub repository someone/crate"
    assert torch.equal(load("hf-hub:someone/crate")(IMAGES), small()(IMAGES))
    assert torch.equal(timm.create_model("hf_hub:someone/crate", pretrained=True).eval()(IMAGES), small()(IMAGES))
    with pytest.raises(ValueError, match="someone/else is neither a file nor a folder here, nor a Hub repository"):
        load("someone/else")


class Malicious:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (self.marker,)


def broken_checkpoints(folder):
    """(path, part of the sentence) for every way in which a file can be wrong."""
    good = folder / "good.pth"
    torch.save({"state_dict": authors_state()}, good)
    ours = save_pretrained(small(), folder / "ours")

    def write(name, content):
        (folder / name).write_bytes(content)
        return folder / name

    def save(name, content):
        torch.save(content, folder / name)
        return folder / name

    def altered(name, **changes):
        target = shutil.copytree(ours, folder / name)
        config = json.loads((target / "config.json").read_text())
        config.update(changes)
        (target / "config.json").write_text(json.dumps(config))
        return target

    whole, tensors = good.read_bytes(), (ours / "model.safetensors").read_bytes()
    wrong_shape = {**authors_state(), "transformer.layers.1.1.fn.weight": torch.zeros(24, 23)}
    missing = {key: value for key, value in authors_state().items() if "layers.1.1.fn" not in key}
    extra = {**authors_state(), "transformer.layers.0.2.norm.weight": torch.zeros(24)}
    cut = shutil.copytree(ours, folder / "cut")
    (cut / "model.safetensors").write_bytes(tensors[:-100])
    no_weights = shutil.copytree(ours, folder / "no_weights")
    (no_weights / "model.safetensors").unlink()
    pipe = folder / "pipe.pth"
    os.mkfifo(pipe)
    bad_json = shutil.copytree(ours, folder / "bad_json")
    (bad_json / "config.json").write_text("{")
    deep = shutil.copytree(ours, folder / "deep")
    (deep / "config.json").write_text("[" * 100_000)
    (folder / "empty").mkdir()
    marker = folder / "ran"
    return [
        (write("truncated.pth", whole[: len(whole) // 2]), "cannot be read as a checkpoint"),
        (write("empty.pth", b""), "cannot be read as a checkpoint"),
        (write("text.pth", b"these are not weights\n" * 50), "damaged, or holds no weights"),
        (write("picture.pth.tar", b"\x89PNG\r\n\x1a\n" + bytes(500)), "damaged, or holds no weights"),
        (write("truncated.safetensors", tensors[: len(tensors) // 2]), "cannot be read as a checkpoint"),
        (write("text.safetensors", b"not weights"), "cannot be read as a checkpoint"),
        (save("code.pth", {"state_dict": authors_state(), "hook": Malicious(str(marker))}), "holds code (posix.mkdir)"),
        (write("code.pickle", pickle.dumps(Malicious(str(marker)), protocol=2)), "holds code (posix.mkdir)"),
        (
            write("code4.pickle", pickle.dumps(Malicious(str(marker)), protocol=4)),
            "holds code (posix.mkdir)",
        ),
        (
            write("code5.pickle", pickle.dumps(Malicious(str(marker)), protocol=5)),
            "holds code (posix.mkdir)",
        ),
        (save("tensor.pth", torch.zeros(3)), "holds a Tensor, not named weights"),
        (save("list.pth", [1, 2]), "holds a list, not named weights"),
        (save("resnet.pth", {"state_dict": {"conv1.weight": torch.zeros(2, 2)}}), "is not a CRATE checkpoint"),
        (save("not_tensors.pth", {"cls_token": 1, "to_patch_embedding.2.weight": "x"}), "not a CRATE checkpoint"),
        (save("wrong_shape.pth", wrong_shape), "blocks.1.sparsify.operator.D has shape (24, 23) instead of (24, 24)"),
        (save("missing.pth", missing), "blocks.1.sparsify.operator.D is missing"),
        (
            save("sparse.pth", {k: v.to_sparse() for k, v in authors_state().items()}),
            "first weights in it are none",
        ),
        (save("complex.pth", {k: v + 0j for k, v in authors_state().items()}), "first weights in it are none"),
        (
            save("numbers.pth", {"state_dict": {1: torch.zeros(2)}}),
            "first weights in it are none",
        ),
        (save("no_tokens.pth", {**authors_state(), "pos_embedding": torch.zeros(1, 0, 24)}), "not a square grid"),
        (
            save("vit.pth", timm.create_model("test_vit").state_dict()),
            "the first weights in it are cls_token",
        ),
        (save("extra.pth", extra), "unknown key 'transformer.layers.0.2.norm.weight'"),
        (save("not_square.pth", authors_state(patches=15)), "not a square grid of square patches"),
        (folder / "nowhere.pth", "does not exist"),
        (Path("/dev/zero"), "/dev/zero is not a file"),
        (pipe, "pipe.pth is not a file"),
        (folder / "empty", "holds no config.json"),
        (cut, "cannot be read as a checkpoint"),
        (no_weights, "holds none of model.safetensors"),
        (bad_json, "config.json is not JSON that can be read"),
        (altered("vit", architecture="vit_tiny_patch16_224"), "'vit_tiny_patch16_224', which is not a CRATE"),
        (altered("typo", model_args={**small().config(), "compress": "msa"}), "unknown compression 'msa'"),
        (altered("argument", model_args={**small().config(), "colour": "red"}), "describes no network"),
        (altered("mismatch", model_args={**small().config(), "depth": 4}), "is not a whole network"),
        (altered("negative", model_args={**small().config(), "embed_dim": -24}), "embed_dim must be a whole number"),
        (altered("enormous", model_args={**small().config(), "embed_dim": 10**15}), "describes no network"),
        (altered("null", model_args=None), "is not a checkpoint's configuration"),
        (altered("text", model_args="small"), "is not a checkpoint's configuration"),
        (altered("names", architecture=["crate"]), "names no architecture"),
        (deep, "config.json is not JSON that can be read"),
        (altered("list", pretrained_cfg=[1]), "is not a checkpoint's configuration"),
    ]


def test_broken_checkpoints_are_one_sentence_and_nothing_is_written(tmp_path):
    (tmp_path / "in").mkdir()
    cases = broken_checkpoints(tmp_path / "in")
    for path, message in cases:
        with pytest.raises(ValueError) as error:  # noqa: PT011
            convert(path, tmp_path / "out", num_heads=4)
        assert message in str(error.value), path
        assert "\n" not in str(error.value), path
        assert not (tmp_path / "out").exists()
    assert not (tmp_path / "in" / "ran").exists()


def test_other_refusals(tmp_path):
    torch.save(authors_state(), tmp_path / "model.pth")
    with pytest.raises(ValueError, match="depth 3 and dimension 24, none of the paper's sizes: give num_heads"):
        load(tmp_path / "model.pth")
    save_pretrained(small(), tmp_path / "ours")
    with pytest.raises(ValueError, match="has 4 heads, not 3"):
        load(tmp_path / "ours", num_heads=3)
    with pytest.raises(ValueError, match="no place for sparsify_args="):
        save_authors(small(sparsify_args={"eta": 0.2}), tmp_path / "out.pth")
    with pytest.raises(ValueError, match="no place for compress='mssa_tied'"):
        save_authors(small(compress="mssa_tied"), tmp_path / "out.pth")
    with pytest.raises(ValueError, match="or without pooling"):
        save_authors(small(global_pool=""), tmp_path / "out.pth")
    with pytest.raises(ValueError, match=r"a file in the authors' layout ends in \.pth"):
        save_authors(small(), tmp_path / "out.safetensors")
    with pytest.raises(ValueError, match="on the device meta"):
        save_pretrained(CRATE(**SMALL, device="meta"), tmp_path / "meta")
    with pytest.raises(ValueError, match="needs a folder of its own"):
        save_pretrained(small(), "")
    with pytest.raises(ValueError, match="without a classifier"):
        save_authors(small(num_classes=0), tmp_path / "out.pth")
    for name in ("out.safetensors", "out.zip", "out.pkl"):
        with pytest.raises(ValueError, match="give a folder's name for our layout, or a file's"):
            convert(tmp_path / "ours", tmp_path / name)
    with pytest.raises(ValueError, match="is what would be read: give another name"):
        convert(tmp_path / "ours", tmp_path / "ours" / ".." / "ours")
    with pytest.raises(ValueError, match="can only save a CRATE, got VisionTransformer"):
        save_pretrained(timm.create_model("test_vit"), tmp_path / "vit")
    edited = small()
    edited.blocks[1].sparsify.operator.options["eta"] = 0.2
    with pytest.raises(ValueError, match="layers that sparsify in different ways"):
        save_pretrained(edited, tmp_path / "edited")
    (tmp_path / "folder.pth").mkdir()
    with pytest.raises(ValueError, match=r"folder\.pth is a folder"):
        save_authors(small(), tmp_path / "folder.pth")
    with pytest.raises(ValueError, match="does not exist"):
        load("")
    (tmp_path / "occupied").write_text("mine")
    with pytest.raises(ValueError, match="occupied exists: give another name, or --force to overwrite it"):
        convert(tmp_path / "ours", tmp_path / "occupied")
    with pytest.raises(ValueError, match="is a file: a checkpoint is written into a folder"):
        convert(tmp_path / "ours", tmp_path / "occupied", force=True)
    assert (tmp_path / "occupied").read_text() == "mine"
    assert not (tmp_path / "out.pth").exists()


def test_torchs_reader_is_never_called():
    """Nor pickle's: `checkpoints.torch_files` reads torch's files."""
    sources = [file.read_text() for file in Path(opencrate.__file__).parent.rglob("*.py")]
    assert not any("torch.load(" in source or "pickle.load" in source for source in sources)


def test_config_of_a_plain_network_is_complete(tmp_path):
    save_pretrained(CRATE(**SMALL), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architecture"] in timm.list_models("crate_*")
    assert config["num_classes"] == 5
    assert config["model_args"]["embed_dim"] == 24
    assert config["pretrained_cfg"]["input_size"] == [3, 16, 16]
