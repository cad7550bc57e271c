"""The parts of an analysis that are looked at: tokens, attention, patches, and what a head is worth."""

from typing import Any

import torch
from torch import Tensor

from ..figures import curves as figures
from ..figures.audit import head_map
from ..inspection.ablation import head_importance
from ..inspection.views import attention_of, coherent_patches, crop, pca_colours, top_patches
from ..stack import trajectory
from ..study import Study, some
from .sections import Folder, Section
from .text import ABOUT

__all__ = ["ablation", "attention", "patches", "tokens"]

LAYERS = 4  # of which every head is drawn
ABLATED = 8  # pictures on which heads are switched off


def tokens(study: Study, folder: Folder, settings: Any) -> Section:
    """The tokens of pictures: their entries, and their main directions as colours."""
    looked, every, colours = study.looked_at, dict[str, Tensor](), list[Tensor]()
    with torch.inference_mode():
        for step in trajectory(study.model, study.gallery.images[looked]):
            colours.append(pca_colours(step.Z_next.float()).cpu())
            every[f"after layer {step.number}"] = step.Z_next.float().cpu()
    few = some(list(every), 6)
    items = []
    for i in range(len(study.chosen) or 1):
        which = f"picture {study.chosen[i]}" if study.chosen else "the first picture"
        part = {name: Z[i] for name, Z in every.items()}
        caption = f"Tokens of {which} after every layer: a random part of the matrix (seed {settings.seed})."
        items.append(folder.figure(figures.heat_maps(part, settings.seed), f"tokens_{i + 1}", caption))
        whole = figures.heat_maps({name: part[name] for name in few}, size=None)
        items.append(folder.figure(whole, f"tokens_{i + 1}_full", "The whole matrix, for some layers."))
    drawn = figures.token_colours(study.gallery.shown[looked], torch.stack(colours), study.grid)
    caption = "The three main directions of the patches' tokens as red, green and blue, found for each layer by itself:"
    items.append(folder.figure(drawn, "token_colours", f"{caption} patches of one colour are alike to the network."))
    return Section("tokens", *ABOUT["tokens"], tuple(items))


def attention(study: Study, folder: Folder, settings: Any) -> Section:
    """What the class token, or a chosen one, attends to."""
    gallery, looked, items = study.gallery, study.looked_at, []
    chosen = some(list(range(1, len(study.model.blocks) + 1)), LAYERS)
    maps = attention_of(study.model, gallery.images[looked], settings.token, chosen).cpu()
    with torch.inference_mode():
        logits = study.model(gallery.images[looked]).float().cpu()
    who = "class token" if settings.token == 0 else f"token {settings.token}"
    for i, picture in enumerate(looked):
        predicted = _predicted(study, logits[i], gallery.targets[picture])
        number = study.chosen[i] if study.chosen else i + 1
        figure = figures.attention_grid(gallery.shown[picture], maps[:, i], layers=chosen)
        where = "every layer" if len(chosen) == len(study.model.blocks) else "some layers"
        caption = f"Picture {number}{predicted}. What the {who} attends to in {where}."
        items.append(folder.figure(figure, f"attention_{i + 1}", caption))
    return Section("attention", *ABOUT["attention"], tuple(items))


def _predicted(study: Study, logits: Tensor, target: int | None) -> str:
    if not study.classifies:
        return ""
    best, sure = int(logits.argmax()), float(logits.softmax(-1).max())
    told = f", taken for {study.class_name(best)} ({sure:.0%})"
    if target is None or not study.knows_targets:
        return told
    return told + (", rightly" if target == best else f", but it is {study.class_name(target)}")


def patches(study: Study, folder: Folder, settings: Any) -> Section:
    """The patches along which heads and entries of the sparse code line up."""
    gallery, model = study.gallery, study.model
    margin = 1 if min(study.grid) > 4 else 0
    heads, atoms = {}, {}
    for layer in some(list(range(1, len(model.blocks) + 1)), LAYERS):
        for head in some(list(range(1, model.num_heads + 1)), 2):
            found = coherent_patches(model, gallery.images, layer, head)
            heads[f"layer {layer}, head {head}"] = crop(gallery.shown, found, model.patch_embed.patch_size, margin)
        for entry in _telling(study, layer, 2):
            found = top_patches(model, gallery.images, layer, entry)
            atoms[f"layer {layer}, entry {entry}"] = crop(gallery.shown, found, model.patch_embed.patch_size, margin)
    of = f"of {len(gallery.images)} pictures"
    around = ", with their surroundings" if margin else ""
    return Section(
        "patches",
        *ABOUT["patches"],
        (
            folder.figure(
                figures.patch_rows(heads), "head_patches", f"Patches {of} along some heads' directions{around}."
            ),
            folder.figure(
                figures.patch_rows(atoms), "atom_patches", f"Patches {of} where some entries are largest{around}."
            ),
        ),
    )


def _telling(study: Study, layer: int, count: int) -> list[int]:
    """Entries, counted from 1, that vary most over the patches: one that is always on tells nothing."""
    with torch.inference_mode():
        steps = trajectory(study.model, study.gallery.images[study.looked_at])
        Z = next(step.Z_next for step in steps if step.number == layer)
    return [int(entry) + 1 for entry in Z[:, 1:].float().flatten(0, 1).std(0).topk(min(count, Z.shape[-1])).indices]


def ablation(study: Study, folder: Folder, settings: Any) -> Section | None:
    """How much each head matters for the prediction."""
    if not study.classifies:
        return None
    images = study.gallery.images[some(list(range(len(study.gallery.images))), ABLATED)]
    importance = head_importance(study.model, images).cpu()
    rows = [
        {"layer": layer, "head": head, "kl_nats": value}
        for layer, heads in enumerate(importance.tolist(), 1)
        for head, value in enumerate(heads, 1)
    ]
    folder.csv("tables/head_importance.csv", rows)
    best = max(rows, key=lambda row: row["kl_nats"])
    caption = f"Brighter: the prediction moves more. Most without head {best['head']} of layer {best['layer']}"
    caption += f" ({best['kl_nats']:.2g} nats, mean over {len(images)} pictures)."
    return Section("ablation", *ABOUT["ablation"], (folder.figure(head_map(importance), "head_importance", caption),))
