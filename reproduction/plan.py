"""The plan: the runs behind the paper's tables and figures, each a recipe.

A CRATE of dimension d has as many weights in a layer as a ViT of dimension d/2, 3 d²: these are the pairs that are
compared. Which recipes a plan is made of is in `scales`.
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

__all__ = [
    "HALF",
    "LIGHT",
    "LOOKS",
    "MIXED",
    "OURS",
    "PARTS",
    "REAL",
    "SETTINGS",
    "STRONG",
    "Plan",
    "Run",
    "Scale",
    "amount",
    "counted",
    "file_name",
    "plan_of",
]

PARTS = {
    "table1": "accuracy by size, beside ViTs of the same size, and transfer to another set",
    "table2": "η, λ, epochs, weight decay and learning rate",
    "table3": "other compressions and sparsifications",
    "strong": "how far both go with a strong recipe",
    "fig3": "R^c and sparsity by layer, of every size, trained and untrained",
    "fig4": "the same over the epochs of a run",
    "tokens": "heat maps of the tokens",
    "subspaces": "the subspaces of every layer",
    "audit": "what every half-step does",
}
LOOKS = ("fig3", "fig4", "tokens", "subspaces", "audit")
"""Parts that open a network which another part has trained."""
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
"""What we add to the paper's table of variants: the tight bound, the step with 1 − κγ, the gradient itself."""


@dataclass(frozen=True)
class Run:
    """A recipe of the plan, and what it is for.

    Args:
        model: the network's name in the tables: CRATE-T, ViT-T.
        task: the pictures: CIFAR-10, or "Fashion-MNIST → CIFAR-10" where it starts from another run.
        parts: tables and figures that show it.
        variant: light (the paper's settings), strong, mixed, or what differs from light, in it or in the run that it
            starts from.
        start: key of the run whose network it starts from.
        real: whether ImageNet's reassessed labels (ReaL) judge it for table 1, too.
    """

    model: str
    task: str
    recipe: Recipe
    parts: frozenset[str]
    variant: str = LIGHT
    start: str | None = None
    real: bool = False

    @property
    def key(self) -> str:
        """Its name in the plan, and its folder's."""
        return f"{file_name(self.task)}/{self.model.lower()}/{self.variant}/seed{self.recipe.seed}"

    @property
    def looks(self) -> tuple[str, ...]:
        judged = (REAL,) if self.real and "table1" in self.parts else ()
        return tuple(look for look in LOOKS if look in self.parts) + judged


@dataclass(frozen=True)
class Plan:
    """All runs of a scale, those that start from others behind these; `samples` pictures show what layers do."""

    scale: str
    runs: tuple[Run, ...]
    samples: int

    def told(self, done: Collection[str] = ()) -> str:
        """A line for every run: how long it is, what for, and whether it is among those done."""
        width, lines = max(len(run.key) for run in self.runs), list[str]()
        for run in self.runs:
            parts = ", ".join(part for part in PARTS if part in run.parts)
            epochs, mark = run.recipe.schedule.epochs, "  done" if run.key in done else ""
            lines.append(f"{run.key:<{width}}  {epochs:>4} epoch{'s' * (epochs > 1)}  {parts}{mark}")
        return "\n".join([*lines, counted(len(self.runs), sum(run.key in done for run in self.runs))])

    def only(self, parts: Iterable[str] = (), patterns: Iterable[str] = ()) -> "Plan":
        """The runs of these parts with a key that matches, and those that they start from; all where none is given.

        Runs of the first pattern come first: a long one that would be the last should not be waited for by itself.
        """
        wanted, patterns = frozenset(parts) or frozenset(PARTS), tuple(patterns) or ("*",)
        for part in sorted(wanted):
            if part not in PARTS:
                raise ValueError(f"there is no part {part!r} of the paper; known: {', '.join(PARTS)}")
        of_parts = [run for run in self.runs if run.parts & wanted]
        if not of_parts:
            raise ValueError(f"the scale {self.scale} has no run for {', '.join(sorted(wanted))}")
        turns = dict[str, int]()
        for run, (turn, pattern) in product(of_parts, enumerate(patterns)):
            if fnmatch(run.key, pattern):
                turns.setdefault(run.key, turn)
        if not turns:
            of = "the plan" if wanted == frozenset(PARTS) else ", ".join(part for part in PARTS if part in wanted)
            raise ValueError(f"no run of {of} matches {' or '.join(patterns)}: --dry prints their names")
        for run in self.runs:
            if run.key in turns and run.start:
                turns[run.start] = min(turns[run.key], turns.get(run.start, len(patterns)))
        kept = (replace(run, parts=run.parts & wanted) for run in self.runs if run.key in turns)
        return replace(self, runs=tuple(sorted(kept, key=lambda run: turns[run.key])))


def file_name(task: str) -> str:
    """ "cifar-10-to-fashion-mnist"."""
    return task.lower().replace(" → ", "-to-").replace(" ", "-")


def counted(runs: int, done: int) -> str:
    """ "4 runs, of which 1 is done"."""
    total = amount(runs, "run")
    return f"{total}, of which {done} {'is' if done == 1 else 'are'} done" if done else total


def amount(count: int, word: str) -> str:
    """ "1 seed", "3 seeds"."""
    return f"{count} {word}{'s' * (count != 1)}"


@dataclass(frozen=True)
class Scale:
    """What a plan is made of.

    Args:
        sets: the names of the set that networks are trained on and of a second, for transfer both ways.
        models: the networks in the table's order.
        first: trains from scratch on the first set, with the paper's settings.
        second: the same on the second set, more briefly.
        tuned: fine-tunes, on either set.
        strong: by variant, the networks that are trained from scratch on the first set as well as we know how to, and
            the recipe.
        ablated: the CRATE whose settings and operators are varied.
        seeds: of every run.
        samples: pictures on which layers are measured.
        halved: whether all networks of table 1 are trained with half the learning rate as well.
        once: runs, as MODEL/VARIANT, that the first seed has to do for.
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
    once: tuple[str, ...] = ()


def plan_of(scale: Scale) -> Plan:
    """Seed after seed: what has run at any time compares all networks. Fine-tuning comes right after its start."""
    runs: list[Run] = []
    for seed in range(scale.seeds):
        runs += [run for label in scale.models for run in _table1(scale, label, seed)]
        runs += [run for variant in scale.strong for run in _strong(scale, variant, seed)]
        runs += _ablations(scale, seed)
    kept = dict[str, Run]()
    for run in runs:
        if run.recipe.seed == 0 or f"{run.model}/{run.variant}" not in scale.once:
            known = kept.get(run.key, run)  # half the learning rate is of two tables
            kept[run.key] = replace(known, parts=known.parts | run.parts)
    return Plan(scale.name, tuple(kept.values()), scale.samples)


def _table1(scale: Scale, label: str, seed: int) -> Iterator[Run]:
    first, second = scale.sets
    parts = {"table1"} | ({"fig3"} if _is_crate(label) else set())
    if label == scale.ablated:
        parts |= {"table2", "table3"} | (set(LOOKS) if seed == 0 else set())
    scratch = Run(label, first, _recipe(scale.first, scale.models[label], seed), frozenset(parts))
    other = Run(label, second, _recipe(scale.second, scale.models[label], seed), frozenset({"table1"}))
    yield from _with_transfer(scale, scratch, other)
    if scale.halved:
        yield from _with_transfer(scale, _gentle(scratch), _gentle(other))


def _gentle(run: Run) -> Run:
    """With half the learning rate, and not opened."""
    return replace(run, recipe=_varied(run.recipe, HYPERPARAMETERS[HALF][0]), parts=frozenset({"table1"}), variant=HALF)


def _with_transfer(scale: Scale, first: Run, second: Run) -> Iterator[Run]:
    """Both, each with its network fine-tuned on the other's set."""
    yield from (first, _tuned(scale, first, scale.second), second, _tuned(scale, second, scale.first))


def _tuned(scale: Scale, start: Run, to: Recipe) -> Run:
    """Fine-tuning on the set of the recipe `to`."""
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
        recipe = replace(base, model=_changed(changed, base))
        yield Run(scale.ablated, scale.sets[0], recipe, frozenset({"table3"}), name)


def _changed(changed: dict[str, Any], base: Recipe) -> Model:
    """The network with another operator and its options.

    Its ε is such that γ = p/(Nε²), or α = d/(Nε²), is what the paper's network has with the default ε, or with the one
    given: γ multiplies MSSA, and with fewer tokens it is larger.
    """
    kind, table = ("compress", compressions) if "compress" in changed else ("sparsify", sparsifications)
    eps = table.options(changed[kind], changed.get(f"{kind}_args"))["eps"]
    ours, papers = (_rate_scale(recipe, kind, eps) for recipe in (base, imagenet1k_base()))
    options = changed.get(f"{kind}_args", {}) | {"eps": round(eps * (ours / papers) ** 0.5, 3)}
    return replace(base.model, **changed | {f"{kind}_args": options})


def _rate_scale(recipe: Recipe, kind: str, eps: float) -> float:
    """γ of the compressions, α of the sparsifications of a recipe's network."""
    with torch.device("meta"):
        network = cast(CRATE, build_model(recipe))
    return rate_scale(network.pos_embed.shape[1], network.head_dim if kind == "compress" else network.embed_dim, eps)


def _varied(base: Recipe, changes: dict[str, dict[str, Any]]) -> Recipe:
    """As the paper varies its own: epochs and learning rate by the same factor, the others to the same value."""
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
