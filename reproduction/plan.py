"""The plan: the runs behind the paper's tables and figures, each a recipe. `scales` has the recipes.

A layer of a CRATE of dimension d has as many weights, 3 d², as one of a ViT of dimension d/2: CRATEs and ViTs are
compared in these pairs.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from itertools import product
from typing import Any, cast

import torch

from opencrate.models import CRATE
from opencrate.objective.rates import rate_scale
from opencrate.operators import compressions, sparsifications
from opencrate.recipes import Model, Recipe
from opencrate.recipes.imagenet import ARCHITECTURES, HYPERPARAMETERS, imagenet1k_base
from opencrate.training.building import build_model

PARTS = {
    "table1": "accuracy by size, with ViTs of the same size, and transfer to another dataset",
    "table2": "η, λ, epochs, weight decay and learning rate",
    "table3": "other compressions and sparsifications",
    "strong": "accuracy with strong recipes",
    "fig3": "R^c and sparsity by layer, for every size, trained and untrained",
    "fig4": "R^c and sparsity by layer over the epochs of a run",
    "tokens": "heat maps of the tokens",
    "subspaces": "the subspaces of every layer",
    "audit": "the effect of every half-step",
    "probe": "frozen features: 20 nearest neighbours, and a linear probe",
    "masks": "objects outlined by networks that were not trained for it",
}
LOOKS = ("fig3", "fig4", "tokens", "subspaces", "audit")
"""Parts that look inside networks which other parts have trained."""
TESTS = ("probe", "masks")
"""Parts that measure such networks on other tasks, ViTs among them."""
REAL = "real"
LIGHT, STRONG, MIXED, HALF = "light", "strong", "mixed", "lr_1.2e-4"
SETTINGS = {
    LIGHT: "the paper's settings",
    STRONG: "our strong recipe",
    MIXED: "our strong recipe and mixing",
}
OURS: dict[str, dict[str, Any]] = {
    "prox_mm_tight": {"sparsify": "prox_mm_tight"},
    # With κ = 0.5 it hardly trains. Its γ is that of the paper's network, 1.3: attention has the factor κγ².
    "softmax_step": {"compress": "softmax_step", "compress_args": {"kappa": 0.1}},
    "mssa_tied_short": {"compress": "mssa_tied", "compress_args": {"eps": 1.387}},  # the same factor, and no −κγ Y
    "gradient_step": {"compress": "gradient_step"},
}
"""Variants in addition to the paper's: the tight bound, the step with 1 − κγ, the exact gradient."""


@dataclass(frozen=True)
class Run:
    """A recipe of the plan and its place in the tables.

    Args:
        model: the network's name in the tables: CRATE-T, ViT-T.
        task: the dataset, CIFAR-10, or "Fashion-MNIST → CIFAR-10" if it starts from another run.
        parts: the tables and figures that show it.
        variant: light (the paper's settings), strong, mixed, or the name of a change to light, in this run or in the
            one that it starts from.
        start: the key of the run whose network it starts from.
        masks: the folder of pictures with masks, for the part of that name.
        real: whether table 1 also has its accuracy by ImageNet's reassessed labels (ReaL).
    """

    model: str
    task: str
    recipe: Recipe
    parts: frozenset[str]
    variant: str = LIGHT
    start: str | None = None
    real: bool = False
    masks: str = ""

    @property
    def key(self) -> str:
        """The name of the run and of its folder."""
        return f"{file_name(self.task)}/{self.model.lower()}/{self.variant}/seed{self.recipe.seed}"

    @property
    def looks(self) -> tuple[str, ...]:
        """The analyses of its network that its parts need."""
        real = (REAL,) if self.real and "table1" in self.parts else ()
        return tuple(look for look in (*LOOKS, *TESTS) if look in self.parts) + real


@dataclass(frozen=True)
class Plan:
    """All runs of a scale; a run that starts from another comes after it.

    Args:
        samples: the number of pictures on which layers are measured.
        runs_per_process: how many runs share a process, one after another; see `execute`.
        main: the variant that table 1, the transfers and the figures are of.
    """

    scale: str
    runs: tuple[Run, ...]
    samples: int
    runs_per_process: int = 1
    main: str = LIGHT

    def describe(self, done: Collection[str] = ()) -> str:
        """A line for every run: its epochs, its parts, and whether it is among those done."""
        width, lines = max(len(run.key) for run in self.runs), list[str]()
        for run in self.runs:
            parts = ", ".join(part for part in PARTS if part in run.parts)
            epochs, mark = run.recipe.schedule.epochs, "  done" if run.key in done else ""
            lines.append(f"{run.key:<{width}}  {epochs:>4} epoch{'s' * (epochs > 1)}  {parts}{mark}")
        return "\n".join([*lines, count_runs(len(self.runs), sum(run.key in done for run in self.runs))])

    def only(self, parts: Iterable[str] = (), patterns: Iterable[str] = ()) -> "Plan":
        """The runs of these parts whose key matches a pattern, and those that they start from; by default all runs.

        Runs of the first pattern come first, so that a long run need not be the last.
        """
        wanted, patterns = frozenset(parts) or frozenset(PARTS), tuple(patterns) or ("*",)
        for part in sorted(wanted):
            if part not in PARTS:
                raise ValueError(f"unknown part {part!r}; known: {', '.join(PARTS)}")
        in_parts = [run for run in self.runs if run.parts & wanted]
        if not in_parts:
            raise ValueError(f"scale {self.scale} has no run for {', '.join(sorted(wanted))}")
        turns = dict[str, int]()
        for run, (turn, pattern) in product(in_parts, enumerate(patterns)):
            if fnmatch(run.key, pattern):
                turns.setdefault(run.key, turn)
        if not turns:
            where = "the plan" if wanted == frozenset(PARTS) else ", ".join(part for part in PARTS if part in wanted)
            raise ValueError(f"no run of {where} matches {' or '.join(patterns)}; --dry prints the names")
        for run in self.runs:
            if run.key in turns and run.start:
                turns[run.start] = min(turns[run.key], turns.get(run.start, len(patterns)))
        kept = (replace(run, parts=run.parts & wanted) for run in self.runs if run.key in turns)
        return replace(self, runs=tuple(sorted(kept, key=lambda run: turns[run.key])))


def file_name(task: str) -> str:
    """ "cifar-10-to-fashion-mnist"."""
    return task.lower().replace(" → ", "-to-").replace(" ", "-")


def count_runs(runs: int, done: int) -> str:
    """ "4 runs, of which 1 is done"."""
    total = plural(runs, "run")
    return f"{total}, of which {done} {'is' if done == 1 else 'are'} done" if done else total


def plural(count: int, word: str) -> str:
    """ "1 seed", "3 seeds"."""
    return f"{count} {word}{'s' * (count != 1)}"


@dataclass(frozen=True)
class Scale:
    """The recipes from which a plan is made.

    Args:
        sets: the names of the first dataset and of a second one, for transfer in both directions.
        models: the networks in the table's order.
        first: training from scratch on the first dataset, with the paper's settings.
        second: the same on the second dataset, with fewer epochs.
        tuned: fine-tuning, on either dataset.
        strong: by variant, the networks that are trained on the first dataset with a stronger recipe, and that recipe.
        ablated: the CRATE whose settings and operators are varied.
        seeds: the number of seeds of every run.
        samples: the number of pictures on which layers are measured.
        halved: whether all networks of table 1 are also trained with half the learning rate.
        probed: whether frozen features are measured, too.
        once: runs, as MODEL/VARIANT, with the first seed only.
        runs_per_process: how many runs share a process, one after another.
    """

    name: str
    sets: tuple[str, str]
    models: dict[str, Model]
    first: Recipe
    second: Recipe
    tuned: Recipe
    strong: dict[str, tuple[tuple[str, ...], Recipe]]
    ablated: str
    seeds: int
    samples: int
    halved: bool = False
    probed: bool = False
    once: tuple[str, ...] = ()
    runs_per_process: int = 1


def make_plan(scale: Scale) -> Plan:
    """Seed after seed, so that an unfinished plan compares all networks. Fine-tuning comes right after its start."""
    runs: list[Run] = []
    for seed in range(scale.seeds):
        runs += [run for label in scale.models for run in _table1(scale, label, seed)]
        runs += [run for variant in scale.strong for run in _strong(scale, variant, seed)]
        runs += _ablations(scale, seed)
    kept = dict[str, Run]()
    for run in runs:
        if run.recipe.seed == 0 or f"{run.model}/{run.variant}" not in scale.once:
            known = kept.get(run.key, run)  # half the learning rate is in two tables
            kept[run.key] = replace(known, parts=known.parts | run.parts)
    return Plan(scale.name, tuple(kept.values()), scale.samples, scale.runs_per_process)


def _table1(scale: Scale, label: str, seed: int) -> Iterator[Run]:
    first, second = scale.sets
    parts = {"table1"} | ({"fig3"} if _is_crate(label) else set()) | ({"probe"} if scale.probed else set())
    if label == scale.ablated:
        parts |= {"table2", "table3"} | (set(LOOKS) if seed == 0 else set())
    scratch = Run(label, first, _recipe(scale.first, scale.models[label], seed), frozenset(parts))
    other = Run(label, second, _recipe(scale.second, scale.models[label], seed), frozenset({"table1"}))
    yield from _with_transfer(scale, scratch, other)
    if scale.halved:
        yield from _with_transfer(scale, _halved(scratch), _halved(other))


def _halved(run: Run) -> Run:
    """The run with half the learning rate, and without analyses."""
    return replace(run, recipe=_varied(run.recipe, HYPERPARAMETERS[HALF][0]), parts=frozenset({"table1"}), variant=HALF)


def _with_transfer(scale: Scale, first: Run, second: Run) -> Iterator[Run]:
    """Both, each followed by fine-tuning of its network on the other's dataset."""
    yield from (first, _tuned(scale, first, scale.second), second, _tuned(scale, second, scale.first))


def _tuned(scale: Scale, start: Run, to: Recipe) -> Run:
    """Fine-tuning on the dataset of the recipe `to`."""
    task = scale.sets[0] if to is scale.first else scale.sets[1]
    recipe = replace(scale.tuned, data=to.data, augment=to.augment, seed=start.recipe.seed)
    return Run(start.model, f"{start.task} → {task}", recipe, frozenset({"table1"}), start.variant, start.key)


def _strong(scale: Scale, variant: str, seed: int) -> Iterator[Run]:
    labels, recipe = scale.strong[variant]
    for label in labels:
        parts = frozenset({"strong", "fig3"} if _is_crate(label) else {"strong"})
        yield Run(label, scale.sets[0], _recipe(recipe, scale.models[label], seed), parts, variant)


def _ablations(scale: Scale, seed: int) -> Iterator[Run]:
    base = _recipe(scale.first, scale.models[scale.ablated], seed)
    for name, (changes, _) in HYPERPARAMETERS.items():
        yield Run(scale.ablated, scale.sets[0], _varied(base, changes), frozenset({"table2"}), name)
    for name, changed in ({key: changes["model"] for key, (changes, _) in ARCHITECTURES.items()} | OURS).items():
        recipe = replace(base, model=_with_operator(changed, base))
        yield Run(scale.ablated, scale.sets[0], recipe, frozenset({"table3"}), name)


def _with_operator(changed: dict[str, Any], base: Recipe) -> Model:
    """The network with another operator and its options.

    ε is chosen so that γ = p/(Nε²), or α = d/(Nε²), equals that of the paper's network with the given or default ε:
    γ multiplies MSSA, and with fewer tokens and the same ε it would be larger.
    """
    kind, table = ("compress", compressions) if "compress" in changed else ("sparsify", sparsifications)
    eps = float(table.options(changed[kind], changed.get(f"{kind}_args"))["eps"])
    ours, papers = (_rate_scale(recipe, kind, eps) for recipe in (base, imagenet1k_base()))
    options = changed.get(f"{kind}_args", {}) | {"eps": round(eps * (ours / papers) ** 0.5, 3)}
    return replace(base.model, **changed | {f"{kind}_args": options})


def _rate_scale(recipe: Recipe, kind: str, eps: float) -> float:
    """γ of a recipe's network for a compression, α for a sparsification."""
    with torch.device("meta"):
        network = cast(CRATE, build_model(recipe))
    return rate_scale(network.pos_embed.shape[1], network.head_dim if kind == "compress" else network.embed_dim, eps)


def _varied(base: Recipe, changes: dict[str, dict[str, Any]]) -> Recipe:
    """The paper's change: epochs and learning rate by the same factor, other settings to the same value."""
    paper, parts = imagenet1k_base(), dict[str, Any]()
    for part, values in changes.items():
        values = dict(values)
        if "lr" in values:
            values["lr"] *= base.optim.lr / paper.optim.lr
        if "epochs" in values:
            values["epochs"] = max(1, round(values["epochs"] / paper.schedule.epochs * base.schedule.epochs))
        parts[part] = replace(getattr(base, part), **values)
    return replace(base, **parts)


def _recipe(base: Recipe, model: Model, seed: int) -> Recipe:
    return replace(base, model=model, seed=seed)


def _is_crate(label: str) -> bool:
    return label.startswith("CRATE")
