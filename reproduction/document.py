"""RESULTS.md: a verdict on every claim, every table with the paper's numbers, the figures, and their provenance."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from opencrate import figures
from opencrate.files import write_atomically
from opencrate.measures import DEFINITIONS, LayerTable
from opencrate.recipes.imagenet import imagenet1k_base

from .claims import claims
from .depth import CHANGE_COLUMNS, CLEAR, LEVEL, change_rows, measured_networks
from .difference import signed
from .learning import learning_figure, learning_table, pairs_learning
from .place import FIGURES
from .plan import LIGHT, PARTS, SETTINGS, Plan, Run, plural
from .progress import duration
from .results import COLLAPSE, Results
from .tables import outlines, probes, strong, table, table1, table2, table3

NAME, NOTES = "RESULTS.md", "notes.md"
SMOKE = (
    "**This scale only shows that everything runs. Its networks are hardly trained and say nothing about the paper.** "
)
RULES = (
    "A claim about accuracies *holds* or *does not hold* if the 95 % interval of the difference over the seeds says so"
    " (Student's t with Welch's degrees of freedom). Otherwise it is *open*; so is a claim about several sizes of which"
    " one has not run, unless another decides it. Missing seeds do not keep a verdict open. The number after ± is the"
    " standard error of the difference. With one seed it is the binomial error of that many validation pictures, which"
    " does not include the variation between seeds. The limit of one point is our choice. Results with half the"
    " learning rate decide nothing.",
    "A claim about layers *holds* if every measured network shows it, and holds *in part* if it does by some of the"
    " measures named or, for the last layer, in some networks. R^c has to fall by at least"
    f" {CLEAR:.0%}, both from the first layer and from the second; the non-zero fraction by as much from the first"
    " layer to the lowest of the second half, which it may also do without training. For a claim about training, both"
    f" have to fall by {100 * CLEAR:g} points more than in one untrained network of the same size, the non-zero"
    " fraction also to the last layer. At the last layer the non-zero fraction has to rise by more than"
    f" {LEVEL:g}, and more than at any layer before. The claims about the audit and the subspaces are about one"
    " network. The audit's *hold* if every layer does better than every null, and *do not hold* if no layer does."
    f" The coherence of the subspaces has to fall by {CLEAR:.0%}; if it falls by less, the claim is *open*.",
    "Every layer measures R^c with its own subspaces, by three definitions: `paper` (the text), `official` (the"
    " authors' script) and `unit` (projected tokens at unit length). docs/NOTATION.md has them.",
)
COLLAPSE_NOTE = (
    f" †: a seed ended more than {COLLAPSE:g} points below its best epoch, or started from a network that had."
)
LEARNING_NOTE = (
    "These are the first seeds, of pairs that recorded their curves. Training accuracy and loss are those of the last"
    " epoch, on augmented pictures; with mixup or cutmix there is no training accuracy. The training loss has label"
    " smoothing, so that it compares only within a table; the validation loss has none."
)
AUDIT_NOTE = (
    "R^c has ε = 0.1, and every token is at unit length; the definition `unit` divides projected tokens instead. The"
    " LASSO is that of the layer's ISTA step for the normalised tokens Y before it. A grade is *yes* if R^c or the"
    " LASSO falls below what it is after every null (docs/AUDIT.md); the difference is that to the null hardest to"
    " beat, as a share of R^c before the step or of what the zero code costs, with its 95 % interval over the pictures:"
    " below 0 the layer does better. There is one untrained network. The cosine is between what attention adds to the"
    " tokens and −∇R^c at the normalised tokens that it reads"
)
COSINES = {"gradient_cosine": "cosine with −∇R^c", "unit_cosine": "the same at unit length"}
UNIT_COSINE_NOTE = "; at unit length, −∇ of R^c(Z/|Z|) at the tokens Z themselves"
_DATA_OPTIONS = {
    "small": " --data cifar10=FOLDER fashion_mnist=FOLDER",
    "medium": " --data tiny_imagenet=FOLDER …",
    "full": " --data imagenet=FOLDER …",
}


def write_document(plan: Plan, results: Results, out: Path, folder: Path) -> Path:
    """Write RESULTS.md and its figures to `folder`; `out` has the figures that were drawn from networks."""
    results = results.current(plan)
    folder_of_results = _results_folder(plan, out, folder)
    pictures = _Pictures(folder_of_results / FIGURES if folder == out else folder_of_results, folder)
    if folder != out:
        results.file = folder_of_results / results.file.name
        results.write()
    sections = [
        _heading(plan, results),
        _claims(plan, results),
        _notes(folder_of_results),
        table1(plan, results),
        table2(plan, results),
        table3(plan, results),
        strong(plan, results),
        probes(plan, results),
        outlines(plan, results),
        _learning(plan, results, pictures),
        _layers(plan, results, pictures),
        _epochs(plan, results, pictures),
        _network_figures(plan, results, out, pictures),
        _audit(plan, results),
        _state(plan, results, folder),
    ]
    text = "\n\n".join(section for section in sections if section) + "\n"
    file = folder / NAME
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(file, text)
    return file


def require_no_loss(plan: Plan, results: Results, out: Path, folder: Path) -> None:
    """Raise if the document in `folder` is of another scale, or has results that the new one would lack."""
    if folder == out:
        return
    file = folder / NAME
    if file.is_file() and _at_scale(plan) not in file.read_text(encoding="utf-8"):
        raise ValueError(f"{file} is not of scale {plan.scale}; give another --document")
    published = Results(_results_folder(plan, out, folder) / results.file.name, plan.scale).current(plan)
    lost = {run.key for run, _ in published.of(plan)} - {run.key for run, _ in results.current(plan).of(plan)}
    if lost:
        raise ValueError(
            f"{published.file} has {len(lost)} results that {results.file} lacks, such as {min(lost)}; copy it there"
            " to continue from them, or give another --document"
        )


def _results_folder(plan: Plan, out: Path, folder: Path) -> Path:
    """The folder for the results and figures of the document in `folder`."""
    return folder if folder == out else folder / "results" / plan.scale


class _Pictures:
    """Draws or copies figures, and returns the lines that show them in the document."""

    def __init__(self, folder: Path, document: Path) -> None:
        self.folder, self.document = folder, document

    def draw(self, figure: Any, name: str, words: str) -> str:
        png, pdf = figures.save(figure, self.folder, name)
        pdf.unlink()
        return self._shown(png, words)

    def copy(self, file: Path, words: str) -> str:
        self.folder.mkdir(parents=True, exist_ok=True)
        copy = self.folder / file.name
        if file.resolve() != copy.resolve():
            shutil.copyfile(file, copy)
        return self._shown(copy, words)

    def _shown(self, file: Path, words: str) -> str:
        return f"![{words}]({file.relative_to(self.document).as_posix()})"


def _at_scale(plan: Plan) -> str:
    return f"at the scale `{plan.scale}`"


def _heading(plan: Plan, results: Results) -> str:
    done = [row for _, row in results.of(plan)]
    command = f"python -m reproduction --scale {plan.scale}{_DATA_OPTIONS.get(plan.scale, '')}"
    return (
        "# Results\n\n"
        f"The paper's tables and figures {_at_scale(plan)}, written by `{command}`. Only the paper's"
        " numbers and the notes, if there are any, are written by hand.\n\n"
        f"{SMOKE if plan.scale == 'smoke' else ''}{len(done)} of {len(plan.runs)} runs{_made(done)}."
        f"{_missing(plan, results)} Accuracies are top-1 in per cent on validation pictures"
        " after the last epoch, mean ± standard deviation over seeds; a number without a deviation has one seed."
        f"{COLLAPSE_NOTE * any(map(results.has_collapsed, done))}"
        f"\n\n{_settings(plan)}"
    )


def _missing(plan: Plan, results: Results) -> str:
    """The number of runs that are not done, part by part."""
    waiting = [run for run in plan.runs if "top1" not in results.rows.get(run.key, {})]
    counts = ((part, sum(part in run.parts for run in waiting)) for part in PARTS)
    missing = ", ".join(f"{count} for {part}" for part, count in counts if count)
    return f" **Still to be run: {len(waiting)} ({missing}).**" if missing else ""


def _settings(plan: Plan) -> str:
    """What the settings of table 1 are at this scale, from the recipes."""
    light, paper = plan.runs[0].recipe, imagenet1k_base()
    same = " as on ImageNet" if replace(light.optim, batch=paper.optim.batch) == paper.optim else ""
    augment, verb = light.augment, "are" if plan.main == LIGHT else "is"
    extra = [f"RandAugment ({augment.randaugment})"] if augment.randaugment else []
    extra += [name for name in ("mixup", "cutmix") if getattr(augment, name)]
    return (
        f"At this scale {SETTINGS[plan.main]} {verb} {light.optim.name.capitalize()} with learning rate"
        f" {light.optim.lr:g} and weight decay {light.optim.weight_decay:g}{same}, batch {light.optim.batch}"
        f" ({paper.optim.batch} in the paper), {light.schedule.epochs} epochs ({paper.schedule.epochs}), pictures of"
        f" {light.data.size} pixels ({paper.data.size}){''.join(f', {name}' for name in extra)}. ViTs have the same"
        " settings, which were not tuned for them."
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
    """The sum over all runs and, if they overlapped, the elapsed time."""
    began = [datetime.fromisoformat(row["made"]["started"]).timestamp() for row in done]
    took = [row["seconds"] for row in done]
    clock, until = 0.0, 0.0
    for begin, seconds in sorted(zip(began, took, strict=True)):
        clock += max(begin + seconds - max(begin, until), 0)
        until = max(until, begin + seconds)
    total = sum(took)
    words = f"{duration(total)} in total"
    if clock > 0.95 * total:
        return words
    return f"{words}, {duration(clock)} elapsed (several runs shared a GPU or CPU, which makes each slower)"


def _claims(plan: Plan, results: Results) -> str:
    rows = ((claim.text, f"**{claim.verdict}**", claim.evidence) for claim in claims(plan, results))
    rules = "\n".join(f"- {rule}" for rule in RULES)
    return f"## What holds\n\n{table(('claim', 'at this scale', 'evidence'), rows)}\n\n{rules}"


def _layer_table(definition: str, values: dict[str, Any]) -> LayerTable:
    names = ("Rc", "Rc_std", "nonzero", "nonzero_std")
    rows = ({"layer": i + 1} | {name: values[name][i] for name in names} for i in range(len(values["Rc"])))
    return LayerTable(DEFINITIONS[definition], values["samples"], tuple(rows))


def _of_first_seed(plan: Plan, results: Results, look: str, variant: str = "") -> Iterator[tuple[str, Any]]:
    """The analysis of every size's network with the first seed, trained by this variant, or the main one."""
    variant = variant or plan.main
    for run, row in results.of(plan):
        if run.variant == variant and run.start is None and run.recipe.seed == 0 and look in row.get("looks", {}):
            yield run.model, row["looks"][look]


def _layers(plan: Plan, results: Results, pictures: _Pictures) -> str:
    lines = [*_curves(plan, results, pictures), *_changes(plan, results)]
    return "\n\n".join([f"## Figure 3: {PARTS['fig3']}", *lines]) if lines else ""


def _curves(plan: Plan, results: Results, pictures: _Pictures) -> Iterator[str]:
    """For the first seed: one size by every definition, all sizes, and the strong recipes; then the numbers."""
    by = {variant: dict(_of_first_seed(plan, results, "fig3", variant)) for variant in SETTINGS}
    main = by.pop(plan.main)
    for model, tables in list(main.items())[:1]:
        for name in DEFINITIONS:
            of_sets = {which: _layer_table(name, values) for which, values in tables[name].items()}
            words = f"{model}, by the definition {name}"
            yield pictures.draw(figures.layer_curves(of_sets, model), f"layers_{name}", words)
    if len(main) > 1:
        yield _sizes(main, "all sizes", "layers_sizes", pictures)
    for variant, sizes in by.items():
        if sizes:
            yield _sizes(sizes, f"with {SETTINGS[variant]}", f"layers_{variant}", pictures)
    if main:
        yield f"With {SETTINGS[plan.main]}, first seed:"
        yield _numbers(main)


def _sizes(curves: dict[str, Any], title: str, name: str, pictures: _Pictures) -> str:
    sizes = {label: _layer_table("unit", values["unit"]["validation"]) for label, values in curves.items()}
    return pictures.draw(figures.layer_curves(sizes, title), name, f"{title.capitalize()}, by the definition unit")


def _numbers(curves: dict[str, Any]) -> str:
    rows = []
    for label, values in curves.items():
        for which in ("untrained", "validation"):
            curve = values["unit"][which]
            name = f"{label}, {'trained' if which == 'validation' else which}"
            rows.append([f"{name}: R^c, unit", *(f"{value:.0f}" for value in curve["Rc"])])
            rows.append([f"{name}: non-zero", *(f"{value:.2f}".removeprefix("0") for value in curve["nonzero"])])
    head = ["layer", *map(str, range(1, max(map(len, rows))))]
    return table(head, (row + [""] * (len(head) - len(row)) for row in rows))


def _changes(plan: Plan, results: Results) -> Iterator[str]:
    """Tables of the changes over the layers, for every measured network."""
    networks = {words: measured_networks(plan, results, variant) for variant, words in SETTINGS.items()}
    for words, measured in networks.items():
        if measured:
            yield f"The change over the layers, with {words}, over the seeds:"
            yield table(("", *CHANGE_COLUMNS), change_rows(measured))
    if any(networks.values()):
        yield "“¾” is the layer at three quarters of the depth. “Untrained” is one untrained network of each size."


def _learning(plan: Plan, results: Results, pictures: _Pictures) -> str:
    """Learning curves of CRATEs and ViTs, for every variant and dataset that has both."""
    lines = []
    for name, words, pairs in pairs_learning(plan, results):
        lines.append(pictures.draw(learning_figure(pairs, words), f"learning_{name}", words))
        head, *rows = learning_table(pairs)
        lines.append(table(head, rows))
    return "\n\n".join(["## Learning curves of CRATEs and ViTs", *lines, LEARNING_NOTE]) if lines else ""


def _epochs(plan: Plan, results: Results, pictures: _Pictures) -> str:
    for model, epochs in _of_first_seed(plan, results, "fig4"):
        definition = next(run.recipe.definition for run in plan.runs if run.model == model)
        tables = {f"epoch {epoch}": _layer_table(definition, values) for epoch, values in epochs.items()}
        if len(tables) > 1:
            words = f"{model} over its epochs, by the definition {definition}"
            shown = pictures.draw(figures.layer_curves(tables, model), "epochs", words)
            return f"## Figure 4: {PARTS['fig4']}\n\n{shown}"
    return ""


def _network_figures(plan: Plan, results: Results, out: Path, pictures: _Pictures) -> str:
    lines = []
    for look in ("tokens", "subspaces"):
        for model, analysis in _of_first_seed(plan, results, look):
            file = out / FIGURES / analysis["figure"]
            kept = pictures.folder / analysis["figure"]
            if file.is_file() or kept.is_file():
                shown = pictures.copy(file if file.is_file() else kept, f"{model}: {PARTS[look]}")
                lines.append(f"## {PARTS[look].capitalize()} ({model})\n\n{shown}")
            if "coherence" in analysis:
                values = ", ".join(f"{value:.3f}" for value in analysis["coherence"])
                fresh = f"; untrained {analysis['untrained']:.3f}" if "untrained" in analysis else ""
                lines.append(
                    f"Mean |cos| between directions of different subspaces, by layer: {values}{fresh}. In the"
                    " figure, “coherence” is another measure: the cosine of the smallest angle between two subspaces."
                )
    return "\n\n".join(lines)


def _audit(plan: Plan, results: Results) -> str:
    for model, audit in _of_first_seed(plan, results, "audit"):
        title = f"## {PARTS['audit'].capitalize()} ({model})"
        if "trained_layers" not in audit:
            return f"{title}\n\nThe row's audit was made without nulls; this table needs a run of it."
        fresh = audit.get("untrained_layers", [None] * len(audit["trained_layers"]))
        rows = []
        for i, (layer, other) in enumerate(zip(audit["trained_layers"], fresh, strict=True)):
            halves = [cell for half in ("compress", "sparsify") for cell in _half(layer, other, half)]
            rows.append([str(i + 1), *halves, *(signed(audit[name][i], 3) for name in COSINES)])
        columns = ("R^c", "beside the best null", "untrained", "LASSO", "beside the best null", "untrained")
        note = f"{audit['samples']} pictures. {AUDIT_NOTE}{UNIT_COSINE_NOTE}."
        told = "\n".join(f"- {sentence}" for sentence in audit["summary"])
        return f"{title}\n\n{told}\n\n{table(('layer', *columns, *COSINES.values()), rows)}\n\n{note}"
    return ""


def _half(layer: dict[str, Any], untrained: dict[str, Any] | None, half: str) -> tuple[str, str, str]:
    """A half-step's grade and change, its difference to the best null, and the untrained network's grade."""
    one, fresh = layer[half], "–" if untrained is None else untrained[half]["grade"]
    if "best" not in one:
        return one["grade"], "–", fresh
    low, high = (signed(100 * value, 1) for value in one["interval"])
    difference = f"{signed(100 * one['difference'], 1)} % ({low} … {high}), {one['best']}"
    return f"{one['grade']}, {signed(100 * one['change'], 1)} %", difference, fresh


def _notes(folder: Path) -> str:
    """Notes that a person wrote, from a file in the folder of the figures."""
    file = folder / NOTES
    return file.read_text(encoding="utf-8").strip() if file.is_file() else ""


def _state(plan: Plan, results: Results, folder: Path) -> str:
    failed, done = results.failures(), list(results.of(plan))
    missing = [run.key for run in plan.runs if run.key not in results.rows]
    revisions = [_short(row["made"]["revision"]) for _, row in done]
    lines = ["## Provenance"]
    dirty = sum(revision.endswith("+") for revision in revisions)
    changed = f" (+: with uncommitted changes, {plural(dirty, 'run')})" if dirty else ""
    table = results.file.with_suffix(".csv").relative_to(folder).as_posix()
    revisions_and_times = (
        f"Revisions {', '.join(sorted(set(revisions)))}{changed}; [results.csv]({table}) has every run with its seed"
        " and its time; times of runs that shared a GPU or CPU are no measure of speed."
    )
    lines.append(revisions_and_times if done else "No run is done.")
    if done:
        lines.append(_forms(done))
    if failed:
        lines.append("Runs that failed:\n\n" + "\n".join(f"- `{key}`: {error}" for key, error in failed.items()))
    if missing:
        lines.append(f"Not run yet: {len(missing)} of {len(plan.runs)} runs; the first is `{missing[0]}`.")
    return "\n\n".join(lines)


def _forms(done: list[tuple[Run, dict[str, Any]]]) -> str:
    """The form in which each dataset was read: JPEG copies of a dataset are not the original pictures."""
    forms = dict[str, set[str]]()
    for run, row in done:
        forms.setdefault(run.task.rpartition(" → ")[2], set()).add(row.get("pictures", "unknown"))
    read = (f"{name} {' and '.join(sorted(used))}{' (may differ)' * (len(used) > 1)}" for name, used in forms.items())
    return f"Forms of the datasets, named as by `--data.name`: {'; '.join(read)}."


def _short(revision: str | None) -> str:
    return revision[:7] + "+" * revision.endswith("+") if revision else "unknown"
