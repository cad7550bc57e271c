"""Tables 1 to 3 and that of the strong recipes, in Markdown, with the paper's numbers."""

from collections.abc import Iterable
from dataclasses import replace
from statistics import fmean, stdev

from opencrate.recipes import differences
from opencrate.recipes.imagenet import ARCHITECTURES, HYPERPARAMETERS

from .difference import Difference, signed
from .paper import BASE, MILLIONS, PAPER, WORDS
from .plan import LIGHT, OURS, PARTS, REAL, SETTINGS, Plan, Run, plural
from .results import Results

BAR = r"\|"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    return "\n".join(_line(cells) for cells in (head, ["---"] * len(head), *rows))


def _line(cells: Iterable[str]) -> str:
    """A line of a table; the bars in |cos| are escaped."""
    return f"| {' | '.join(cell.replace('|', BAR) for cell in cells)} |"


def _models(plan: Plan) -> list[str]:
    return list(dict.fromkeys(run.model for run in plan.runs))


def table1(plan: Plan, results: Results) -> str:
    runs = [run for run in plan.runs if "table1" in run.parts]
    models = _models(plan)
    sizes = {
        run.model: row["parameters"] for run, row in results.of(plan) if run.variant == plan.main and run.start is None
    }
    rows = [["parameters", *(f"{sizes[model] / 1e6:.2f} M" if model in sizes else "–" for model in models)]]
    for task, variant in dict.fromkeys((run.task, run.variant) for run in runs):
        accuracies = (results.accuracy(model, task, variant) for model in models)
        rows.append([_trained_on(plan, task, variant), *(str(sample or "–") for sample in accuracies)])
        if any(run.real for run in runs if run.task == task):
            real = (results.accuracy(model, task, look=REAL) for model in models)
            rows.append([f"{task} ReaL", *(str(sample or "–") for sample in real)])
    columns = list(PAPER["ImageNet"])
    paper = [["parameters", *(f"{MILLIONS[model]:.2f} M" for model in columns)]]
    paper += [[task, *(f"{values[model]:.1f}" for model in columns)] for task, values in PAPER.items()]
    return (
        f"## Table 1: {PARTS['table1']}\n\n"
        + table(["", *models], rows)
        + f"\n\n{_how(runs)}"
        + (" ViT-T+ is a ViT of CRATE-S's size: ViT-S with tokens of dimension 288." if "ViT-T+" in models else "")
        + " The paper's:\n\n"
        + table(["", *columns], paper)
    )


def _trained_on(plan: Plan, task: str, variant: str) -> str:
    """The task, with the variant behind the dataset that was trained on first."""
    first, arrow, then = task.partition(" → ")
    return task if variant == plan.main else f"{first}, {(WORDS | SETTINGS)[variant]}{arrow}{then}"


def _how(runs: list[Run]) -> str:
    """How the networks of the table's rows are trained, from their recipes."""
    second = next((run for run in runs if run.start is None and run.task != runs[0].task), None)
    tunings = [run.recipe for run in runs if run.start]
    sentences = []
    if second:
        schedule = second.recipe.schedule
        sentences.append(
            f"{second.task} from scratch: {plural(schedule.epochs, 'epoch')}, {schedule.warmup_epochs} of them warm-up."
        )
    if tunings:
        optim, augment = tunings[0].optim, tunings[0].augment
        epochs = sorted({recipe.schedule.epochs for recipe in tunings})
        long = plural(epochs[0], "epoch") if len(epochs) == 1 else f"{epochs[0]} to {epochs[-1]} epochs"
        sentences.append(
            "An arrow is fine-tuning of the network that was trained on the first dataset:"
            f" {long}, `{optim.name}`, learning rate {optim.lr:g},"
            f" weight decay {optim.weight_decay:g}, crops"
            f"{', flips' * (augment.flip > 0)}{f', {augment.randaugment}' if augment.randaugment else ''}"
            f"{', mixup' * (augment.mixup > 0)}{', cutmix' * (augment.cutmix > 0)}."
        )
    return " ".join(sentences)


def _varied(plan: Plan, results: Results, part: str, paper: dict[str, float]) -> str:
    run = next((run for run in plan.runs if part in run.parts), None)
    if run is None:
        return ""
    base = results.accuracy(run.model, run.task)
    sizes = {other.variant: row["parameters"] for other, row in results.of(plan) if other.model == run.model}
    rows = [[f"{run.model} as it is", *_size(sizes, LIGHT, part), str(base or "–"), "", f"{BASE:.1f}", ""]]
    variants = {other.variant for other in plan.runs if part in other.parts}
    for name in (name for name in WORDS if name in variants):
        sample = results.accuracy(run.model, run.task, name)
        difference = str(Difference.of(sample, base)) if sample and base else "–"
        theirs = [f"{paper[name]:.1f}", signed(paper[name] - BASE, 1)] if name in paper else ["–", ""]
        rows.append([WORDS[name], *_size(sizes, name, part), str(sample or "–"), difference, *theirs])
    columns = (f"{run.model}, {run.task}", "difference ± its error", "paper, CRATE-B, ImageNet", "difference")
    head = ("", *(["parameters"] if part == "table3" else []), *columns)
    return f"## {part.replace('table', 'Table ')}: {PARTS[part]}\n\n" + table(head, rows)


def _size(sizes: dict[str, int], variant: str, part: str) -> list[str]:
    """The number of parameters, a column of table 3 alone."""
    if part != "table3":
        return []
    return [f"{sizes[variant] / 1e6:.2f} M" if variant in sizes else "–"]


def table2(plan: Plan, results: Results) -> str:
    return _varied(plan, results, "table2", {name: top1 for name, (_, top1) in HYPERPARAMETERS.items()})


def table3(plan: Plan, results: Results) -> str:
    rows = _varied(plan, results, "table3", {name: top1 for name, (_, top1) in ARCHITECTURES.items()})
    if not rows:
        return ""
    note = "The paper does not state ε. Here CRATE-B at 224 pixels has the operators' default"
    if plan.scale == "full":
        return f"{rows}\n\n{note}."
    kappa = OURS["softmax_step"]["compress_args"]["kappa"]
    return (
        f"{rows}\n\n{note}, and this network has the ε with the same γ = p/(Nε²) and α = d/(Nε²)."
        f" Y is LN Z, and κ = {kappa:g} in the row that names it."
    )


def strong(plan: Plan, results: Results) -> str:
    runs = [run for run in plan.runs if "strong" in run.parts]
    if not runs:
        return ""
    task, models = runs[0].task, {run.model for run in runs}
    variants = [variant for variant in dict.fromkeys(run.variant for run in runs) if variant != LIGHT]
    rows = [
        [model, *(str(results.accuracy(model, task, variant) or "–") for variant in (LIGHT, *variants))]
        for model in _models(plan)
        if model in models
    ]
    head = ("", *(SETTINGS[variant] for variant in (LIGHT, *variants)))
    changes = (f"{SETTINGS[variant].capitalize()}: {_differences(plan, variant)}." for variant in variants)
    return "\n\n".join([f"## {PARTS['strong'].capitalize()}", table(head, rows), *changes])


def probes(plan: Plan, results: Results) -> str:
    """What frozen features are worth, for the datasets that networks are trained on or transferred to."""
    rows, models = [], _models(plan)
    for task in dict.fromkeys(run.task for run in plan.runs if "probe" in run.parts):
        for name, words in (("knn_20", "20 neighbours"), ("linear", "linear probe")):
            cells = [_probe(results, model, task, plan.main, name) for model in models]
            if any(cell != "–" for cell in cells):
                rows.append([f"{task}, {words}", *cells])
    if not rows:
        return ""
    note = "An arrow is from the first dataset's network, before any fine-tuning, to the second's pictures."
    return f"## {PARTS['probe'].capitalize()}\n\n{table(('', *models), rows)}\n\n{note}"


def _probe(results: Results, model: str, task: str, variant: str, name: str) -> str:
    wanted = {"model": model, "task": task, "variant": variant}
    looks = [row.get("looks", {}).get("probe", {}) for row in results.rows.values() if wanted.items() <= row.items()]
    values = [look[name] for look in looks if name in look]
    if not values:
        return "–"
    return f"{fmean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "")


def outlines(plan: Plan, results: Results) -> str:
    """IoU of masks that networks were not trained for, by every method."""
    found = {run.model: row["looks"]["masks"] for run, row in results.of(plan) if "masks" in row.get("looks", {})}
    if not found:
        return ""
    rows = []
    for name in next(iter(found.values())):
        ious = ({end: 100 * value for end, value in methods[name]["iou"].items()} for methods in found.values())
        rows.append([name, *(f"{iou['mean']:.1f} ({iou['low']:.1f} … {iou['high']:.1f})" for iou in ious)])
    note = (
        "IoU in per cent on the validation pictures of Oxford-IIIT Pets, with 95 % intervals over pictures. Layer, head"
        " or entry, and threshold are chosen on 200 training pictures, for every method alike. Centre knows nothing of"
        " the picture; grid is the mask itself in patches (docs/ARCHITECTURE.md, `opencrate segment`)."
    )
    return f"## {PARTS['masks'].capitalize()}\n\n{table(('', *found), rows)}\n\n{note}"


def _differences(plan: Plan, variant: str) -> str:
    """What a variant changes in the paper's settings, for any network."""
    run = next(run for run in plan.runs if run.variant == variant)
    base = next(other.recipe for other in plan.runs if (other.model, other.variant) == (run.model, LIGHT))
    return "; ".join(differences(base, replace(run.recipe, seed=base.seed)))
