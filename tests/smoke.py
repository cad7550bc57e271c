"""A short walk through the package, for `make floors`: does it work with the oldest versions that it allows?"""

import json
import sys
import tempfile
from importlib import import_module
from pathlib import Path

import timm
import torch

import opencrate
from opencrate.cli import main


def run(*arguments: str) -> None:
    print("opencrate", *arguments, flush=True)
    main([str(word) for word in arguments])


def walk(folder: Path) -> None:
    """Build, forward, save, load; train the smallest network for an epoch, then evaluate, audit and analyse it."""
    model = timm.create_model("crate_tiny_patch16_224", num_classes=10, depth=2).eval()
    images = torch.randn(2, 3, 224, 224)
    opencrate.save_pretrained(model, folder / "saved")
    again = opencrate.load(folder / "saved")
    assert torch.equal(again(images), model(images))
    assert len(list(opencrate.trajectory(model, images))) == 2
    exported = torch.export.export(model, (images,)).module()
    torch.testing.assert_close(exported(images), model(images))

    small = ["--model.embed-dim", "16", "--model.depth", "2", "--model.num-heads", "2"]
    short = ["--schedule.epochs", "1", "--schedule.warmup-epochs", "0", "--device", "cpu"]
    run("train", "digits", *small, *short, "--out", folder / "run")
    result = json.loads((folder / "run" / "result.json").read_text())
    assert (result["steps"], result["skipped_steps"]) == (22, 0)
    run("describe", folder / "run")
    run("eval", folder / "run", "--device", "cpu", "--samples", "16")
    run("audit", folder / "run", "--device", "cpu", "--samples", "8")
    run("analyze", folder / "run", "--device", "cpu", "--samples", "8", "--only", "layers", "tokens")
    assert (folder / "run" / "analysis" / "report.html").is_file()


if __name__ == "__main__":
    for name in sys.argv[1:]:
        import_module(name)
    with tempfile.TemporaryDirectory() as scratch:
        walk(Path(scratch))
