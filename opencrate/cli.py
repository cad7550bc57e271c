"""The command line: one command, one function. What is wrong with a file is one sentence on stderr and exit code 2.

The parts that train are imported by the commands that need them: the others start without.
"""

import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from . import __version__, checkpoints, shipped
from .errors import suggestion

if TYPE_CHECKING:
    from .recipes import Recipe

__all__ = [
    "analyze",
    "audit",
    "convert",
    "describe",
    "evaluate",
    "explore",
    "finetune",
    "main",
    "pack",
    "recipes",
    "train",
]

Source = Annotated[
    str,
    tyro.conf.Positional,
    tyro.conf.arg(
        metavar="CHECKPOINT", help="a folder, a file (ours or the paper's authors') or a Hub repository (owner/name)"
    ),
]
Target = Annotated[
    Path,
    tyro.conf.Positional,
    tyro.conf.arg(metavar="TARGET", help="a folder for our layout, a file (.pth.tar, .pth) for the authors'"),
]
Heads = Annotated[int | None, tyro.conf.arg(help="number of heads, where the checkpoint does not tell it", metavar="K")]


def describe(checkpoint: Source, num_heads: Heads = None) -> None:
    """Print what a checkpoint is: size, patch, classes, heads, parameters, where from."""
    rows = checkpoints.read(checkpoint, num_heads).describe()
    width = max(map(len, rows))
    for name, value in rows.items():
        print(f"{name:<{width}}  {value}")


def convert(source: Source, target: Target, num_heads: Heads = None) -> None:
    """Write a checkpoint in another layout: ours (model.safetensors and config.json) or the authors'."""
    print(f"wrote {checkpoints.convert(source, target, num_heads)}")


def recipes() -> None:
    """List the recipes: what they train, the top-1 accuracy to expect, who says so, time and hardware where known."""
    from .recipes import FINETUNING, RECIPES

    for command, table in (("train RECIPE", RECIPES), ("finetune RECIPE CHECKPOINT", FINETUNING)):
        print(f"opencrate {command}")
        width = max(map(len, table))
        for name, maker in table.items():
            expected = maker().expected
            top1 = "–" if expected.top1 is None else f"{expected.top1:.1f} %"
            facts = [_sentence(maker).rstrip("."), expected.source, expected.time, expected.hardware]
            print(f"  {name:<{width}}  {top1:>6}  {'; '.join(filter(None, facts))}")
        print()
    print("opencrate train RECIPE --help lists every field of a recipe; any of them can be set there.")


def _sentence(function: Callable[..., Any]) -> str:
    return (function.__doc__ or "").splitlines()[0]


def train(arguments: list[str]) -> None:
    """Train a recipe, or go on with its run: opencrate train RECIPE_OR_FILE [--optim.lr 1e-4 …]."""
    from .recipes import RECIPES

    name, rest = _leading(arguments, "train", "RECIPE_OR_FILE", RECIPES)
    _train(_recipe(name, RECIPES), rest, f"opencrate train {name}", ["train", *arguments])


def finetune(arguments: list[str]) -> None:
    """Fine-tune a checkpoint on other pictures: opencrate finetune RECIPE CHECKPOINT [--data.root FOLDER …]."""
    from .recipes import FINETUNING

    name, rest = _leading(arguments, "finetune", "RECIPE CHECKPOINT", FINETUNING)
    recipe = _recipe(name, FINETUNING)
    if rest and not rest[0].startswith("-"):
        start = rest.pop(0)
        start = str(Path(start).expanduser().resolve()) if Path(start).expanduser().exists() else start
        recipe = replace(recipe, model=replace(recipe.model, start=start))
    _train(recipe, rest, f"opencrate finetune {name} CHECKPOINT", ["finetune", *arguments])


def _leading(arguments: list[str], command: str, usage: str, table: dict[str, Any]) -> tuple[str, list[str]]:
    """The name that comes first; without one, what there is to choose from."""
    if arguments and not arguments[0].startswith("-"):
        return arguments[0], arguments[1:]
    print(f"usage: opencrate {command} {usage} [OPTIONS]\n\nrecipes:")
    width = max(map(len, table))
    for name, maker in table.items():
        print(f"  {name:<{width}}  {_sentence(maker)}")
    print(
        f"\nopencrate {command} {usage.split()[0].removesuffix('_OR_FILE')} --help lists every field that can be set."
    )
    sys.exit(0 if arguments and arguments[0] in ("-h", "--help") else 2)


def _recipe(name: str, table: dict[str, Any]) -> "Recipe":
    from .recipes import named, read_recipe

    if name.endswith((".yaml", ".yml")) or Path(name).is_file():
        return read_recipe(name)
    return named(name, table)


def _train(recipe: "Recipe", arguments: list[str], prog: str, command: list[str]) -> None:
    from . import training as engine
    from .recipes import Recipe

    @dataclass(frozen=True)
    class Job:
        recipe: Annotated[Recipe, tyro.conf.arg(name="")]
        options: Annotated[engine.Options, tyro.conf.arg(name="")]

    job = tyro.cli(Job, args=arguments, default=Job(recipe, engine.Options()), prog=prog)
    if job.options.processes > 1 and not engine.under_torchrun():
        engine.launch(command, job.options.processes)
    result = engine.train(job.recipe, job.options)
    if engine.is_main():
        print(engine.summary(result))


def evaluate(arguments: list[str]) -> None:
    """Measure a checkpoint: opencrate eval RUN_OR_CHECKPOINT [--recipe NAME] [--knn 20] [--linear] [--real] …"""
    from . import evaluation

    if not arguments or arguments[0].startswith("-"):
        print("usage: opencrate eval RUN_OR_CHECKPOINT [--recipe NAME] [OPTIONS]\n")
        print("opencrate eval RUN_OR_CHECKPOINT --help lists the options.")
        sys.exit(0 if arguments and arguments[0] in ("-h", "--help") else 2)
    checkpoint, rest = arguments[0], arguments[1:]
    rest = [part for word in rest for part in (word.split("=", 1) if word.startswith("--recipe=") else [word])]
    recipe = None
    if "--recipe" in rest[:-1]:
        at = rest.index("--recipe")
        recipe, rest = rest[at + 1], rest[:at] + rest[at + 2 :]
    default = evaluation.Measuring(evaluation.data_of(checkpoint, recipe))
    wanted = tyro.cli(evaluation.Measuring, args=rest, default=default, prog="opencrate eval RUN_OR_CHECKPOINT")
    found = evaluation.measure_checkpoint(checkpoint, wanted)
    for name, value in found.items():
        if name == "layers":
            print(value)
        else:
            print(
                f"{name:<9} "
                + (f"{value:.4f}" if name == "loss" else f"{value:,}" if name == "pictures" else f"{value:.2f} %")
            )


def pack(
    folder: Annotated[str, tyro.conf.Positional, tyro.conf.arg(help="the folder with a folder for each split")],
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(help="where the packed splits go")],
    side: Annotated[int, tyro.conf.arg(help="pixels of a side of a packed picture")] = 256,
) -> None:
    """Decode pictures once, to memory-mapped uint8 shards that feed a GPU: --data.name packed --data.root OUT."""
    from .data import pack_splits

    for name, index in pack_splits(Path(folder).expanduser(), out.expanduser(), side).items():
        skipped = f", {len(index.skipped)} did not decode" if index.skipped else ""
        size = sum(shard.size for shard in index.shards) / 1e9
        print(f"{out / name}: {index.count:,} pictures of {len(index.classes)} classes, {size:.2f} GB{skipped}")
    print(f"train from them with --data.name packed --data.root {out}")


def analyze(arguments: list[str]) -> None:
    """Show what every layer does, by tables, figures and a page: opencrate analyze [RUN_OR_CHECKPOINT] [--images F]."""
    from . import report

    source, rest = _source(arguments)
    settings = tyro.cli(report.Analysis, args=rest, prog="opencrate analyze [RUN_OR_CHECKPOINT]")
    print(f"{report.analyze(source, settings)} opens in any browser; tables/ and figures/ lie beside it")


def audit(arguments: list[str]) -> None:
    """Hold every layer to its design, in a line each: opencrate audit [RUN_OR_CHECKPOINT] [--images FOLDER]."""
    from . import report

    source, rest = _source(arguments)
    print(report.audit_of(source, tyro.cli(report.Auditing, args=rest, prog="opencrate audit [RUN_OR_CHECKPOINT]")))


def explore(arguments: list[str]) -> None:
    """Watch pictures go through a network, on a page of this machine: opencrate explore [RUN_OR_CHECKPOINT]."""
    from . import explorer

    source, rest = _source(arguments)
    explorer.explore(source, tyro.cli(explorer.Exploring, args=rest, prog="opencrate explore [RUN_OR_CHECKPOINT]"))


def _source(arguments: list[str]) -> tuple[str, list[str]]:
    """The checkpoint that comes first, and the options; without one, the network that comes with the package."""
    if arguments and not arguments[0].startswith("-"):
        return arguments[0], arguments[1:]
    names = {part.partition("=")[0] for part in arguments}
    if not names & {"-h", "--help"}:
        _tell("no checkpoint was given, so this is the network that comes with opencrate: CRATE-Tiny for CIFAR-10")
    pictures = names & {"--images", "--recipe", "--data"}
    return str(shipped.NETWORK), arguments if pictures else [*arguments, "--images", str(shipped.PHOTOS)]


COMMANDS: dict[str, Callable[..., None]] = {
    "train": train,
    "finetune": finetune,
    "eval": evaluate,
    "recipes": recipes,
    "pack": pack,
    "analyze": analyze,
    "audit": audit,
    "explore": explore,
    "describe": describe,
    "convert": convert,
}
READ_THEMSELVES = (
    "train",
    "finetune",
    "eval",
    "analyze",
    "audit",
    "explore",
)  # a name decides what their options are, or a heavy import
MOVED = {"bench": "python -m benchmarks", "reproduce": "python -m reproduction"}


def main(arguments: list[str] | None = None) -> None:
    """Entry point of `opencrate`."""
    arguments = sys.argv[1:] if arguments is None else arguments
    logging.basicConfig(format="opencrate: %(message)s", level=logging.WARNING)
    try:
        if arguments[:1] == ["--version"]:
            print(f"opencrate {__version__}")
        elif arguments and arguments[0] in READ_THEMSELVES:
            COMMANDS[arguments[0]](arguments[1:])
        elif arguments and arguments[0] in MOVED:
            raise ValueError(
                f"'opencrate {arguments[0]}' is now '{MOVED[arguments[0]]}', run in a checkout of the repository"
            )
        elif arguments and not arguments[0].startswith("-") and arguments[0] not in COMMANDS:
            raise ValueError(f"unknown command {arguments[0]!r}{suggestion(arguments[0], COMMANDS)}")
        else:
            tyro.extras.subcommand_cli_from_dict(
                COMMANDS,
                args=arguments or ["--help"],
                prog="opencrate",
                description="CRATE, the white-box transformer: train it, look into it, and trust what you see.",
            )
    except (ValueError, OSError) as error:
        _tell(str(error))
        sys.exit(2)
    except KeyboardInterrupt as stopped:
        _tell(str(stopped) or "stopped")
        sys.exit(getattr(stopped, "code", 130))


def _tell(sentence: str) -> None:
    """On stderr, and of several processes only the first: they all have the same to say."""
    if os.environ.get("RANK", "0") == "0":
        print(f"opencrate: {sentence}", file=sys.stderr)
