"""R^c, Z^{l+1/2} and U_k in sentences get superscripts and subscripts; code stays as it is."""

import re
from collections.abc import Iterator

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform

SCRIPT = re.compile(
    r"(?<=[\w\])Σ])\^(?:\{(?P<raised>[^}]*)\}|(?P<up>[\w*]))"
    r"|(?<=\b[A-ZΛΣπz])_(?:\{(?P<lowered>[^}]*)\}|(?P<down>\[K\]|[a-zA-Z0-9](?![a-zA-Z_])))"
)
CODE = (nodes.literal, nodes.FixedTextElement, nodes.math, nodes.raw, addnodes.desc_signature)


class Scripts(SphinxPostTransform):
    default_priority = 900

    def run(self, **arguments: object) -> None:
        for text in list(self.document.findall(nodes.Text)):
            if SCRIPT.search(text.astext()) and not any(isinstance(above, CODE) for above in ancestors(text)):
                text.parent.replace(text, list(parts(text.astext())))


def ancestors(node: nodes.Node) -> Iterator[nodes.Node]:
    while node.parent is not None:
        node = node.parent
        yield node


def parts(text: str) -> Iterator[nodes.Node]:
    end = 0
    for match in SCRIPT.finditer(text):
        yield nodes.Text(text[end : match.start()])
        kind = nodes.superscript if match["raised"] or match["up"] else nodes.subscript
        script = next(filter(None, match.groups()))
        yield kind("", script)
        end = match.end()
    yield nodes.Text(text[end:])


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_post_transform(Scripts)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
