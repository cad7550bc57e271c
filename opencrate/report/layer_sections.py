"""The parts of an analysis that are numbers by layer: each measures, writes tables and figures, and tells of them."""

from typing import Any

from ..figures import curves as figures
from ..figures.audit import half_steps
from ..inspection.baseline import CANNOT, token_table
from ..measures import Definition, LayerTable, layerwise
from ..measures.audit import CLEARLY, EFFECT, Audit, Verdict, audit, signed
from ..measures.geometry import coherence_between, dead_heads, orthonormality_gap
from ..sources import open_network, require_comparable
from ..study import Study, some
from .sections import Folder, Item, Section, Table, change, labels
from .text import ABOUT, APPROXIMATIONS, READINGS, RULE, WEIGHTS

__all__ = ["audited", "baseline", "epochs", "layers", "subspaces"]

UNTRAINED = 16  # pictures on which the untrained network is audited


def layers(study: Study, folder: Folder, settings: Any) -> Section:
    """R^c and the non-zero fraction of every layer, beside the untrained network's."""
    items, everything, headline = list[Item](), dict[str, Any](), tuple[tuple[str, str], ...]()
    for reading in settings.readings():
        name, tables = reading.name.split(",")[0], _tables(study, settings, reading)
        everything[reading.name] = {label: table.to_dict() for label, table in tables.items()}
        labelled = ((label, row) for label, table in tables.items() for row in table.rows)
        folder.csv(
            f"tables/layers_{name}.csv",
            ({"definition": reading.name, "curve": label, **row} for label, row in labelled),
        )
        trained, untrained = next(iter(tables.values())), tables.get("untrained")
        caption = f"{READINGS[name]} (definition “{reading.name}”), and the share of entries that are not zero."
        caption += f" R^c goes {_ends(trained)}" + (f"; untrained, {_ends(untrained)}." if untrained else ".")
        items.append(folder.figure(figures.layer_curves(tables), f"layers_{name}", caption))
        headline = _headline(trained, untrained)
    folder.json("tables/layers.json", everything)
    return Section("layers", *ABOUT["layers"], tuple(items), headline)


def _tables(study: Study, settings: Any, definition: Definition) -> dict[str, LayerTable]:
    """Of every set of pictures; with other networks to compare, of every network on the first set."""
    if settings.against:
        names = labels([study.source, *settings.against])
        others = [open_network(source)[0].to(study.device) for source in settings.against]
        networks = dict(zip(names, [study.model, *others], strict=True))
        for name, other in networks.items():
            require_comparable(name, other, study.model)
        found = {label: layerwise(model, study.batches(), definition) for label, model in networks.items()}
    else:
        found = {source.name: layerwise(study.model, study.batches(source), definition) for source in study.pictures}
    if study.untrained is not None:
        found["untrained"] = layerwise(study.untrained, study.batches(), definition)
    return found


def _ends(table: LayerTable) -> str:
    first, last = table.rows[0]["Rc"], table.rows[-1]["Rc"]
    a, b = (f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}" for rate in (first, last))
    return f"from {a} at the first layer to {b} at the last ({change(first, last)})"


def _headline(trained: LayerTable, untrained: LayerTable | None) -> tuple[tuple[str, str], ...]:
    tables = [table for table in (trained, untrained) if table is not None]
    changes = [change(table.rows[0]["Rc"], table.rows[-1]["Rc"]) for table in tables]
    lowest = [f"{min(row['nonzero'] for row in table.rows):.0%}" for table in tables]
    name = f"R^c, first to last layer, by the definition {trained.definition.name}"
    return (name, _beside(changes)), ("of the entries are not zero, where they are fewest", _beside(lowest))


def _beside(values: list[str]) -> str:
    return values[0] + (f" (untrained {values[1]})" if len(values) > 1 else "")


def epochs(study: Study, folder: Folder, settings: Any) -> Section | None:
    """R^c and the non-zero fraction over the epochs of a run: of kept checkpoints, or as it measured itself."""
    first, *_ = settings.readings()
    found = {f"epoch {epoch}": layerwise(model, study.batches(), first) for epoch, model in study.kept()}
    caption = "Measured on the checkpoints that the run kept."
    caption += " They hold the weights themselves, and the network is their moving average." if study.averages else ""
    if len(found) < 2:
        probed = study.probed()
        found = {f"epoch {epoch}": probed[epoch] for epoch in some(sorted(probed), 6)}
        caption = "As the run measured itself. To measure its checkpoints instead, train with --keep-epochs N."
    if len(found) < 2:
        return None
    used = next(iter(found.values())).definition
    caption += f" By the definition “{used.name}”, ε = {used.eps:g}."
    folder.csv(
        "tables/epochs.csv",
        ({"definition": used.name, "epoch": label, **row} for label, table in found.items() for row in table.rows),
    )
    folder.json("tables/epochs.json", {label: table.to_dict() for label, table in found.items()})
    return Section("epochs", *ABOUT["epochs"], (folder.figure(figures.layer_curves(found), "epochs", caption),))


def audited(study: Study, folder: Folder, settings: Any) -> Section:
    """Every half-step of every layer, held to what it was designed to do."""
    found = audit(study.model, study.batches(), settings.eps)
    rows = found.rows()
    folder.json("tables/audit.json", found.to_dict(rows))
    folder.csv("tables/audit.csv", ({"definition": f"audit, ε = {settings.eps:g}", **row} for row in rows))
    folder.text("tables/audit_samples.csv", found.samples_csv())
    verdicts, before = found.verdicts(), tuple[Verdict, ...]()
    columns, columned = ["layer", "as designed?", "compression", "sparsification", "noted"], list[tuple[str, ...]]()
    rule = RULE.format(found.samples, clearly=CLEARLY, effect=EFFECT)
    if study.untrained is not None:
        fresh = audit(study.untrained, study.pictures[0].batches(min(UNTRAINED, study.samples)), settings.eps)
        before = fresh.verdicts()
        moves = zip(before, _changes(fresh, "compress"), _changes(fresh, "sparsify"), strict=True)
        columned = [(f"{verdict.word}: R^c {rate}, {found.weights[0].aim} {aim}",) for verdict, rate, aim in moves]
        columns.append("untrained")
        rule += f" “Untrained”: the same network with fresh weights, on {fresh.samples} pictures."
    rest = columned or [()] * len(verdicts)
    table = Table(
        tuple(columns),
        tuple(
            (f"{v.layer}", v.word, *v.evidence, "; ".join(v.warnings), *more)
            for v, more in zip(verdicts, rest, strict=True)
        ),
        rule,
        tuple(verdict.word for verdict in verdicts),
    )
    caption = "What the two halves of every layer change. Blue bars go the way that the design wants."
    picture = folder.figure(half_steps(found), "audit", caption)
    return Section(
        "audit",
        *ABOUT["audit"],
        (table, picture, _weights(found), _approximations(found)),
        (
            ("layers compress as designed", _counted(verdicts, before, "compresses")),
            ("layers sparsify as designed", _counted(verdicts, before, "sparsifies")),
        ),
    )


def _changes(found: Audit, half: str) -> list[str]:
    return [signed(value) for value in found.changes(half).mean(-1).tolist()]


def _counted(verdicts: tuple[Verdict, ...], untrained: tuple[Verdict, ...], half: str) -> str:
    counts = [sum(getattr(verdict, half) == 2 for verdict in of) for of in (verdicts, untrained) if of]
    return _beside([f"{counts[0]} of {len(verdicts)}", *map(str, counts[1:])])


def _weights(found: Audit) -> Table:
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
    for facts, gram in zip(found.weights, found.values["gram"].amax(-1).tolist(), strict=True):
        step = "–" if facts.eta_D is None else f"{facts.eta_D:.2f}" + ("" if facts.eta_D < 2 else ", no")
        numbers = (
            f"{value:.2f}" for value in (facts.U_size, facts.orthonormality, facts.coherence, facts.orthogonality)
        )
        rows.append((f"{facts.layer}", *numbers, step, f"{gram:,.0f}" if gram >= 10 else f"{gram:.2g}"))
    return Table(columns, tuple(rows), WEIGHTS)


def _approximations(found: Audit) -> str:
    means = {name: values.mean().item() for name, values in found.values.items() if "@" not in name}
    cosine = means["gradient_cosine"]
    answer = "Largely" if cosine > 0.5 else "In part" if cosine > 0.1 else "Hardly" if cosine > -0.1 else "No"
    words = {n: f"{v:,.0f}" if abs(v) >= 100 else f"{v:.2g}".replace("-", "−") for n, v in means.items()}
    return APPROXIMATIONS.format(answer=answer, **words)


def subspaces(study: Study, folder: Folder, settings: Any) -> Section:
    """The subspaces of every layer against each other."""
    every = {f"layer {i}": block.U.detach().float().cpu() for i, block in enumerate(study.model.blocks, 1)}
    rows = []
    for layer, U in enumerate(every.values(), 1):
        mean, largest = coherence_between(U)
        facts = {"coherence": mean, "coherence_max": largest}
        gap, dead = orthonormality_gap(U).mean().item(), " ".join(map(str, dead_heads(U)))
        rows.append({"layer": layer, **facts, "orthonormality_gap": gap, "dead_heads": dead})
    folder.csv("tables/subspaces.csv", rows)
    gone = [f"layer {row['layer']}, head {row['dead_heads']}" for row in rows if row["dead_heads"]]
    said = (f"Dead heads, onto which everything projects to zero: {'; '.join(gone)}.",) if gone else ()
    few = {key: every[key] for key in some(list(every), 4)}
    caption = f"Cosines between four random directions of every subspace (seed {settings.seed})."
    pictures = (
        folder.figure(figures.subspace_grams(every, seed=settings.seed), "subspaces", caption),
        folder.figure(figures.subspace_grams(few, None), "subspaces_full", "All directions, for some layers."),
    )
    return Section("subspaces", *ABOUT["subspaces"], (*said, *pictures))


def baseline(study: Study, folder: Folder, settings: Any) -> Section:
    """For a network that is no CRATE: what its tokens can be measured by."""
    rows = token_table(study.model, study.batches(), settings.eps)
    folder.csv("tables/tokens.csv", ({"definition": f"tokens, ε = {settings.eps:g}", **row} for row in rows))
    folder.json("tables/tokens.json", {"definition": {"name": "tokens", "eps": settings.eps}, "rows": rows})
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
        f"Means and standard deviations over pictures; ε = {settings.eps:g}.",
    )
    return Section("tokens", "What can be compared", CANNOT, (table,))
