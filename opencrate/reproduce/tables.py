"""The tables, each beside the paper's."""

from collections.abc import Iterable
from dataclasses import replace

from ..recipes import Recipe, differences
from ..recipes.imagenet import ARCHITECTURES, HYPERPARAMETERS
from .claims import WORDS, Difference, signed
from .plan import LIGHT, OURS, PARTS, REAL, STRONG, Plan, Run
from .results import Results

__all__ = ["PAPER", "strong", "table", "table1", "table2", "table3"]

BAR = r"\|"
PAPER: dict[str, dict[str, float]] = {
    "ImageNet": {"CRATE-T": 66.7, "CRATE-S": 69.2, "CRATE-B": 70.8, "CRATE-L": 71.3, "ViT-T": 71.5, "ViT-S": 72.4},
    "ImageNet ReaL": {"CRATE-T": 74.0, "CRATE-S": 76.0, "CRATE-B": 76.5, "CRATE-L": 77.4, "ViT-T": 78.3, "ViT-S": 78.4},
    "ImageNet → CIFAR-10": {
        "CRATE-T": 95.5, "CRATE-S": 96.0, "CRATE-B": 96.8, "CRATE-L": 97.2, "ViT-T": 96.6, "ViT-S": 97.2,
    },
    "ImageNet → CIFAR-100": {
        "CRATE-T": 78.9, "CRATE-S": 81.0, "CRATE-B": 82.7, "CRATE-L": 83.6, "ViT-T": 81.8, "ViT-S": 83.2,
    },
    "ImageNet → Flowers-102": {
        "CRATE-T": 84.6, "CRATE-S": 87.1, "CRATE-B": 88.7, "CRATE-L": 88.3, "ViT-T": 85.1, "ViT-S": 88.5,
    },
    "ImageNet → Pets": {
        "CRATE-T": 81.4, "CRATE-S": 84.9, "CRATE-B": 85.3, "CRATE-L": 87.4, "ViT-T": 88.5, "ViT-S": 88.6,
    },
}  # fmt: skip
BASE = PAPER["ImageNet"]["CRATE-B"]
MILLIONS = {"CRATE-T": 6.09, "CRATE-S": 13.12, "CRATE-B": 22.80, "CRATE-L": 77.64, "ViT-T": 5.72, "ViT-S": 22.05}


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    return "\n".join(_line(cells) for cells in (head, ["---"] * len(head), *rows))


def _line(cells: Iterable[str]) -> str:
    """Of a table; |cos| is not the end of a cell."""
    return f"| {' | '.join(cell.replace('|', BAR) for cell in cells)} |"


def _models(plan: Plan) -> list[str]:
    return list(dict.fromkeys(run.model for run in plan.runs))


def table1(plan: Plan, results: Results) -> str:
    runs = [run for run in plan.runs if "table1" in run.parts]
    models, tasks = _models(plan), list(dict.fromkeys(run.task for run in runs))
    sizes = {
        run.model: row["parameters"] for run, row in results.of(plan) if run.variant == LIGHT and run.start is None
    }
    rows = [["parameters", *(f"{sizes[model] / 1e6:.2f} M" if model in sizes else "–" for model in models)]]
    for task in tasks:
        rows.append([task, *(str(results.accuracy(model, task) or "–") for model in models)])
        if any(run.real for run in runs if run.task == task):
            real = (results.accuracy(model, task, look=REAL) for model in models)
            rows.append([f"{task} ReaL", *(str(sample or "–") for sample in real)])
    columns = list(PAPER["ImageNet"])
    paper = [["parameters", *(f"{MILLIONS[model]:.2f} M" for model in columns)]]
    paper += [[task, *(f"{values[model]:.1f}" for model in columns)] for task, values in PAPER.items()]
    return (
        f"## Table 1: {PARTS['table1']}\n\n"
        + table(["", *models], rows)
        + "\n\nAn arrow is fine-tuning of the network that was trained on the set before it."
        + (" ViT-T+ is a ViT of CRATE-S's size: ViT-S with tokens of dimension 288." if "ViT-T+" in models else "")
        + _apart(runs)
        + " The paper's:\n\n"
        + table(["", *columns], paper)
    )


def _apart(runs: list[Run]) -> str:
    """Networks whose settings are not those of the others on the same pictures."""
    first, told = dict[str, Recipe](), list[str]()
    for run in runs:
        base = first.setdefault(run.task, run.recipe)
        changed = differences(base, replace(run.recipe, model=base.model, seed=base.seed))
        if changed and run.recipe.seed == base.seed:
            told.append(f" {run.model} on {run.task} has {'; '.join(changed)}.")
    return "".join(told)


def _varied(plan: Plan, results: Results, part: str, paper: dict[str, float]) -> str:
    run = next((run for run in plan.runs if part in run.parts), None)
    if run is None:
        return ""
    base = results.accuracy(run.model, run.task)
    sizes = {other.variant: row["parameters"] for other, row in results.of(plan) if other.model == run.model}
    rows = [[f"{run.model} as it is", *_size(sizes, LIGHT, part), str(base or "–"), "", f"{BASE:.1f}", ""]]
    variants = dict.fromkeys(other.variant for other in plan.runs if part in other.parts and other.variant != LIGHT)
    for name in variants:
        sample = results.accuracy(run.model, run.task, name)
        difference = str(Difference.of(sample, base)) if sample and base else "–"
        theirs = [f"{paper[name]:.1f}", signed(paper[name] - BASE, 1)] if name in paper else ["–", ""]
        rows.append([WORDS[name], *_size(sizes, name, part), str(sample or "–"), difference, *theirs])
    columns = (f"{run.model}, {run.task}", "difference ± its error", "paper, CRATE-B, ImageNet", "difference")
    head = ("", *(["parameters"] if part == "table3" else []), *columns)
    return f"## {part.replace('table', 'Table ')}: {PARTS[part]}\n\n" + table(head, rows)


def _size(sizes: dict[str, int], variant: str, part: str) -> list[str]:
    """A cell for table 3, whose networks differ in their weights."""
    if part != "table3":
        return []
    return [f"{sizes[variant] / 1e6:.2f} M" if variant in sizes else "–"]


def table2(plan: Plan, results: Results) -> str:
    return _varied(plan, results, "table2", {name: top1 for name, (_, top1) in HYPERPARAMETERS.items()})


def table3(plan: Plan, results: Results) -> str:
    rows = _varied(plan, results, "table3", {name: top1 for name, (_, top1) in ARCHITECTURES.items()})
    if not rows:
        return ""
    told = "The paper does not tell ε: CRATE-B at 224 pixels has the operators' default here"
    if plan.scale == "full":
        return f"{rows}\n\n{told}."
    kappa = OURS["softmax_step"]["compress_args"]["kappa"]
    return (
        f"{rows}\n\n{told}, and this network the ε with the same γ = p/(Nε²) and α = d/(Nε²)."
        f" Y is LN Z, and κ = {kappa:g} in the row that names it."
    )


def strong(plan: Plan, results: Results) -> str:
    runs = [run for run in plan.runs if run.variant == STRONG]
    if not runs:
        return ""
    rows = []
    for model in dict.fromkeys(run.model for run in runs):
        run = next(run for run in runs if run.model == model)
        base = next(other.recipe for other in plan.runs if other.model == model)
        found = (results.accuracy(model, run.task, variant) for variant in (LIGHT, STRONG))
        changed = "; ".join(differences(base, replace(run.recipe, seed=base.seed)))
        rows.append([model, *(str(sample or "–") for sample in found), changed])
    return f"## {PARTS['strong'].capitalize()}\n\n" + table(
        ("", "the paper's settings", "strong recipe", "what differs"), rows
    )
