"""Checkpoints that are damaged or made to harm: refused with a sentence, before memory is taken and without code."""

import io
import json
import logging
import pickle
import zipfile

import pytest
import safetensors.torch
import torch

from opencrate import load, save_pretrained
from opencrate.checkpoints import read, save_authors
from opencrate.checkpoints.torch_files import Stored, read_content, read_tensors

from ..networks import SMALL, small


def members(file):
    with zipfile.ZipFile(file) as archive:
        return {info.filename: archive.read(info) for info in archive.infolist()}


def write(file, content, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, inside in content.items():
            archive.writestr(name, inside)
    return file


@pytest.mark.parametrize("new", [True, False], ids=["zip", "older"])
def test_torchs_files_are_read_as_torch_reads_them(tmp_path, new):
    """Shared, transposed, sliced and empty tensors, half precisions, parameters, and what stands beside weights."""
    base = torch.randn(6, 8)
    content = {
        **{"base": base, "transposed": base.T, "slice": base[2:4, ::3], "last": base[5], "scalar": base[0, 0]},
        **{"half": base.half(), "bfloat": base.bfloat16(), "double": base.double(), "empty": torch.zeros(0, 3)},
        **{"parameter": torch.nn.Parameter(base), "whole": torch.arange(5), "bool": base > 0},
        **{"optimizer": {"state": {0: {"step": 3}}, "betas": (0.9, 0.99)}, "size": base.shape, "epoch": 7},
    }
    torch.save(content, tmp_path / "model.pth", _use_new_zipfile_serialization=new)
    stored = read_content(tmp_path / "model.pth")
    assert stored["epoch"] == 7
    assert stored["optimizer"] == content["optimizer"]
    tensors = read_tensors(tmp_path / "model.pth", {k: v for k, v in stored.items() if isinstance(v, Stored)})
    assert tensors.keys() == {name for name, value in content.items() if isinstance(value, torch.Tensor)}
    for name, tensor in tensors.items():
        assert tensor.dtype == content[name].dtype
        assert torch.equal(tensor, content[name]), name
        assert tensor.is_contiguous()


def test_a_tensor_without_strides_takes_no_memory(tmp_path):
    """One value, expanded to 10^15: torch.load would return it, and a copy would take 4 PB."""
    state = {**small().state_dict(), "norm.weight": torch.zeros(1).expand(10**15)}
    torch.save(state, tmp_path / "model.pth")
    with pytest.raises(ValueError, match=r"norm\.weight has shape \(1000000000000000,\) instead of \(24,\)"):
        load(tmp_path / "model.pth", num_heads=4)
    state["norm.weight"] = torch.zeros(1).expand(SMALL["embed_dim"])
    torch.save(state, tmp_path / "model.pth")
    with pytest.raises(ValueError, match=r"is damaged: a tensor of shape \(24,\) has only 4 bytes"):
        load(tmp_path / "model.pth", num_heads=4)


def test_a_member_that_is_too_short_is_not_read_beyond_its_end(tmp_path):
    """torch.load returns what lies behind it in memory."""
    file = save_authors(small(), tmp_path / "model.pth")
    write(file, {name: inside[:4] if name.endswith("/data/0") else inside for name, inside in members(file).items()})
    with pytest.raises(ValueError, match="data/0 is shorter than its tensors say"):
        load(file)


@pytest.mark.parametrize("suffix", [".pth", ".pth.tar"])
def test_checksums_of_a_zip_file_are_compared(tmp_path, suffix):
    model = small()
    file = save_authors(model, tmp_path / f"model{suffix}")
    content = bytearray(file.read_bytes())
    at = content.find(model.norm.weight.detach().numpy().tobytes())
    content[at + 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"is damaged: Bad CRC-32 for file"):
        load(file)


def test_weights_of_ours_that_were_damaged_are_refused(tmp_path):
    model = small()
    file = save_pretrained(model, tmp_path) / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[content.find(model.norm.weight.detach().numpy().tobytes()) + 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"model.safetensors is damaged: its weights are not those that were written"):
        load(tmp_path)
    safetensors.torch.save_file(safetensors.torch.load(bytes(content)), file)  # without a checksum, as by others
    load(tmp_path)


def test_a_file_that_unpacks_to_much_more_is_refused(tmp_path):
    torch.save(small().state_dict(), tmp_path / "model.pth")
    content = {**members(tmp_path / "model.pth"), "model/data/999": bytes(10**8)}
    write(tmp_path / "model.pth", content, zipfile.ZIP_DEFLATED)
    with pytest.raises(ValueError, match=r"its members unpack to 100,\d+,\d+ bytes, from "):
        load(tmp_path / "model.pth", num_heads=4)
    write(tmp_path / "model.pth", members(save_authors(small(), tmp_path / "again.pth")), zipfile.ZIP_DEFLATED)
    assert torch.equal(load(tmp_path / "model.pth").norm.weight, small().norm.weight)


def test_a_network_is_not_built_before_its_weights_are_counted(tmp_path):
    save_pretrained(small(), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["model_args"]["depth"] = 10**9
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="is not a whole network: it has weights for 3 of 1000000000 layers"):
        load(tmp_path)


def test_weights_that_are_not_finite_are_said(tmp_path, caplog):
    model = small()
    with torch.no_grad():
        model.blocks[1].sparsify.operator.D[2, 3] = float("nan")
    save_pretrained(model, tmp_path)
    with caplog.at_level(logging.WARNING):
        load(tmp_path)
    (line,) = caplog.messages
    assert "the weight blocks.1.sparsify.operator.D has values that are not finite" in line


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("inside", [True, False], ids=["zip", "bare"])
def test_no_pickle_runs_code(tmp_path, protocol, inside):
    class Code:
        def __reduce__(self):
            return eval, ("open('ran', 'w')",)

    content = pickle.dumps({"state_dict": Code()}, protocol)
    file = tmp_path / "model.pth"
    if inside:
        write(file, {"model/data.pkl": content, "model/version": b"3\n"})
    else:
        file.write_bytes(content)
    with pytest.raises(ValueError, match=r"holds code \((builtins|__builtin__)\.eval\); only weights are read"):
        load(file)


HOSTILE_PICKLES = {
    "memory for a byte array": b"\x80\x05\x96" + (10**12).to_bytes(8, "little"),
    "a memo of a billion places": b"\x80\x02}r" + (2**32 - 1).to_bytes(4, "little") + b".",
    "a key as deep as the stack": b"\x80\x02}" + b"(" * 1 + b")" + b"\x85" * 1_000_000 + b"K\x01u.",
    "a set as deep as the stack": b"\x80\x04\x8f()" + b"\x85" * 1_000_000 + b"\x90.",
    "a storage of 10^15 values": b"\x80\x02}(X\x01\x00\x00\x00a(X\x07\x00\x00\x00storagectorch\nFloatStorage\n"
    b"X\x01\x00\x00\x000X\x03\x00\x00\x00cpu\x8a\x07" + (10**15).to_bytes(7, "little") + b"tQu.",
    "attributes of a function": b"\x80\x02ctorch._utils\n_rebuild_parameter\nN}X\x0c\x00\x00\x00__defaults__)s\x86b.",
}


@pytest.mark.parametrize("name", HOSTILE_PICKLES)
def test_pickles_that_ask_for_memory_get_none(tmp_path, name):
    file = write(tmp_path / "model.pth", {"model/data.pkl": HOSTILE_PICKLES[name], "model/version": b"3\n"})
    with pytest.raises(ValueError, match=r"cannot be read as a checkpoint|is not a CRATE checkpoint"):
        load(file)


def test_a_checkpoints_text_has_no_control_characters(tmp_path):
    content = {"state_dict": small().state_dict(), "arch": "\x1b]0;taken\x07" * 100}
    torch.save(content, tmp_path / "model.pth")
    origin = read(tmp_path / "model.pth", num_heads=4).describe()["from"]
    assert origin.isprintable()
    assert len(origin) < 200
    buffer = io.BytesIO()
    torch.save({**small().state_dict(), "\x1b[31m" * 1000: torch.zeros(1)}, buffer)
    (tmp_path / "model.pth").write_bytes(buffer.getvalue())
    with pytest.raises(ValueError, match="is not a weight of it") as error:
        load(tmp_path / "model.pth", num_heads=4)
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 300
