"""The command line: one command, one function. What is wrong is one sentence on stderr and exit code 2.

A help text must not wait for torch: the parts that compute are imported after the arguments are read.
"""

import logging
import os
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import tyro

from . import __version__, shipped
from .arguments import asks_for_help, parse, run, wrapped
from .errors import sentence, suggestion
from .settings import Analysis, Audited, Exploring, Predicting, Segmenting, Studying
from .training.options import Options

if TYPE_CHECKING:
    from .recipes import Recipe

Source = Annotated[
    str,
    tyro.conf.Positional,
    tyro.conf.arg(
        metavar="CHECKPOINT", help="a folder, a file (ours or the paper's authors') or a Hub repository (owner/name)."
    ),
]
SourceOrOurs = Annotated[
    str,
    tyro.conf.Positional,
    tyro.conf.arg(metavar="[RUN_OR_CHECKPOINT]", help="by default the network in the package.", help_behavior_hint=""),
]
Sources = Annotated[
    tuple[str, ...],
    tyro.conf.Positional,
    tyro.conf.arg(
        metavar="[RUN_OR_CHECKPOINT …]", help="by default the network in the package.", help_behavior_hint=""
    ),
]
Target = Annotated[
    Path,
    tyro.conf.Positional,
    tyro.conf.arg(metavar="TARGET", help="a folder for our layout, a file (.pth.tar, .pth) for the authors'."),
]
Heads = Annotated[
    int | None, tyro.conf.arg(help="number of heads, if the checkpoint does not say it.", help_behavior_hint="")
]
Pictures = Annotated[
    tuple[str, ...],
    tyro.conf.Positional,
    tyro.conf.arg(metavar="PICTURE …", help="files of pictures, or folders of them.", help_behavior_hint=""),
]
OURS = "no checkpoint was given, so this is the network that comes with opencrate: CRATE-Tiny for CIFAR-10"
Force = Annotated[bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(help="replace what is there.")]
T = TypeVar("T")
Spread = Annotated[T, tyro.conf.arg(name="")]  # the fields are options of their own


# training


def train(arguments: list[str]) -> None:
    """Train a recipe or a network for a folder of pictures: opencrate train RECIPE_OR_FOLDER [--optim.lr 1e-4 …]."""
    from .recipes import RECIPES

    _train("train RECIPE", RECIPES, *_first_word(arguments))


def finetune(arguments: list[str]) -> None:
    """Fine-tune a checkpoint, by default ours, on other pictures: opencrate finetune RECIPE_OR_FOLDER [CHECKPOINT]."""
    from .recipes import FINETUNING

    name, rest = _first_word(arguments)
    start, rest = _first_word(rest)
    if start:
        path = Path(start).expanduser()
        start = str(path.resolve()) if path.exists() else start
    elif _is_folder(name, FINETUNING):
        start = str(shipped.NETWORK)
    _train("finetune RECIPE CHECKPOINT", FINETUNING, name, rest, start)


def _is_folder(name: str, table: Collection[str]) -> bool:
    """Whether this is a folder of pictures and not the name of a recipe."""
    return name not in table and Path(name or "missing").expanduser().is_dir()


def _first_word(arguments: list[str]) -> tuple[str, list[str]]:
    """The first argument if it is no option, else an empty word; and the others."""
    if arguments and not arguments[0].startswith("-"):
        return arguments[0], arguments[1:]
    return "", arguments


def _value_of(option: str, arguments: list[str]) -> str | None:
    """The value of an option that decides the defaults of others."""
    words = [part for word in arguments for part in (word.split("=", 1) if word.startswith(f"{option}=") else [word])]
    return next((value for word, value in pairwise(words) if word == option), None)


def _train(
    usage: str, table: dict[str, Callable[[], "Recipe"]], name: str, arguments: list[str], start: str = ""
) -> None:
    """Run the recipe of a name, in a file or for a folder, with these options; without a name, print the recipes."""
    from . import training
    from .recipes import Recipe, find_recipe

    if not name:
        print(f"usage: opencrate {usage} [OPTIONS]\n\nrecipes:")
        _print_table({known: _first_line(maker) for known, maker in table.items()}, wrap=True)
        about = f"opencrate {usage} --help lists every option of a recipe and of a run. RECIPE may also be a file"
        print(f"\n{wrapped(f'{about}, or a folder of pictures.')}")
        sys.exit(0 if asks_for_help(arguments) else 2)
    options: dict[str, Any] = {}
    if _is_folder(name, table):
        from . import folders

        recipe = folders.recipe_for(Path(name).expanduser(), start)
        _print_note(folders.choices(recipe))
    else:
        recipe, options = find_recipe(name, table)
        recipe = replace(recipe, model=replace(recipe.model, start=start or recipe.model.start))

    @dataclass(frozen=True)
    class Job:
        recipe: Spread[Recipe]
        options: Spread[Options]

    prog = f"opencrate {usage.replace('RECIPE', name)}"
    about = f"The fields of the recipe {name}, which decide what is computed, and the options of a run."
    job = parse(Job, arguments, prog, about, default=Job(recipe, Options(**options)))
    if job.options.processes > 1 and not training.is_worker():
        training.require_room(job.options.processes, job.options.device)
        words = [usage.split()[0], name, *([start] if start else []), *arguments]
        training.launch(main, words, job.options.processes, _print_note)
    result = training.train(job.recipe, job.options)
    if training.is_main():
        print(training.summary(result))


def recipes() -> None:
    """List the recipes, with the top-1 accuracy to expect of each."""
    from .recipes import FINETUNING, RECIPES

    for command, table in (("train RECIPE", RECIPES), ("finetune RECIPE CHECKPOINT", FINETUNING)):
        rows = {"recipe": f"{'top-1':>6}  what it trains; where the accuracy is from; time; hardware"}
        for name, maker in table.items():
            expected = maker().expected
            top1 = "–" if expected.top1 is None else f"{expected.top1:.1f} %"
            facts = [_first_line(maker).rstrip("."), expected.source, expected.time, expected.hardware]
            rows[name] = f"{top1:>6}  {'; '.join(filter(None, facts))}"
        print(f"opencrate {command}")
        _print_table(rows)
        print()
    print("opencrate train RECIPE --help lists every field of a recipe; each of them can be set there.")


def pack(
    folder: Annotated[
        str, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER", help="a folder with one folder for each split.")
    ],
    out: Annotated[
        Path, tyro.conf.Positional, tyro.conf.arg(metavar="OUT", help="where the packed splits are written.")
    ],
    side: Annotated[int, tyro.conf.arg(help="pixels of a side of a packed picture.")] = 256,
) -> None:
    """Decode a folder of pictures once, into memory-mapped files that are fast to read: --data.name packed."""
    from .data import pack_splits

    for name, index in pack_splits(Path(folder).expanduser(), out.expanduser(), side).items():
        skipped = f", {len(index.skipped)} did not decode" if index.skipped else ""
        size = sum(shard.size for shard in index.shards) / 1e9
        print(f"{out / name}: {index.count:,} pictures of {len(index.classes)} classes, {size:.2f} GB{skipped}")
    print(f"train from them with --data.name packed --data.root {out}")


# measuring and looking inside


def predict(pictures: Pictures = (), *, settings: Spread[Predicting]) -> None:
    """Name what is in pictures, and draw where the network looked: opencrate predict PICTURE … [--overlay out.png]."""
    from .prediction import predict_files

    if not settings.model:
        _print_note(OURS)
    for text in predict_files(pictures, settings):
        print(text)


def evaluate(arguments: list[str]) -> None:
    """Measure the accuracy of a checkpoint: opencrate eval RUN_OR_CHECKPOINT [--recipe NAME] [--knn 20] [--linear]."""
    from .data.settings import Dataset
    from .run_recipe import data_of
    from .settings import Measuring

    @dataclass(frozen=True)
    class Job:
        measuring: Spread[Measuring]
        recipe: str | None = None  # a recipe whose pictures are measured, instead of those of the checkpoint's run.

    prog = "opencrate eval RUN_OR_CHECKPOINT"
    checkpoint, rest = _first_word(arguments)
    recipe = _value_of("--recipe", rest)
    if checkpoint and (recipe or not asks_for_help(rest)):
        data = data_of(checkpoint, recipe)
    elif asks_for_help(rest):
        data = Dataset()
    else:
        raise ValueError(f"name a run or a checkpoint first: {prog}")
    settings = parse(Job, rest, prog, _first_line(evaluate), default=Job(Measuring(data))).measuring

    from .evaluation import measure_checkpoint

    for name, value in measure_checkpoint(checkpoint, settings).items():
        if name == "layers":
            print(value)
        else:
            form = {"classes": "{}", "loss": "{:.4f}", "pictures": "{:,}"}.get(name, "{:.2f} %")
            print(f"{name:<9} {form.format(value)}")


def segment(sources: Sources = (), *, settings: Spread[Segmenting]) -> None:
    """Compare what networks attend to with masks of objects: opencrate segment RUN_OR_CHECKPOINT … --root FOLDER."""
    from .masks import compare_masks

    print(compare_masks(sources or (str(shipped.NETWORK),), settings))


def analyze(source: SourceOrOurs = "", *, settings: Spread[Analysis]) -> None:
    """Write a report of what every layer does, with tables and figures: opencrate analyze [RUN_OR_CHECKPOINT]."""
    from . import report

    page = report.analyze(*_or_ours(source, settings))
    print(f"{page} opens in any browser; tables/ and figures/ lie beside it")


def audit(source: SourceOrOurs = "", *, settings: Spread[Audited]) -> None:
    """Compare every layer with its design, and with nulls: opencrate audit [RUN_OR_CHECKPOINT] [--nulls] [--json]."""
    from . import report
    from .files import json_text
    from .measures.verdicts import to_dict

    trained, untrained = report.audit_of(*_or_ours(source, settings))
    if settings.json:
        print(json_text(to_dict(trained, untrained), indent=2))
    else:
        report.print_audit(trained, untrained, settings.nulls)


def explore(source: SourceOrOurs = "", *, settings: Spread[Exploring]) -> None:
    """Follow a picture through a network on a local web page: opencrate explore [RUN_OR_CHECKPOINT]."""
    from .explorer import explore as serve

    serve(*_or_ours(source, settings))


StudyingT = TypeVar("StudyingT", bound=Studying)


def _or_ours(source: str, settings: StudyingT) -> tuple[str, StudyingT]:
    """Without a checkpoint, the network that comes with the package, by default on the photos that do."""
    if source:
        return source, settings
    _print_note(OURS)
    if not settings.named_pictures():
        settings = replace(settings, images=str(shipped.PHOTOS))
    return str(shipped.NETWORK), settings


# checkpoints


def describe(checkpoint: Source, num_heads: Heads = None) -> None:
    """Print what a checkpoint is: size, patch, classes, heads, parameters, origin."""
    from . import checkpoints

    _print_table(checkpoints.read(checkpoint, num_heads).describe(), indent="")


def convert(source: Source, target: Target, num_heads: Heads = None, force: Force = False) -> None:
    """Write a checkpoint in another layout: ours (model.safetensors and config.json) or the authors'."""
    from . import checkpoints

    print(f"wrote {checkpoints.convert(source, target, num_heads, force)}")


def completion(
    shell: Annotated[Literal["bash", "zsh"], tyro.conf.Positional, tyro.conf.arg(metavar="SHELL", help="bash or zsh.")],
) -> None:
    """Print a script that completes commands, recipes and options: source <(opencrate completion bash)."""
    from .completion import script
    from .recipes import FINETUNING, RECIPES

    print(script(shell, COMMANDS, {"train": RECIPES, "finetune": FINETUNING, "completion": ("bash", "zsh")}))


def export(
    source: Source,
    target: Annotated[
        Path, tyro.conf.Positional, tyro.conf.arg(metavar="FILE", help="the file to write, .onnx or .pt2 (torch's).")
    ],
    force: Force = False,
) -> None:
    """Write a network for other runtimes, folded and compared with itself: opencrate export CHECKPOINT model.onnx."""
    from .export import export as write

    print(write(source, target.expanduser(), force))


# the entry point

COMMANDS: dict[str, Callable[..., None]] = {
    "train": train,
    "finetune": finetune,
    "eval": evaluate,
    "predict": predict,
    "segment": segment,
    "recipes": recipes,
    "pack": pack,
    "analyze": analyze,
    "audit": audit,
    "explore": explore,
    "describe": describe,
    "convert": convert,
    "export": export,
    "completion": completion,
}
READ_WORDS = ("train", "finetune", "eval")  # their options depend on their first words
MOVED = {"bench": "python -m benchmarks", "reproduce": "python -m reproduction"}


def main(arguments: list[str] | None = None, tell: Callable[[str], None] | None = None) -> None:
    """Entry point of `opencrate`. `tell` gets the sentence of a mistake, by default on stderr."""
    arguments, tell = sys.argv[1:] if arguments is None else arguments, tell or _print_note
    logging.basicConfig(format="opencrate: %(message)s", level=logging.WARNING)
    try:
        try:
            _run(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # the reader of stdout has left, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python writes when it ends
        sys.exit(1)
    except (ValueError, OSError) as error:
        tell(sentence(error))
        sys.exit(2)
    except KeyboardInterrupt as stopped:
        tell(str(stopped) or "stopped")
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
    elif name in READ_WORDS:
        COMMANDS[name](_with_current_names(arguments[1:]))
    else:
        run(COMMANDS[name], arguments[1:], f"opencrate {name}")


def _print_help() -> None:
    print("usage: opencrate COMMAND [OPTIONS]\n")
    print(wrapped("CRATE, the white-box transformer: train it, look into it, and trust what you see."))
    print("\ncommands:")
    _print_table({name: _first_line(command) for name, command in COMMANDS.items()}, wrap=True)
    print("\noptions:")
    options = {"-h, --help": "Show this text; after a command, its options.", "-V, --version": "Show the version."}
    _print_table(options, wrap=True)


def _print_table(rows: dict[str, str], indent: str = "  ", wrap: bool = False) -> None:
    width = max(map(len, rows))
    for name, text in rows.items():
        line = f"{indent}{name:<{width}}  {text}"
        print(wrapped(line, " " * (width + 4)) if wrap else line)


def _first_line(function: Callable[..., Any]) -> str:
    return (function.__doc__ or "").splitlines()[0]


def _with_current_names(arguments: list[str]) -> list[str]:
    """The arguments with the names of today; names of 0.1 work for one more version, and are noted on stderr."""
    from .recipes.files import RENAMED_FIELDS

    flags = {f"--{old}": f"--{new.removeprefix('options.').replace('_', '-')}" for old, new in RENAMED_FIELDS.items()}
    switched_off = {f"--no{mark}{name}": f"--{name}" for name in ("compile", "graphs") for mark in "-_"}
    result = []
    for word, following in zip_longest(arguments, arguments[1:], fillvalue=""):
        flag, equals, value = word.partition("=")
        current = [flags.get(flag, flag) + equals + value]
        if flag in switched_off:
            current = [switched_off[flag], "off"]
        elif flag in switched_off.values() and not equals and following[:1] in ("", "-"):
            current = [flag, "on"]
        if current != [word]:
            _print_note(f"{flag} is deprecated, write {' '.join(current)}")
        result += current
    return result


def _print_note(sentence: str) -> None:
    """Print a line on stderr, on the first of several processes only: they would all print the same."""
    if os.environ.get("RANK", "0") == "0":
        print(f"opencrate: {sentence}", file=sys.stderr)
