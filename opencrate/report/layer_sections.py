"""The sections of numbers by layer: each reads the measurements, writes tables and figures, and describes them."""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext

from .. import figures
from ..inspection.baseline import token_table
from ..measures import LayerTable, layerwise
from ..measures.audit import HALVES, Audit
from ..measures.geometry import coherence_between, dead_heads, orthonormality_gap
from ..measures.verdicts import (
    EFFECT,
    NULLS,
    PICTURES,
    Judgement,
    Verdict,
    certified,
    null_rows,
    signed,
    summary,
    to_dict,
    verdicts,
)
from ..study import evenly_spaced
from .data import UNTRAINED, NotApplicable, ReportData
from .sections import Section, Table, prose


def layers(data: ReportData, section: Section) -> None:
    """R^c and the non-zero fraction of every layer, beside the untrained network's."""
    everything = {}
    for i, definition in enumerate(data.settings.readings()):
        name = definition.name.split(",")[0]
        tables = {label: measured.tables[definition.name] for label, measured in data.measured.items()}
        everything[definition.name] = {label: table.to_dict() for label, table in tables.items()}
        section.csv(f"layers_{name}", _rows(tables, "curve"))
        own = next(iter(tables))
        compared = [tables[label] for label in (own, UNTRAINED) if label in tables]
        section.headline = section.headline or _headline(compared)
        caption = f"{prose()['definitions'][name]} (definition “{definition.name}”), and the share of entries that are"
        with section.folded(f"The same by the definition “{definition.name}”") if i else nullcontext():
            section.figure(figures.layer_curves(tables), f"layers_{name}", f"{caption} not zero. {_ends(compared)}")
    section.json("layers", everything)


def _rows(tables: Mapping[str, LayerTable], name: str) -> Iterator[dict[str, object]]:
    """The rows of all tables, with their definition, and each table's key under `name`."""
    for key, table in tables.items():
        yield from ({"definition": table.definition.name, name: key, **row} for row in table.rows)


def _ends(tables: list[LayerTable]) -> str:
    """R^c at the first and the last layer of the network, and of the untrained one if it is given, in a sentence."""
    if not _has_rate(tables[0]):
        return "The compression has no subspaces, so there is no R^c."
    first, last = ([table.rows[layer]["Rc"] for table in tables] for layer in (0, -1))
    texts = [
        f"from {_number(a)} at the first layer to {_number(b)} at the last ({_change(a, b)})"
        for a, b in zip(first, last, strict=True)
    ]
    return f"R^c goes {'; in the untrained network, '.join(texts)}."


def _headline(tables: list[LayerTable]) -> list[tuple[str, str]]:
    changes = [_change(table.rows[0]["Rc"], table.rows[-1]["Rc"]) for table in tables]
    lowest = [f"{min(row['nonzero'] for row in table.rows):.0%}" for table in tables]
    name = f"change of R^c from the first to the last layer (definition {tables[0].definition.name})"
    rate = [(name, _beside(changes))] if _has_rate(tables[0]) else []
    return [*rate, ("smallest share of non-zero entries in any layer", _beside(lowest))]


def _has_rate(table: LayerTable) -> bool:
    return math.isfinite(table.rows[0]["Rc"])


def _change(before: float, after: float) -> str:
    """The relative change in per cent, with a sign."""
    return f"{(after - before) / before:+.0%}".replace("-", "−") if before else "–"


def _beside(values: list[str]) -> str:
    """The network's value, and the untrained one's if it is given."""
    return values[0] + (f" (untrained {values[1]})" if len(values) > 1 else "")


def _number(value: float) -> str:
    """Two digits, or all before the point."""
    if math.isnan(value):
        return "–"
    return (f"{value:,.0f}" if abs(value) >= 10 else f"{value:.2g}").replace("-", "−")


def epochs(data: ReportData, section: Section) -> None:
    """R^c and the non-zero fraction over the epochs of a run: of the kept checkpoints, or as the run recorded them."""
    study, (first, *_) = data.study, data.settings.readings()
    tables = {f"epoch {epoch}": layerwise(model, study.batches(), first) for epoch, model in study.kept()}
    caption = "Measured on the checkpoints that the run kept."
    caption += " They hold the raw weights, while the network holds their moving average." if study.averages else ""
    if len(tables) < 2:
        probed = study.probed()
        tables = {f"epoch {epoch}": probed[epoch] for epoch in evenly_spaced(sorted(probed), 6)}
        caption = "As recorded during training. To measure checkpoints instead, train with --keep-epochs N."
    if len(tables) < 2:
        raise NotApplicable("there is no run folder with measurements of at least two epochs")
    used = next(iter(tables.values())).definition
    section.csv("epochs", _rows(tables, "epoch"))
    section.json("epochs", {label: table.to_dict() for label, table in tables.items()})
    caption += f" Definition “{used.name}”, ε = {used.eps:g}."
    section.figure(figures.layer_curves(tables), "epochs", caption)
    result, accuracies = study.result, study.accuracies()
    if result and len(accuracies) > 1:
        best = {"best": int(result["best"]["epoch"])} if "epoch" in result["best"] else {}
        marked = best | ({"shown in this report": result["epochs"]} if study.is_final else {})
        section.figure(
            figures.accuracy_curve(accuracies, marked),
            "accuracy",
            "Top-1 accuracy after every epoch, as the run recorded it. “Best” is the epoch whose network is in best/.",
        )


def audited(data: ReportData, section: Section) -> None:
    """Every half-step of every layer, compared with what it was designed to do, and with nulls."""
    trained, *others = [measured.audit for measured in data.measured.values() if measured.audit]
    untrained = others[0] if others else None
    section.json("audit", to_dict(trained, untrained))
    section.csv("audit", ({"definition": f"audit, ε = {trained.eps:g}", **row} for row in trained.rows()))
    networks = {"trained": trained, UNTRAINED: untrained}
    section.csv(
        "audit_nulls",
        ({"network": name, **row} for name, network in networks.items() if network for row in null_rows(network)),
    )
    section.csv("audit_samples", trained.sample_rows())
    section.headline = [
        ("layers compress clearly better than every null", _count(trained, untrained, "compress")),
        ("layers sparsify clearly better than every null", _count(trained, untrained, "sparsify")),
    ]
    section.conclusion = list(summary(trained, untrained))
    section.items.append(_verdicts(trained, untrained))
    section.items += [f"Layer {verdict.layer}: {note}." for verdict in verdicts(trained) for note in verdict.notes]
    section.figure(figures.half_steps(trained), "audit", prose()["results"]["audit"])
    section.items.append(prose()["results"]["theorems"] + " " + _sentences(certified(trained)))
    section.items.append(_weights(trained))
    if trained.weights[0].U_size is not None:
        section.items.append(_approximations(trained))


def _count(trained: Audit, untrained: Audit | None, half: str) -> str:
    """How many layers do a half as designed."""
    grades = [[getattr(verdict, half).grade for verdict in verdicts(one)] for one in (trained, untrained) if one]
    if grades[0][0] in ("unknown", "too few"):
        return {"unknown": "no stated aim", "too few": "too few pictures"}[grades[0][0]]
    counts = [str(of_layers.count("yes")) for of_layers in grades]
    return _beside([f"{counts[0]} of {len(grades[0])}", *counts[1:]])


def _verdicts(trained: Audit, untrained: Audit | None) -> Table:
    """The grades, what they follow from, and the untrained network's grades."""
    aims = (trained.weights[0].compress_aim or "aim", trained.weights[0].aim or "aim")
    columns = ["layer"]
    for half, aim in zip(HALVES, aims, strict=True):
        columns += [half, f"{aim}, %", "beside, %", "null"]
    columns += ["ΔR", UNTRAINED] if untrained else ["ΔR"]
    rows = []
    for i, verdict in enumerate(verdicts(trained)):
        row = [f"{verdict.layer}", *_half(verdict.compress), *_half(verdict.sparsify), _reduction(verdict)]
        rows.append([*row, _grades(verdicts(untrained)[i])] if untrained else row)
    nulls = "; ".join(f"{name}: {null.words}" for table in NULLS.values() for name, null in table.items())
    caption = prose()["results"]["verdicts"].format(
        samples=trained.samples, effect=100 * EFFECT, pictures=PICTURES, nulls=nulls
    )
    if untrained:
        caption += " “Untrained” is the same network with fresh weights, on the same pictures."
    return Table(columns, rows, caption)


def _half(judgement: Judgement) -> tuple[str, str, str, str]:
    """The grade, the change of the aim, the difference to the best null with its interval, and that null."""
    if judgement.change is None or not judgement.nulls:
        return judgement.grade, "–", "–", "–"
    change, difference = signed(judgement.change.mean), str(judgement.difference)
    return judgement.grade, change.removesuffix(" %"), difference.replace(" %", ""), judgement.best


def _reduction(verdict: Verdict) -> str:
    return "–" if verdict.reduction is None else f"{verdict.reduction.mean:+.1f}".replace("-", "−")


def _grades(verdict: Verdict) -> str:
    return f"{verdict.compress.grade}, {verdict.sparsify.grade}"


def _sentences(parts: Iterable[str]) -> str:
    return " ".join(f"{part[0].upper()}{part[1:]}." for part in parts)


def _weights(audit: Audit) -> Table:
    columns = ["layer", "size of U_k", "U_k from orthonormal", "coherence", "D from orthogonal"]
    conditions = dict.fromkeys(one.condition for one in audit.weights[0].certificates if one.condition)
    rows = []
    for weights, gram in zip(audit.weights, audit.values["gram"].amax(-1).tolist(), strict=True):
        numbers = (weights.U_size, weights.orthonormality, weights.coherence, weights.orthogonality)
        cells = ["–" if value is None else f"{value:.2f}" for value in numbers]
        for one in weights.certificates:
            if one.condition:
                cells.append(f"{one.value:.2f}{'' if one.holds else ', no'}")
        rows.append([f"{weights.layer}", *cells, _number(gram)])
    columns += [f"{condition}?" for condition in conditions]
    return Table([*columns, "γ‖Gram‖ (below 1?)"], rows, prose()["results"]["weights"])


def _approximations(audit: Audit) -> str:
    means = {name: values.mean().item() for name, values in audit.values.items() if "@" not in name}
    cosine = means["gradient_cosine"]
    answer = "Largely" if cosine > 0.5 else "In part" if cosine > 0.1 else "Hardly" if cosine > -0.1 else "No"
    numbers = {name: _number(mean) for name, mean in means.items()}
    return prose()["results"]["approximations"].format(answer=answer, **numbers)


def subspaces(data: ReportData, section: Section) -> None:
    """The subspaces of every layer compared with each other."""
    layers = data.study.model.layers
    if any(layer.U is None for layer in layers):
        raise NotApplicable("the compression has no subspaces")
    bases = {f"layer {i}": layer.U.detach().float().cpu() for i, layer in enumerate(layers, 1)}
    rows, dead = [], {name: " ".join(map(str, dead_heads(U))) for name, U in bases.items()}
    for layer, (name, U) in enumerate(bases.items(), 1):
        mean, largest = coherence_between(U)
        gap = orthonormality_gap(U).mean().item()
        values = {"coherence": mean, "coherence_max": largest, "orthonormality_gap": gap, "dead_heads": dead[name]}
        rows.append({"layer": layer, **values})
    section.csv("subspaces", rows)
    dead_in = [f"{name}, head {heads}" for name, heads in dead.items() if heads]
    if dead_in:
        section.items.append(f"Dead heads, onto which everything projects to zero: {'; '.join(dead_in)}.")
    seed, selected = data.settings.seed, {name: bases[name] for name in evenly_spaced(list(bases), 4)}
    caption = f"Cosines between four random directions of every subspace (seed {seed})."
    section.figure(figures.subspace_grams(bases, seed=seed), "subspaces", caption)
    full = figures.subspace_grams(selected, directions=None)
    section.figure(full, "subspaces_full", "All directions, for some layers.")


def baseline(data: ReportData, section: Section) -> None:
    """For a network without CRATE layers: what can be measured of its tokens."""
    eps = data.settings.eps
    rows = token_table(data.study.model, data.study.batches(), eps)
    section.csv("tokens", ({"definition": f"tokens, ε = {eps:g}", **row} for row in rows))
    section.json("tokens", {"definition": {"name": "tokens", "eps": eps}, "rows": rows})
    cells = []
    for row in rows:
        spreads = (f"{row[name]:,.1f} ± {row[f'{name}_std']:,.1f}" for name in ("rank", "R", "R_unit"))
        cells.append([f"{row['layer']}", f"{row['nonzero']:.3f}", *spreads])
    columns = ["layer", "non-zero fraction", "effective rank", "R", "R at unit length"]
    section.items.append(Table(columns, cells, f"Means and standard deviations over pictures; ε = {eps:g}."))
