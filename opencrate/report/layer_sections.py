"""The sections of numbers by layer: each reads the measurements, writes tables and figures, and describes them."""

import math

from .. import figures
from ..inspection.baseline import LIMITATION, token_table
from ..measures import LayerTable, layerwise
from ..measures.audit import CLEARLY, EFFECT, Audit, Verdict, signed
from ..measures.geometry import coherence_between, dead_heads, orthonormality_gap
from ..study import evenly_spaced
from .data import UNTRAINED, NotApplicable, ReportData
from .sections import Item, OutputFolder, Section, Table, change
from .text import ABOUT, APPROXIMATIONS, READINGS, RULE, WEIGHTS


def layers(data: ReportData, folder: OutputFolder) -> Section:
    """R^c and the non-zero fraction of every layer, beside the untrained network's."""
    items, everything, headline = list[Item](), dict[str, object](), tuple[tuple[str, str], ...]()
    for definition in data.settings.readings():
        name = definition.name.split(",")[0]
        tables = {label: measured.tables[definition.name] for label, measured in data.measured.items()}
        everything[definition.name] = {label: table.to_dict() for label, table in tables.items()}
        labelled = ((label, row) for label, table in tables.items() for row in table.rows)
        folder.csv(
            f"tables/layers_{name}.csv",
            ({"definition": definition.name, "curve": label, **row} for label, row in labelled),
        )
        trained, untrained = next(iter(tables.values())), tables.get(UNTRAINED)
        caption = f"{READINGS[name]} (definition “{definition.name}”), and the share of entries that are not zero. "
        caption += _ends(trained, untrained)
        items.append(folder.figure(figures.layer_curves(tables), f"layers_{name}", caption))
        headline = _headline(trained, untrained)
    folder.json("tables/layers.json", everything)
    return Section("layers", *ABOUT["layers"], tuple(items), headline)


def _ends(trained: LayerTable, untrained: LayerTable | None) -> str:
    """R^c at the first and the last layer, in a sentence."""
    if not _has_rate(trained):
        return "The compression has no subspaces, so there is no R^c."
    texts = []
    for table in (trained, untrained):
        if table is not None:
            first, last = table.rows[0]["Rc"], table.rows[-1]["Rc"]
            a, b = (f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}" for rate in (first, last))
            texts.append(f"from {a} at the first layer to {b} at the last ({change(first, last)})")
    return f"R^c goes {'; in the untrained network, '.join(texts)}."


def _has_rate(table: LayerTable) -> bool:
    return math.isfinite(table.rows[0]["Rc"])


def _headline(trained: LayerTable, untrained: LayerTable | None) -> tuple[tuple[str, str], ...]:
    tables = [table for table in (trained, untrained) if table is not None]
    changes = [change(table.rows[0]["Rc"], table.rows[-1]["Rc"]) for table in tables]
    lowest = [f"{min(row['nonzero'] for row in table.rows):.0%}" for table in tables]
    name = f"change of R^c from the first to the last layer (definition {trained.definition.name})"
    rate = ((name, _beside(changes)),) if _has_rate(trained) else ()
    return (*rate, ("smallest share of non-zero entries in any layer", _beside(lowest)))


def _beside(values: list[str]) -> str:
    return values[0] + (f" (untrained {values[1]})" if len(values) > 1 else "")


def epochs(data: ReportData, folder: OutputFolder) -> Section:
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
    caption += f" Definition “{used.name}”, ε = {used.eps:g}."
    folder.csv(
        "tables/epochs.csv",
        ({"definition": used.name, "epoch": label, **row} for label, table in tables.items() for row in table.rows),
    )
    folder.json("tables/epochs.json", {label: table.to_dict() for label, table in tables.items()})
    return Section("epochs", *ABOUT["epochs"], (folder.figure(figures.layer_curves(tables), "epochs", caption),))


def audited(data: ReportData, folder: OutputFolder) -> Section:
    """Every half-step of every layer, compared with what it was designed to do."""
    eps, audits = data.settings.eps, [measured.audit for measured in data.measured.values() if measured.audit]
    trained, untrained = audits[0], audits[1] if len(audits) > 1 else None
    table = trained.to_dict()
    folder.json("tables/audit.json", table)
    folder.csv("tables/audit.csv", ({"definition": f"audit, ε = {eps:g}", **row} for row in table["rows"]))
    folder.csv("tables/audit_samples.csv", trained.sample_rows())
    caption = "What the two halves of every layer change. Blue bars go in the direction that the design wants."
    items: list[Item] = [_verdicts(trained, untrained), folder.figure(figures.half_steps(trained), "audit", caption)]
    items.append(_weights(trained))
    if trained.weights[0].U_size is not None:
        items.append(_approximations(trained))
    headline = (
        ("layers compress as designed", _count(trained, untrained, "compresses")),
        ("layers sparsify as designed", _count(trained, untrained, "sparsifies")),
    )
    return Section("audit", *ABOUT["audit"], tuple(items), headline)


def _verdicts(trained: Audit, untrained: Audit | None) -> Table:
    columns = ["layer", "as designed?", "compression", "sparsification", "notes"]
    rows: list[tuple[str, ...]] = [
        (f"{verdict.layer}", verdict.word, *verdict.evidence, "; ".join(verdict.warnings))
        for verdict in trained.verdicts()
    ]
    rule = RULE.format(trained.samples, clearly=100 * CLEARLY, effect=100 * EFFECT)
    if untrained is not None:
        columns.append(UNTRAINED)
        rates, fits = _changes(untrained, "compress"), _changes(untrained, "sparsify")
        cells = map(_untrained, untrained.verdicts(), rates, fits, [weights.aim for weights in untrained.weights])
        rows = [(*row, cell) for row, cell in zip(rows, cells, strict=True)]
        rule += " “Untrained” is the same network with fresh weights, on the same pictures."
    return Table(tuple(columns), tuple(rows), rule, tuple(verdict.word for verdict in trained.verdicts()))


def _untrained(verdict: Verdict, rate: str, fit: str, aim: str | None) -> str:
    changes = [f"R^c {rate}"] * (verdict.compresses is not None) + [f"{aim} {fit}"] * (verdict.sparsifies is not None)
    return ": ".join([verdict.word, *([", ".join(changes)] if changes else [])])


def _changes(audit: Audit, half: str) -> list[str]:
    return [signed(value) for value in audit.changes(half).mean(-1).tolist()]


def _count(trained: Audit, untrained: Audit | None, half: str) -> str:
    """How many layers do a half as designed."""
    audits = [audit.verdicts() for audit in (trained, untrained) if audit is not None]
    if getattr(audits[0][0], half) is None:
        return "no stated aim"
    counts = [sum(getattr(verdict, half) == 2 for verdict in verdicts) for verdicts in audits]
    return _beside([f"{counts[0]} of {len(audits[0])}", *map(str, counts[1:])])


def _weights(audit: Audit) -> Table:
    columns = (
        "layer",
        "size of U_k",
        "U_k from orthonormal",
        "coherence",
        "D from orthogonal",
        "η‖D‖² (below 2?)",
        "γ‖Gram‖ (below 1?)",
    )
    rows = []
    for weights, gram in zip(audit.weights, audit.values["gram"].amax(-1).tolist(), strict=True):
        step = "–" if weights.eta_D is None else f"{weights.eta_D:.2f}" + ("" if weights.eta_D < 2 else ", no")
        numbers = (weights.U_size, weights.orthonormality, weights.coherence, weights.orthogonality)
        cells = ("–" if value is None else f"{value:.2f}" for value in numbers)
        size = "–" if math.isnan(gram) else f"{gram:,.0f}" if gram >= 10 else f"{gram:.2g}"
        rows.append((f"{weights.layer}", *cells, step, size))
    return Table(columns, tuple(rows), WEIGHTS)


def _approximations(audit: Audit) -> str:
    means = {name: values.mean().item() for name, values in audit.values.items() if "@" not in name}
    cosine = means["gradient_cosine"]
    answer = "Largely" if cosine > 0.5 else "In part" if cosine > 0.1 else "Hardly" if cosine > -0.1 else "No"
    numbers = {n: f"{v:,.0f}" if abs(v) >= 100 else f"{v:.2g}".replace("-", "−") for n, v in means.items()}
    return APPROXIMATIONS.format(answer=answer, **numbers)


def subspaces(data: ReportData, folder: OutputFolder) -> Section:
    """The subspaces of every layer compared with each other."""
    bases = {f"layer {i}": layer.U for i, layer in enumerate(data.study.model.layers, 1)}
    if any(U is None for U in bases.values()):
        raise NotApplicable("the compression has no subspaces")
    bases = {name: U.detach().float().cpu() for name, U in bases.items()}
    rows = []
    for layer, U in enumerate(bases.values(), 1):
        mean, largest = coherence_between(U)
        gap, dead = orthonormality_gap(U).mean().item(), " ".join(map(str, dead_heads(U)))
        values = {"coherence": mean, "coherence_max": largest, "orthonormality_gap": gap, "dead_heads": dead}
        rows.append({"layer": layer, **values})
    folder.csv("tables/subspaces.csv", rows)
    dead_in = [f"layer {row['layer']}, head {row['dead_heads']}" for row in rows if row["dead_heads"]]
    sentence = (f"Dead heads, onto which everything projects to zero: {'; '.join(dead_in)}.",) if dead_in else ()
    selected, seed = {name: bases[name] for name in evenly_spaced(list(bases), 4)}, data.settings.seed
    caption = f"Cosines between four random directions of every subspace (seed {seed})."
    pictures = (
        folder.figure(figures.subspace_grams(bases, seed=seed), "subspaces", caption),
        folder.figure(figures.subspace_grams(selected, None), "subspaces_full", "All directions, for some layers."),
    )
    return Section("subspaces", *ABOUT["subspaces"], (*sentence, *pictures))


def baseline(data: ReportData, folder: OutputFolder) -> Section:
    """For a network without CRATE layers: what can be measured of its tokens."""
    eps = data.settings.eps
    rows = token_table(data.study.model, data.study.batches(), eps)
    folder.csv("tables/tokens.csv", ({"definition": f"tokens, ε = {eps:g}", **row} for row in rows))
    folder.json("tables/tokens.json", {"definition": {"name": "tokens", "eps": eps}, "rows": rows})
    table = Table(
        ("layer", "non-zero fraction", "effective rank", "R", "R of unit tokens"),
        tuple(
            (
                f"{row['layer']}",
                f"{row['nonzero']:.3f}",
                *(f"{row[name]:,.1f} ± {row[f'{name}_std']:,.1f}" for name in ("rank", "R", "R_unit")),
            )
            for row in rows
        ),
        f"Means and standard deviations over pictures; ε = {eps:g}.",
    )
    return Section("tokens", "What can be compared", LIMITATION, (table,))
