"""A network for other runtimes, as ONNX or PyTorch's .pt2: folded, and compared with the network before it is written.

The file takes normalised pictures (batch, c, H, W) in float32 and gives logits. Beside the graph it holds what a reader
needs to prepare pictures and to name classes: `mean`, `std`, `size`, `crop_pct` and `classes`.
"""

import io
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .classes import class_names
from .errors import one_line
from .files import json_text, replacing
from .sources import data_for, open_network

log = logging.getLogger("opencrate")

INPUT, OUTPUT, RECORD = "images", "logits", "opencrate.json"
TOLERANCE = 1e-4  # of the largest logit
BATCHES = (1, 3)  # on which the file is compared with the network


def export(source: str, target: Path, force: bool = False) -> str:
    """Write the network of a run, a checkpoint or a name to a file; returns sentences about it."""
    writers: dict[str, Callable[..., bytes]] = {".onnx": _onnx, ".pt2": _pt2}
    readers: dict[str, Callable[[bytes], Callable[[Tensor], Tensor]]] = {".onnx": _run_onnx, ".pt2": _run_pt2}
    kind = target.suffix
    if kind not in writers:
        raise ValueError(f"{target} must end in {' or '.join(writers)}")
    if target.exists() and not force:
        raise ValueError(f"{target} exists: --force replaces it")
    model: Any = open_network(source)[0]
    data = data_for(model)
    record = {
        "classes": list(class_names(model)),
        **{name: getattr(data, name) for name in ("size", "in_chans", "mean", "std", "crop_pct")},
    }
    network, how = _folded(model)
    images = [torch.randn(count, data.in_chans, data.size, data.size) for count in BATCHES]
    content = writers[kind](network, images[-1], record)
    run = readers[kind](content)
    with torch.inference_mode():
        error = max(_difference(run(part), model(part)) for part in images)
    if not error <= TOLERANCE:
        raise ValueError(f"the exported network's logits differ from the network's by {error:.1e}, so none is written")
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as file:
        file.write(content)
    return (
        f"wrote {target}: {len(content) / 1e6:.1f} MB, {how}\n"
        f"  {INPUT} (batch, {data.in_chans}, {data.size}, {data.size}), float32, normalised with the mean and std in"
        f" the file; {OUTPUT} (batch, {model.num_classes})\n"
        f"  its logits equal the network's: the largest difference is {error:.0e} of the largest logit"
    )


def _folded(model: Any) -> tuple[nn.Module, str]:
    """The network as it runs fastest elsewhere, and how that is."""
    if not hasattr(model, "fold"):
        return model, "as it is, for only CRATEs are folded"
    try:
        return model.fold(), "folded into plain linear layers"
    except ValueError as error:
        return model, f"not folded: {one_line(str(error))}"


def _onnx(network: nn.Module, images: Tensor, record: dict[str, Any]) -> bytes:
    try:
        import onnxruntime  # noqa: F401  # the file is compared with it
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ValueError("ONNX needs onnx, onnxscript and onnxruntime: pip install 'opencrate[export]'") from error
    program: Any = torch.onnx.export(
        network,
        (images,),
        dynamo=True,
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        input_names=[INPUT],
        output_names=[OUTPUT],
        verbose=False,
    )
    program.model.metadata_props.update({name: json_text(value) for name, value in record.items()})
    return program.model_proto.SerializeToString()


def _run_onnx(content: bytes) -> Callable[[Tensor], Tensor]:
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run(None, {INPUT: images.numpy()})[0])


def _pt2(network: nn.Module, images: Tensor, record: dict[str, Any]) -> bytes:
    exported = torch.export.export(network, (images,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    file = io.BytesIO()
    torch.export.save(exported, file, extra_files={RECORD: json_text(record)})
    return file.getvalue()


def _run_pt2(content: bytes) -> Callable[[Tensor], Tensor]:
    return torch.export.load(io.BytesIO(content)).module()


def _difference(given: Tensor, expected: Tensor) -> float:
    return float((given - expected).abs().max() / expected.abs().max())
