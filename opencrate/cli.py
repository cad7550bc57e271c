"""The command line: one command, one function. What is wrong with a file is one sentence on stderr and exit code 2."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import tyro

from . import __version__, models
from .operators.table import suggestion

__all__ = ["convert", "describe", "main"]

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
    rows = models.read(checkpoint, num_heads).describe()
    width = max(map(len, rows))
    for name, value in rows.items():
        print(f"{name:<{width}}  {value}")


def convert(source: Source, target: Target, num_heads: Heads = None) -> None:
    """Write a checkpoint in another layout: ours (model.safetensors and config.json) or the authors'."""
    print(f"wrote {models.convert(source, target, num_heads)}")


COMMANDS: dict[str, Callable[..., None]] = {"describe": describe, "convert": convert}


def main(arguments: list[str] | None = None) -> None:
    """Entry point of `opencrate`."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        if arguments[:1] == ["--version"]:
            print(f"opencrate {__version__}")
        elif arguments and not arguments[0].startswith("-") and arguments[0] not in COMMANDS:
            raise ValueError(f"unknown command {arguments[0]!r}{suggestion(arguments[0], COMMANDS)}")
        else:
            tyro.extras.subcommand_cli_from_dict(
                COMMANDS,
                args=arguments or ["--help"],
                prog="opencrate",
                description="CRATE, the white-box transformer: look into checkpoints and convert them.",
            )
    except (ValueError, OSError) as error:
        print(f"opencrate: {error}", file=sys.stderr)
        sys.exit(2)
