"""Docstrings are plain text with `code` and indented formulas: here they become what Sphinx reads."""

import re
from typing import Any

from sphinx.application import Sphinx


def as_rst(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    paragraphs = re.split(r"\n\s*\n", "\n".join(lines).strip("\n"))
    lines[:] = "\n\n".join(map(paragraph_as_rst, paragraphs)).split("\n")


def paragraph_as_rst(text: str) -> str:
    if all(line.startswith("    ") for line in text.split("\n")):  # formulas, tables, commands
        return f"::\n\n{text}"
    if text.startswith("Args:\n"):
        text = re.sub(r"\n {8,}", " ", text.removeprefix("Args:\n"))
        return "\n".join(
            f"* ``{name}``: {escaped(what)}" for name, what in re.findall(r"^    (.*?): (.*)$", text, re.M)
        )
    return escaped(text)


def escaped(text: str) -> str:
    words = re.split(r"`([^`]*)`", text)
    words[::2] = [re.sub(r"([\\*_|`])", r"\\\1", part) for part in words[::2]]
    words[1::2] = [f"``{part}``" for part in words[1::2]]
    return "".join(words)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", as_rst)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
