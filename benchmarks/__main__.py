"""`python -m benchmarks`: compare speed and memory with the paper's pseudocode and timm's ViT."""

import sys
from typing import NoReturn

import tyro

from opencrate.errors import sentence

from .measure import measure
from .printing import make_console
from .report_file import disagreements
from .settings import Bench

NAME = "benchmarks"


def main(arguments: list[str] | None = None) -> None:
    """Exit code 0: measured; 1: some variants compute something else; 2: wrong arguments; 130: stopped by Ctrl-C."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        settings = tyro.cli(Bench, args=arguments, prog=f"python -m {NAME}")
        if "--show" in arguments and not settings.show:
            raise ValueError("--show needs a bench.json, or its folder")
        wrong = disagreements(measure(settings, make_console()))
    except (ValueError, OSError) as error:
        _fail(sentence(error), 2)
    except KeyboardInterrupt:
        _fail("stopped", 130)
    if wrong:
        _fail(f"no speed for variants that compute something else: {', '.join(wrong)}", 1)


def _fail(sentence: str, code: int) -> NoReturn:
    print(f"{NAME}: {sentence}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
