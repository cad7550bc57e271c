"""The sections of numbers by layer: each reads the measurements, writes tables and figures, and describes them."""

import math
from collections.abc import Iterator, Mapping

from .. import figures
from ..inspection.baseline import token_table
from ..measures import LayerTable, layerwise
from ..measures.audit import CLEARLY, EFFECT, HALVES, Audit, signed
from ..measures.geometry import coherence_between, dead_heads, orthonormality_gap
from ..study import evenly_spaced
from .data import UNTRAINED, NotApplicable, ReportData
from .sections import Section, Table, prose


def layers(data: ReportData, section: Section) -> None:
    """R^c and the non-zero fraction of every layer, beside the untrained network's."""
    everything = {}
    for definition in data.settings.readings():
        name = definition.name.split(",")[0]
        tables = {label: measured.tables[definition.name] for label, measured in data.measured.items()}
        everything[definition.name] = {label: table.to_dict() for label, table in tables.items()}
        section.csv(f"layers_{name}", _rows(tables, "curve"))
        own = next(iter(tables))
        compared = [tables[label] for label in (own, UNTRAINED) if label in tables]
        caption = f"{prose()['definitions'][name]} (definition “{definition.name}”), and the share of entries that are"
        section.figure(figures.layer_curves(tables), f"layers_{name}", f"{caption} not zero. {_ends(compared)}")
        section.headline = _headline(compared)
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


def audited(data: ReportData, section: Section) -> None:
    """Every half-step of every layer, compared with what it was designed to do."""
    audits = [measured.audit for measured in data.measured.values() if measured.audit]  # ours, then the untrained one's
    trained, table = audits[0], audits[0].to_dict()
    section.json("audit", table)
    section.csv("audit", ({"definition": f"audit, ε = {trained.eps:g}", **row} for row in table["rows"]))
    section.csv("audit_samples", trained.sample_rows())
    section.headline = [
        ("layers compress as designed", _count(audits, "compresses")),
        ("layers sparsify as designed", _count(audits, "sparsifies")),
    ]
    section.items.append(_verdicts(audits))
    caption = "What the two halves of every layer change. Blue bars go in the direction that the design wants."
    section.figure(figures.half_steps(trained), "audit", caption)
    section.items.append(_weights(trained))
    if trained.weights[0].U_size is not None:
        section.items.append(_approximations(trained))


def _count(audits: list[Audit], half: str) -> str:
    """How many layers do a half as designed."""
    grades = [[getattr(verdict, half) for verdict in audit.verdicts()] for audit in audits]
    if grades[0][0] is None:
        return "no stated aim"
    counts = [str(of_layers.count(2)) for of_layers in grades]
    return _beside([f"{counts[0]} of {len(grades[0])}", *counts[1:]])


def _verdicts(audits: list[Audit]) -> Table:
    verdicts = audits[0].verdicts()
    columns = ["layer", "as designed?", "compression", "sparsification", "notes"]
    rows = [[f"{verdict.layer}", verdict.word, *verdict.evidence, "; ".join(verdict.warnings)] for verdict in verdicts]
    caption = prose()["results"]["verdicts"].format(
        samples=audits[0].samples, clearly=100 * CLEARLY, effect=100 * EFFECT
    )
    for untrained in audits[1:]:
        columns.append(UNTRAINED)
        rows = [[*row, cell] for row, cell in zip(rows, _in_short(untrained), strict=True)]
        caption += " “Untrained” is the same network with fresh weights, on the same pictures."
    return Table(columns, rows, caption, marks=[verdict.word for verdict in verdicts])


def _in_short(audit: Audit) -> Iterator[str]:
    """Of every layer, the verdict and the changes that it is about."""
    rates, fits = (audit.changes(half).mean(-1).tolist() for half in HALVES)
    for verdict, weights, rate, fit in zip(audit.verdicts(), audit.weights, rates, fits, strict=True):
        changes = [] if verdict.compresses is None else [f"R^c {signed(rate)}"]
        changes += [] if verdict.sparsifies is None else [f"{weights.aim} {signed(fit)}"]
        yield f"{verdict.word}: {', '.join(changes)}" if changes else verdict.word


def _weights(audit: Audit) -> Table:
    columns = ["layer", "size of U_k", "U_k from orthonormal", "coherence", "D from orthogonal"]
    rows = []
    for weights, gram in zip(audit.weights, audit.values["gram"].amax(-1).tolist(), strict=True):
        numbers = (weights.U_size, weights.orthonormality, weights.coherence, weights.orthogonality, weights.eta_D)
        *cells, step = ("–" if value is None else f"{value:.2f}" for value in numbers)
        too_long = weights.eta_D is not None and weights.eta_D >= 2
        rows.append([f"{weights.layer}", *cells, f"{step}, no" if too_long else step, _number(gram)])
    return Table([*columns, "η‖D‖² (below 2?)", "γ‖Gram‖ (below 1?)"], rows, prose()["results"]["weights"])


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
    columns = ["layer", "non-zero fraction", "effective rank", "R", "R of unit tokens"]
    section.items.append(Table(columns, cells, f"Means and standard deviations over pictures; ε = {eps:g}."))
