"""The sections that show pictures: tokens, attention, patches, and how much each head matters.

All read the one recording of the gallery (`ReportData.gallery`).
"""

import torch

from .. import figures
from ..inspection.ablation import head_importance
from ..inspection.recording import Recording
from ..inspection.views import attention_rows, crop, pca_colours
from ..study import Study, evenly_spaced
from .data import NotApplicable, ReportData
from .sections import Section


def tokens(data: ReportData, section: Section) -> None:
    """The tokens of pictures: their entries, and their main directions as colours."""
    study, seed, count = data.study, data.settings.seed, data.study.drawn
    after = {f"after layer {step.number}": step.Z_next[:count].float().cpu() for step in data.gallery.recording.steps}
    selected = evenly_spaced(list(after), 6)
    for i, which in enumerate([f"picture {number}" for number in study.chosen] or ["the first picture"]):
        of_picture = {name: Z[i] for name, Z in after.items()}
        caption = f"Tokens of {which} after every layer: a random part of the matrix (seed {seed})."
        section.figure(figures.heat_maps(of_picture, seed), f"tokens_{i + 1}", caption)
        full = figures.heat_maps({name: of_picture[name] for name in selected}, size=None)
        section.figure(full, f"tokens_{i + 1}_full", "The complete matrix, for some layers.")
    colours = torch.stack([pca_colours(Z) for Z in after.values()])
    drawn = figures.token_colours(study.gallery.shown[:count], colours, study.grid)
    caption = "The three main directions of the patches' tokens, computed for each layer, as red, green and blue."
    section.figure(drawn, "token_colours", f"{caption} Patches of one colour have similar tokens.")


def attention(data: ReportData, section: Section) -> None:
    """What the class token, or a chosen one, attends to."""
    study, token, layers = data.study, data.settings.token, data.drawn_layers
    _require_role(study, "maps", "has no attention maps")
    recording = data.gallery.recording
    rows = [attention_rows(recording.steps[layer - 1], token)[: study.drawn, :, 1:] for layer in layers]
    maps = torch.stack(rows).unflatten(-1, recording.grid).cpu()  # (layers, b, k, h, w)
    name = "class token" if token == 0 else f"token {token}"
    where = "every layer" if len(layers) == len(study.model.layers) else "some layers"
    for i in range(study.drawn):
        number = study.chosen[i] if study.chosen else i + 1
        caption = f"Picture {number}{_prediction(study, recording, i)}. What the {name} attends to in {where}."
        figure = figures.attention_grid(study.gallery.shown[i], maps[:, i], layers)
        section.figure(figure, f"attention_{i + 1}", caption)


def _require_role(study: Study, role: str, otherwise: str) -> None:
    for layer in study.model.layers:
        if not layer.compress.operator.has(role):
            raise NotApplicable(f"the compression {layer.compress.operator.name} {otherwise}")


def _prediction(study: Study, recording: Recording, i: int) -> str:
    if recording.logits is None:
        return ""
    probabilities, target = recording.logits[i].float().softmax(-1), study.target(i)
    best = int(probabilities.argmax())
    text = f": predicted {study.class_name(best)} ({100 * float(probabilities.max()):.0f} %)"
    if target is None:
        return text
    return text + (", correct" if target == best else f", wrong: it is {study.class_name(target)}")


def patches(data: ReportData, section: Section) -> None:
    """The patches that best match heads and entries of the sparse code."""
    study, gallery = data.study, data.gallery
    margin = 1 if min(study.grid) > 4 else 0
    around = ", with their surroundings" if margin else ""
    shown, size = study.gallery.shown, study.model.patch_embed.patch_size
    for rows, file, which, missing in (
        (gallery.heads, "head_patches", "along the main direction of some heads", "compression has no subspaces"),
        (gallery.entries, "atom_patches", "where some entries of the code are largest", "sparsification has no code"),
    ):
        crops = {name: crop(shown, best, size, margin) for name, best in rows.items()}
        if crops:
            section.figure(figures.patch_rows(crops), file, f"Patches of {len(shown)} pictures {which}{around}.")
        else:
            section.items.append(f"The {missing}.")
    if not (gallery.heads or gallery.entries):
        raise NotApplicable("the network has neither subspaces nor a sparse code")


def ablation(data: ReportData, section: Section) -> None:
    """How much each head matters for the prediction; the runs without a head start from the recorded tokens."""
    study, recording = data.study, data.gallery.recording
    _require_role(study, "mute", "cannot switch off a head")
    if recording.logits is None:
        raise NotApplicable("the network makes no prediction for a picture")
    importance = head_importance(study.model, [step.Z[: study.ablated] for step in recording.steps]).cpu()
    rows = [
        {"layer": layer, "head": head, "kl_nats": value}
        for layer, heads in enumerate(importance.tolist(), 1)
        for head, value in enumerate(heads, 1)
    ]
    section.csv("head_importance", rows)
    best = max(rows, key=lambda row: row["kl_nats"])
    caption = f"Brighter: the prediction changes more without the head. It changes most without head {best['head']}"
    caption += f" of layer {best['layer']} ({best['kl_nats']:.2g} nats, mean over {study.ablated} pictures)."
    section.figure(figures.head_map(importance), "head_importance", caption)
