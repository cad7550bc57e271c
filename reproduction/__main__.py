"""`python -m reproduction`: run the paper's tables and figures again."""

import logging
import sys
from importlib.util import find_spec
from typing import NoReturn

import tyro

from opencrate.errors import sentence

NAME = "reproduction"


def main(arguments: list[str] | None = None) -> None:
    """Exit code 0: all runs are done; 1: some failed; 2: wrong arguments or files; 130 or 143: stopped by a signal."""
    logging.basicConfig(format=f"{NAME}: %(message)s", level=logging.WARNING)
    try:
        _reproduce(sys.argv[1:] if arguments is None else arguments)
    except (ValueError, OSError) as error:
        _fail(sentence(error), 2)
    except KeyboardInterrupt as stopped:
        _fail(str(stopped) or "stopped", getattr(stopped, "code", 130))


def _reproduce(arguments: list[str]) -> None:
    for package in ("scipy", "matplotlib"):
        if not find_spec(package):
            raise ValueError(f"{package} is missing; install it with pip install 'opencrate[report]'")
    from .command import Reproduction, reproduce

    settings = tyro.cli(Reproduction, args=arguments, prog=f"python -m {NAME}")
    if settings.dry:
        print(settings.describe_plan())
        return
    document, failures = reproduce(settings)
    print(f"{'' if failures or settings.write_only else 'all runs are done; '}wrote {document}")
    if failures:
        _fail(f"{len(failures)} runs failed; {document} lists them, and the same command tries them again", 1)


def _fail(sentence: str, code: int) -> NoReturn:
    print(f"{NAME}: {sentence}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
