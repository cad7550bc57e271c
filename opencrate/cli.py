"""The command line: one command, one function. What is wrong is one sentence on stderr and exit code 2.

A help text must not wait for torch: the parts that compute are imported after the arguments are read.
"""

import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import tyro

from . import __version__, shipped
from .errors import suggestion
from .training.options import Options, Switch

if TYPE_CHECKING:
    from .recipes import Recipe

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
Heads = Annotated[int | None, tyro.conf.arg(help="number of heads, if the checkpoint does not say it", metavar="K")]


# training


def train(arguments: list[str]) -> None:
    """Train a recipe, or continue its run: opencrate train RECIPE_OR_FILE [--optim.lr 1e-4 …]."""
    from .recipes import RECIPES

    name, rest = _leading(arguments, "train", "RECIPE_OR_FILE", RECIPES)
    recipe, options = _recipe(name, RECIPES)
    _train(recipe, options, rest, f"opencrate train {name}", ["train", *arguments])


def finetune(arguments: list[str]) -> None:
    """Fine-tune a checkpoint on other pictures: opencrate finetune RECIPE CHECKPOINT [--root FOLDER …]."""
    from .recipes import FINETUNING

    name, rest = _leading(arguments, "finetune", "RECIPE CHECKPOINT", FINETUNING)
    recipe, options = _recipe(name, FINETUNING)
    if rest and not rest[0].startswith("-"):
        start = rest.pop(0)
        start = str(Path(start).expanduser().resolve()) if Path(start).expanduser().exists() else start
        recipe = replace(recipe, model=replace(recipe.model, start=start))
    _train(recipe, options, rest, f"opencrate finetune {name} CHECKPOINT", ["finetune", *arguments])


def _leading(arguments: list[str], command: str, usage: str, table: dict[str, Any]) -> tuple[str, list[str]]:
    """The recipe's name, which comes first, and the rest; without a name, print the recipes and exit."""
    if arguments and not arguments[0].startswith("-"):
        return arguments[0], arguments[1:]
    print(f"usage: opencrate {command} {usage} [OPTIONS]\n\nrecipes:")
    _print_table({name: _first_line(maker) for name, maker in table.items()})
    recipe = usage.split()[0].removesuffix("_OR_FILE")
    print(f"\nopencrate {command} {recipe} --help lists every option of a recipe and of a run.")
    sys.exit(0 if _asks_for_help(arguments) else 2)


def _recipe(name: str, table: dict[str, Any]) -> tuple["Recipe", Options]:
    """The recipe of a name or in a file; and the run's options, some of which a file of 0.1 holds."""
    from .recipes import named, options_in, read_recipe

    if name.endswith((".yaml", ".yml")) or Path(name).is_file():
        return read_recipe(name), Options(**options_in(name))
    return named(name, table), Options()


def _train(recipe: "Recipe", options: Options, arguments: list[str], prog: str, command: list[str]) -> None:
    from . import training
    from .recipes import Recipe

    @dataclass(frozen=True)
    class Job:
        recipe: Annotated[Recipe, tyro.conf.arg(name="")]
        options: Annotated[Options, tyro.conf.arg(name="")]

    job = tyro.cli(Job, args=arguments, default=Job(recipe, options), prog=prog)
    if job.options.processes > 1 and not training.under_torchrun():
        training.launch(command, job.options.processes)
    result = training.train(job.recipe, job.options)
    if training.is_main():
        print(training.summary(result))


def recipes() -> None:
    """List the recipes, with the top-1 accuracy to expect of each."""
    from .recipes import FINETUNING, RECIPES

    for command, table in (("train RECIPE", RECIPES), ("finetune RECIPE CHECKPOINT", FINETUNING)):
        print(f"opencrate {command}")
        width = max(map(len, table))
        print(f"  {'recipe':<{width}}   top-1  what it trains; where the accuracy is from; time; hardware")
        for name, maker in table.items():
            expected = maker().expected
            top1 = "–" if expected.top1 is None else f"{expected.top1:.1f} %"
            facts = [_first_line(maker).rstrip("."), expected.source, expected.time, expected.hardware]
            print(f"  {name:<{width}}  {top1:>6}  {'; '.join(filter(None, facts))}")
        print()
    print("opencrate train RECIPE --help lists every field of a recipe; each of them can be set there.")


def pack(
    folder: Annotated[str, tyro.conf.Positional, tyro.conf.arg(help="a folder with one folder for each split")],
    out: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(help="where the packed splits are written")],
    side: Annotated[int, tyro.conf.arg(help="pixels of a side of a packed picture")] = 256,
) -> None:
    """Decode a folder of pictures once, into memory-mapped files that are fast to read: --data.name packed."""
    from .data import pack_splits

    for name, index in pack_splits(Path(folder).expanduser(), out.expanduser(), side).items():
        skipped = f", {len(index.skipped)} did not decode" if index.skipped else ""
        size = sum(shard.size for shard in index.shards) / 1e9
        print(f"{out / name}: {index.count:,} pictures of {len(index.classes)} classes, {size:.2f} GB{skipped}")
    print(f"train from them with --data.name packed --data.root {out}")


# measuring and looking inside


def evaluate(arguments: list[str]) -> None:
    """Measure the accuracy of a checkpoint: opencrate eval RUN_OR_CHECKPOINT [--recipe NAME] [--knn 20] [--linear]."""
    from .data.settings import Dataset
    from .run_recipe import data_of
    from .settings import Measuring

    prog = "opencrate eval RUN_OR_CHECKPOINT"
    if not arguments:
        print(f"usage: {prog} [--recipe NAME] [OPTIONS]\n\n{prog} --help lists the options.")
        sys.exit(2)
    checkpoint, rest = ("", arguments) if arguments[0].startswith("-") else (arguments[0], arguments[1:])
    recipe, rest = _take("--recipe", rest)
    is_known = checkpoint and (recipe or not _asks_for_help(rest))
    if not checkpoint and not _asks_for_help(rest):
        raise ValueError(f"name a run or a checkpoint first: {prog}")
    default = Measuring(data_of(checkpoint, recipe) if is_known else Dataset())
    about = "What to measure, and how. --recipe NAME takes the pictures of a recipe instead of the run's."
    settings = tyro.cli(Measuring, args=rest, default=default, prog=prog, description=about)

    from .evaluation import measure_checkpoint

    for name, value in measure_checkpoint(checkpoint, settings).items():
        if name == "layers":
            print(value)
        else:
            text = f"{value:.4f}" if name == "loss" else f"{value:,}" if name == "pictures" else f"{value:.2f} %"
            print(f"{name:<9} {text}")


def _take(option: str, arguments: list[str]) -> tuple[str | None, list[str]]:
    """The value of an option, written as two words or with =, and the other arguments."""
    for i, word in enumerate(arguments):
        if word.startswith(f"{option}="):
            return word.partition("=")[2], arguments[:i] + arguments[i + 1 :]
        if word == option and i + 1 < len(arguments):
            return arguments[i + 1], arguments[:i] + arguments[i + 2 :]
    return None, arguments


def analyze(arguments: list[str]) -> None:
    """Write a report of what every layer does, with tables and figures: opencrate analyze [RUN_OR_CHECKPOINT]."""
    from .settings import Analysis

    source, rest = _source(arguments)
    settings = tyro.cli(Analysis, args=rest, prog="opencrate analyze [RUN_OR_CHECKPOINT]")

    from . import report

    print(f"{report.analyze(source, settings)} opens in any browser; tables/ and figures/ lie beside it")


def audit(arguments: list[str]) -> None:
    """Compare every layer with its design, in one line each: opencrate audit [RUN_OR_CHECKPOINT]."""
    from .settings import Auditing

    source, rest = _source(arguments)
    settings = tyro.cli(Auditing, args=rest, prog="opencrate audit [RUN_OR_CHECKPOINT]")

    from . import report

    print(report.audit_of(source, settings))


def explore(arguments: list[str]) -> None:
    """Follow a picture through a network on a local web page: opencrate explore [RUN_OR_CHECKPOINT]."""
    from .settings import Exploring

    source, rest = _source(arguments)
    settings = tyro.cli(Exploring, args=rest, prog="opencrate explore [RUN_OR_CHECKPOINT]")

    from .explorer import explore as serve

    serve(source, settings)


def _source(arguments: list[str]) -> tuple[str, list[str]]:
    """The checkpoint, which comes first, and the options; without one, the network that comes with the package."""
    if arguments and not arguments[0].startswith("-"):
        return arguments[0], arguments[1:]
    if not _asks_for_help(arguments):
        _print_note(
            "no checkpoint was given, so this is the network that comes with opencrate: CRATE-Tiny for CIFAR-10"
        )
    names = {word.partition("=")[0] for word in arguments}
    pictures = names & {"--images", "--recipe", "--data"}
    return str(shipped.NETWORK), arguments if pictures else [*arguments, "--images", str(shipped.PHOTOS)]


# checkpoints


def describe(checkpoint: Source, num_heads: Heads = None) -> None:
    """Print what a checkpoint is: size, patch, classes, heads, parameters, origin."""
    from . import checkpoints

    rows = checkpoints.read(checkpoint, num_heads).describe()
    width = max(map(len, rows))
    for name, value in rows.items():
        print(f"{name:<{width}}  {value}")


def convert(source: Source, target: Target, num_heads: Heads = None) -> None:
    """Write a checkpoint in another layout: ours (model.safetensors and config.json) or the authors'."""
    from . import checkpoints

    print(f"wrote {checkpoints.convert(source, target, num_heads)}")


# the entry point

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
READ_BY_TYRO = ("recipes", "pack", "describe", "convert")  # from their signatures; the others read a list of words
MOVED = {"bench": "python -m benchmarks", "reproduce": "python -m reproduction"}


def main(arguments: list[str] | None = None) -> None:
    """Entry point of `opencrate`."""
    arguments = sys.argv[1:] if arguments is None else arguments
    logging.basicConfig(format="opencrate: %(message)s", level=logging.WARNING)
    try:
        _run(arguments)
    except (ValueError, OSError) as error:
        _print_note(str(error))
        sys.exit(2)
    except KeyboardInterrupt as stopped:
        _print_note(str(stopped) or "stopped")
        sys.exit(getattr(stopped, "code", 130))


def _run(arguments: list[str]) -> None:
    name = arguments[0] if arguments else "--help"
    if name in ("-h", "--help"):
        _print_help()
        sys.exit(0)
    elif name in ("-V", "--version"):
        print(f"opencrate {__version__}")
    elif name in MOVED:
        raise ValueError(
            f"'opencrate {name}' is now '{MOVED[name]}', with the same options, in a checkout of the repository"
        )
    elif name not in COMMANDS:
        raise ValueError(f"unknown command {name!r}{suggestion(name, COMMANDS)}")
    elif name in READ_BY_TYRO:
        tyro.cli(COMMANDS[name], args=arguments[1:], prog=f"opencrate {name}")
    else:
        COMMANDS[name](_with_current_names(arguments[1:]))


def _print_help() -> None:
    print("usage: opencrate COMMAND [OPTIONS]\n")
    print("CRATE, the white-box transformer: train it, look into it, and trust what you see.\n\ncommands:")
    _print_table({name: _first_line(command) for name, command in COMMANDS.items()})
    print("\noptions:")
    _print_table({"-h, --help": "Show this text; after a command, its options.", "-V, --version": "Show the version."})


def _print_table(rows: dict[str, str]) -> None:
    width = max(map(len, rows))
    for name, text in rows.items():
        print(f"  {name:<{width}}  {text}")


def _first_line(function: Callable[..., Any]) -> str:
    return (function.__doc__ or "").splitlines()[0]


def _asks_for_help(arguments: list[str]) -> bool:
    return not {"-h", "--help"}.isdisjoint(arguments)


def _with_current_names(arguments: list[str]) -> list[str]:
    """The arguments with the names of today; names of 0.1 work for one more version, and are noted on stderr."""
    from .recipes.files import RENAMED_FIELDS

    flags = {f"--{old}": f"--{new.removeprefix('options.').replace('_', '-')}" for old, new in RENAMED_FIELDS.items()}
    result = []
    for word, following in zip(arguments, [*arguments[1:], ""], strict=True):
        written, equals, value = word.partition("=")
        name = written.replace("-", "_").replace("__", "--", 1)
        current = [flags.get(name, written) + equals + value]
        if name in ("--no_compile", "--no_graphs"):
            current = [f"--{name.removeprefix('--no_')}", "off"]
        elif name in ("--compile", "--graphs") and not equals and following not in get_args(Switch):
            current = [name, "on"]
        if current != [word]:
            _print_note(f"{written} is deprecated, write {' '.join(current)}")
        result += current
    return result


def _print_note(sentence: str) -> None:
    """Print a line on stderr, on the first of several processes only: they would all print the same."""
    if os.environ.get("RANK", "0") == "0":
        print(f"opencrate: {sentence}", file=sys.stderr)
