"""Formulas as MathML, which browsers draw themselves: no script, and nothing to fetch."""

from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx


def inline(translator: Any, node: nodes.math) -> None:
    translator.body.append(convert(node.astext()).strip())
    raise nodes.SkipNode


def block(translator: Any, node: nodes.math_block) -> None:
    formula = convert(node.astext(), display="block").strip()
    translator.body.append(f'<div class="formula">{formula}</div>\n')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", inline_renderers=(inline, None), block_renderers=(block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
