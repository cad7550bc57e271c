"""RESULTS.md: every table beside the paper's, a verdict on every claim, the figures, and what made them."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from opencrate.figures import curves as figures
from opencrate.figures.learning import learning_curves
from opencrate.files import write_atomically
from opencrate.measures import DEFINITIONS, LayerTable
from opencrate.recipes.imagenet import imagenet1k_base

from .claims import claims
from .depth import CLEAR, COLUMNS, LEVEL, depth_rows, opened
from .difference import signed
from .learning import learning_table, pairs_learning
from .place import FIGURES
from .plan import LIGHT, PARTS, SETTINGS, Plan, Run, plural
from .progress import duration
from .results import COLLAPSE, Results
from .tables import strong, table, table1, table2, table3

__all__ = ["require_no_loss", "write_document"]

NAME, NOTES = "RESULTS.md", "notes.md"
SMOKE = (
    "**This scale shows that all of it runs. Its networks have hardly been trained, and say nothing of the paper.** "
)
JUDGED = (
    "What is said of accuracies *holds* or *does not hold* if the 95 % interval of the difference over the seeds says"
    " so, by Student's t with Welch's degrees of freedom, and is *open* in between, or while a size has not run and no"
    " other decides; missing seeds do not keep a verdict open. The number after ± is the difference's standard error;"
    " of one seed, that of the share of right answers on so many pictures, and what another seed would give is not in"
    " it. The limit of one point is our choice. Beside a ViT, what half the learning rate gives decides nothing.",
    "What is said of layers *holds* if every network that was opened shows it, and *in part* if it does by some of the"
    " measures named or, of the last layer, in some networks. R^c has to fall by"
    f" {CLEAR:.0%} at least, from the first layer and from the second; the non-zero fraction as much from the first"
    " layer to the lowest of the second half, which without training it may do, too. By training, both have to fall by"
    f" {100 * CLEAR:g} points more than in an untrained network of the same size, of which there is one, the non-zero"
    f" fraction to the last layer as well. The last layer has to rise by more than {LEVEL:g} of all entries, and more"
    " than any before it. Audit and subspaces are of one network. The audit's claim *holds* if every layer does what it"
    " should fully, and *does not hold* if every layer fails; the subspaces' coherence has to fall by"
    f" {CLEAR:.0%}, and its claim is *open* if it falls by less.",
    "Every layer measures R^c against subspaces of its own, by three definitions: `paper` (the text's), `official`"
    " (the authors' script's) and `unit` (with projected tokens at unit length). docs/NOTATION.md has them.",
)
MARKED = f" †: a seed ended more than {COLLAPSE:g} points below its best epoch, or began with a network that had."
LEARNING = (
    "Of the first seed, and of pairs whose records were kept. Training accuracy and loss are those of the last epoch,"
    " on pictures as they were varied; where these are mixed, there is no accuracy. The training loss has label"
    " smoothing, and compares within a table alone; the validation loss is without."
)
AUDITED = (
    "R^c has ε = 0.1; at unit length, every token is divided by its own: not the definition `unit`, which divides"
    " projected tokens. The LASSO is that of the layer's ISTA step for the normalised tokens Y before it, beside its"
    " start, relu Y, and beside the code of zeros. Untrained is one fresh network. *Yes* would be a clear improvement"
    " by both halves, and a LASSO below that of the code of zeros. The cosine is between what attention adds to the"
    " tokens and −∇R^c at the normalised tokens that it sees"
)
COSINES = {"gradient_cosine": "cosine with −∇R^c", "unit_cosine": "the same at unit length"}
AT_UNIT_LENGTH = "; at unit length, −∇ of R^c(Z/|Z|) at the tokens Z themselves"
_SETS = {"small": " --data cifar10=FOLDER fashion_mnist=FOLDER", "full": " --data imagenet=FOLDER …"}


def write_document(plan: Plan, results: Results, out: Path, folder: Path) -> Path:
    """Write RESULTS.md and its figures to `folder`; `out` has the figures that need networks."""
    results = results.current(plan)
    beside = _beside(plan, out, folder)
    pictures = _Pictures(beside / FIGURES if folder == out else beside, folder)
    if folder != out:
        results.file = beside / results.file.name
        results.write()
    sections = [
        _heading(plan, results),
        _claims(plan, results),
        _notes(beside),
        table1(plan, results),
        table2(plan, results),
        table3(plan, results),
        strong(plan, results),
        _learning(plan, results, pictures),
        _layers(plan, results, pictures),
        _epochs(plan, results, pictures),
        _looked(plan, results, out, pictures),
        _audit(plan, results),
        _state(plan, results, folder),
    ]
    text = "\n\n".join(section for section in sections if section) + "\n"
    file = folder / NAME
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(file, text)
    return file


def require_no_loss(plan: Plan, results: Results, out: Path, folder: Path) -> None:
    """Stop where the document in `folder` is of another scale, or has results that the new one would be without."""
    if folder == out:
        return
    file = folder / NAME
    if file.is_file() and _at_scale(plan) not in file.read_text(encoding="utf-8"):
        raise ValueError(f"{file} is not of scale {plan.scale}; give another --document")
    published = Results(_beside(plan, out, folder) / results.file.name, plan.scale).current(plan)
    lost = {run.key for run, _ in published.of(plan)} - {run.key for run, _ in results.current(plan).of(plan)}
    if lost:
        raise ValueError(
            f"{published.file} has {len(lost)} results that {results.file} lacks, {min(lost)} for one: copy it there"
            " to go on from them, or give another --document"
        )


def _beside(plan: Plan, out: Path, folder: Path) -> Path:
    """Where results and figures of the document in `folder` lie."""
    return folder if folder == out else folder / "results" / plan.scale


class _Pictures:
    """Figures beside the document, and the lines that show them."""

    def __init__(self, folder: Path, document: Path) -> None:
        self.folder, self.document = folder, document

    def draw(self, figure: Any, name: str, words: str) -> str:
        png, pdf = figures.save(figure, self.folder, name)
        pdf.unlink()
        return self._shown(png, words)

    def copy(self, file: Path, words: str) -> str:
        self.folder.mkdir(parents=True, exist_ok=True)
        there = self.folder / file.name
        if file.resolve() != there.resolve():
            shutil.copyfile(file, there)
        return self._shown(there, words)

    def _shown(self, file: Path, words: str) -> str:
        return f"![{words}]({file.relative_to(self.document).as_posix()})"


def _at_scale(plan: Plan) -> str:
    return f"at the scale `{plan.scale}`"


def _heading(plan: Plan, results: Results) -> str:
    done = [row for _, row in results.of(plan)]
    command = f"python -m reproduction --scale {plan.scale}{_SETS.get(plan.scale, '')}"
    return (
        "# Results\n\n"
        f"The paper's tables and figures {_at_scale(plan)}, as `{command}` writes them. Apart"
        " from the paper's numbers and the notes, if there are any, nothing here is written by hand.\n\n"
        f"{SMOKE if plan.scale == 'smoke' else ''}{len(done)} of {len(plan.runs)} runs{_made(done)}."
        f"{_missing(plan, results)} Accuracies are top-1 in per cent on validation pictures"
        " after the last epoch, mean ± standard deviation over seeds; without a deviation, of one seed."
        f"{MARKED * any(map(results.has_collapsed, done))}"
        f"\n\n{_settings(plan)}"
    )


def _missing(plan: Plan, results: Results) -> str:
    """How many runs every part still waits for."""
    waiting = [run for run in plan.runs if "top1" not in results.rows.get(run.key, {})]
    counts = ((part, sum(part in run.parts for run in waiting)) for part in PARTS)
    told = ", ".join(f"{count} for {part}" for part, count in counts if count)
    return f" **Still to be run: {len(waiting)} ({told}).**" if told else ""


def _settings(plan: Plan) -> str:
    """What "the paper's settings" are at this scale, as the recipes have them."""
    light, paper = plan.runs[0].recipe, imagenet1k_base()
    same = " as on ImageNet" if replace(light.optim, batch=paper.optim.batch) == paper.optim else ""
    return (
        f"The paper's settings are here {light.optim.name.capitalize()} with learning rate {light.optim.lr:g} and"
        f" weight decay {light.optim.weight_decay:g}{same}, batch {light.optim.batch} ({paper.optim.batch} in the"
        f" paper), {light.schedule.epochs} epochs ({paper.schedule.epochs}), pictures of"
        f" {light.data.size} pixels ({paper.data.size}). ViTs have CRATE's settings, which were not chosen for them."
    )


def _made(done: list[dict[str, Any]]) -> str:
    if not done:
        return ""
    hardware, versions, days = (
        sorted({made(row["made"]) for row in done})
        for made in (
            lambda made: made["hardware"],
            lambda made: f"torch {made['torch']}, timm {made['timm']}",
            lambda made: made["started"][:10],
        )
    )
    period = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
    return f" on {'; '.join(hardware)} ({'; '.join(versions)}), {_time(done)}, {period}"


def _time(done: list[dict[str, Any]]) -> str:
    """Of all runs together; of runs beside each other also by the clock."""
    began = [datetime.fromisoformat(row["made"]["started"]).timestamp() for row in done]
    took = [row["seconds"] for row in done]
    clock, until = 0.0, 0.0
    for begin, seconds in sorted(zip(began, took, strict=True)):
        clock += max(begin + seconds - max(begin, until), 0)
        until = max(until, begin + seconds)
    total = sum(took)
    words = f"{duration(total)} in all"
    if clock > 0.95 * total:
        return words
    return f"{words} and {duration(clock)} by the clock (runs that share a machine take longer than alone)"


def _claims(plan: Plan, results: Results) -> str:
    rows = ((claim.text, f"**{claim.verdict}**", claim.evidence) for claim in claims(plan, results))
    rules = "\n".join(f"- {rule}" for rule in JUDGED)
    return f"## What holds\n\n{table(('claim', 'at this scale', 'evidence'), rows)}\n\n{rules}"


def _layer_table(definition: str, values: dict[str, Any]) -> LayerTable:
    names = ("Rc", "Rc_std", "nonzero", "nonzero_std")
    rows = ({"layer": i + 1} | {name: values[name][i] for name in names} for i in range(len(values["Rc"])))
    return LayerTable(DEFINITIONS[definition], values["samples"], tuple(rows))


def _of_first_seed(plan: Plan, results: Results, look: str, variant: str = LIGHT) -> Iterator[tuple[str, Any]]:
    """What was seen in the network of every size, first seed, by the paper's settings or another recipe."""
    for run, row in results.of(plan):
        if run.variant == variant and run.start is None and run.recipe.seed == 0 and look in row.get("looks", {}):
            yield run.model, row["looks"][look]


def _layers(plan: Plan, results: Results, pictures: _Pictures) -> str:
    lines = [*_curves(plan, results, pictures), *_changes(plan, results)]
    return "\n\n".join([f"## Figure 3: {PARTS['fig3']}", *lines]) if lines else ""


def _curves(plan: Plan, results: Results, pictures: _Pictures) -> Iterator[str]:
    """Of the first seed: a size by every definition, all sizes, and with our strong recipes; then the numbers."""
    by = {variant: dict(_of_first_seed(plan, results, "fig3", variant)) for variant in SETTINGS}
    found = by.pop(LIGHT)
    for model, tables in list(found.items())[:1]:
        for name in DEFINITIONS:
            of_sets = {which: _layer_table(name, values) for which, values in tables[name].items()}
            words = f"{model}, by the definition {name}"
            yield pictures.draw(figures.layer_curves(of_sets, model), f"layers_{name}", words)
    if len(found) > 1:
        yield _sizes(found, "all sizes", "layers_sizes", pictures)
    for variant, sizes in by.items():
        if sizes:
            yield _sizes(sizes, f"with {SETTINGS[variant]}", f"layers_{variant}", pictures)
    if found:
        yield f"With {SETTINGS[LIGHT]}, of the first seed:"
        yield _numbers(found)


def _sizes(found: dict[str, Any], title: str, name: str, pictures: _Pictures) -> str:
    sizes = {label: _layer_table("unit", values["unit"]["validation"]) for label, values in found.items()}
    return pictures.draw(figures.layer_curves(sizes, title), name, f"{title.capitalize()}, by the definition unit")


def _numbers(found: dict[str, Any]) -> str:
    rows = []
    for label, values in found.items():
        for which in ("untrained", "validation"):
            curve = values["unit"][which]
            name = f"{label}, {'trained' if which == 'validation' else which}"
            rows.append([f"{name}: R^c, unit", *(f"{value:.0f}" for value in curve["Rc"])])
            rows.append([f"{name}: non-zero", *(f"{value:.2f}".removeprefix("0") for value in curve["nonzero"])])
    head = ["layer", *map(str, range(1, max(map(len, rows))))]
    return table(head, (row + [""] * (len(head) - len(row)) for row in rows))


def _changes(plan: Plan, results: Results) -> Iterator[str]:
    """Over the layers, of every network that was opened."""
    networks = {words: opened(plan, results, variant) for variant, words in SETTINGS.items()}
    for words, seen in networks.items():
        if seen:
            yield f"With {words}, over the seeds, how much they change over the layers:"
            yield table(("", *COLUMNS), depth_rows(seen))
    if any(networks.values()):
        yield "“¾” is the layer at three quarters of the depth. Untrained is one fresh network of each size."


def _learning(plan: Plan, results: Results, pictures: _Pictures) -> str:
    """CRATEs beside ViTs over the epochs, by every setting and set that have both."""
    lines = []
    for name, words, pairs in pairs_learning(plan, results):
        lines.append(pictures.draw(learning_curves(pairs, words), f"learning_{name}", words))
        head, *rows = learning_table(pairs)
        lines.append(table(head, rows))
    return "\n\n".join(["## How they learn: CRATEs beside ViTs over the epochs", *lines, LEARNING]) if lines else ""


def _epochs(plan: Plan, results: Results, pictures: _Pictures) -> str:
    for model, found in _of_first_seed(plan, results, "fig4"):
        definition = next(run.recipe.definition for run in plan.runs if run.model == model)
        tables = {f"epoch {epoch}": _layer_table(definition, values) for epoch, values in found.items()}
        if len(tables) > 1:
            words = f"{model} over its epochs, by the definition {definition}"
            shown = pictures.draw(figures.layer_curves(tables, model), "epochs", words)
            return f"## Figure 4: {PARTS['fig4']}\n\n{shown}"
    return ""


def _looked(plan: Plan, results: Results, out: Path, pictures: _Pictures) -> str:
    lines = []
    for look in ("tokens", "subspaces"):
        for model, found in _of_first_seed(plan, results, look):
            file = out / FIGURES / found["figure"]
            kept = pictures.folder / found["figure"]
            if file.is_file() or kept.is_file():
                shown = pictures.copy(file if file.is_file() else kept, f"{model}: {PARTS[look]}")
                lines.append(f"## {PARTS[look].capitalize()} ({model})\n\n{shown}")
            if "coherence" in found:
                values = ", ".join(f"{value:.3f}" for value in found["coherence"])
                fresh = f", and {found['untrained']:.3f} untrained" if "untrained" in found else ""
                lines.append(
                    f"Mean |cos| between directions of different subspaces, by layer: {values}{fresh}. The figure's"
                    " “coherence” is another measure: the cosine of the smallest angle between two subspaces."
                )
    return "\n\n".join(lines)


def _audit(plan: Plan, results: Results) -> str:
    for model, found in _of_first_seed(plan, results, "audit"):
        rows, shown = [], {name: words for name, words in COSINES.items() if name in found}
        for i, verdict in enumerate(found["verdicts"]):
            fresh = [
                f"{signed(100 * found['untrained'][half][i], 1)} %" if "untrained" in found else "–"
                for half in ("compress", "sparsify")
            ]
            cosines = [signed(found[name][i], 3) for name in shown]
            word, _, evidence = verdict.partition(": ")
            attention, _, ista = evidence.partition("; ")
            rows.append([str(i + 1), word, attention, fresh[0], *cosines, ista, fresh[1]])
        head = (
            "layer",
            "as designed?",
            "attention",
            "an untrained one's",
            *shown.values(),
            "ISTA",
            "an untrained one's",
        )
        told = f"{AUDITED}{AT_UNIT_LENGTH * ('unit_cosine' in shown)}."
        return f"## {PARTS['audit'].capitalize()} ({model})\n\n{table(head, rows)}\n\n{told}"
    return ""


def _notes(folder: Path) -> str:
    """What a person noticed, from a file beside the figures: the only words here that are written by hand."""
    file = folder / NOTES
    return file.read_text(encoding="utf-8").strip() if file.is_file() else ""


def _state(plan: Plan, results: Results, folder: Path) -> str:
    failed, done = results.failures(), list(results.of(plan))
    missing = [run.key for run in plan.runs if run.key not in results.rows]
    revisions = [_short(row["made"]["revision"]) for _, row in done]
    lines = ["## What made this"]
    dirty = sum(revision.endswith("+") for revision in revisions)
    changed = f" (+: with changes that were not committed, {plural(dirty, 'run')})" if dirty else ""
    table = results.file.with_suffix(".csv").relative_to(folder).as_posix()
    told = (
        f"Revisions {', '.join(sorted(set(revisions)))}{changed}; [results.csv]({table}) has every run with its seed"
        " and its time, which is no speed where runs shared a machine."
    )
    lines.append(told if done else "No run is done.")
    if done:
        lines.append(_forms(done))
    if failed:
        lines.append("Runs that failed:\n\n" + "\n".join(f"- `{key}`: {error}" for key, error in failed.items()))
    if missing:
        lines.append(f"Not run yet: {len(missing)} of {len(plan.runs)} runs, `{missing[0]}` the first.")
    return "\n\n".join(lines)


def _forms(done: list[tuple[Run, dict[str, Any]]]) -> str:
    """As what the pictures of every set lay there: JPEG files are not the original ones."""
    forms = dict[str, set[str]]()
    for run, row in done:
        forms.setdefault(run.task.rpartition(" → ")[2], set()).add(row.get("pictures", "unknown"))
    told = (f"{name} {' and '.join(sorted(of))}{', maybe not the same' * (len(of) > 1)}" for name, of in forms.items())
    return f"Pictures, by the names that `--data.name` has for their forms: {'; '.join(told)}."


def _short(revision: str | None) -> str:
    return revision[:7] + "+" * revision.endswith("+") if revision else "unknown"
