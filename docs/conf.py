"""The site, which `make docs` builds from the pages of this folder. Neither it nor its pages fetch anything."""

import os
import sys
import tomllib
from pathlib import Path

from sphinx.application import Sphinx

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS / "_ext"), str(DOCS.parent)]
# Notebooks run in a process of their own, which must find this copy of opencrate.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(DOCS.parent), os.environ.get("PYTHONPATH")]))
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["PYTHONWARNINGS"] = "ignore:IProgress not found"  # tqdm in a notebook without widgets

import opencrate  # noqa: E402

project, author, release = "opencrate", "The opencrate developers", opencrate.__version__
project_copyright = "The opencrate developers"

extensions = ["myst_nb", "sphinx.ext.autodoc", "plain_docstrings", "mathml", "scripts"]
exclude_patterns = ["_ext", "results/*/notes.md"]
highlight_language = "text"
nitpicky = True

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath", "substitution"]
myst_links_external_new_tab = False
terms = tomllib.loads((DOCS.parent / "opencrate" / "report" / "text.toml").read_text(encoding="utf-8"))["glossary"]
myst_substitutions = {
    "report_glossary": "\n\n".join(f"{term}\n: {' '.join(meaning.split())}" for term, meaning in terms.items())
}

nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 900  # seconds for a cell: the machine may be busy
nb_merge_streams = True
nb_output_stderr = "remove-warn"  # a warning in a notebook is a warning of the build
nb_code_prompt_show, nb_code_prompt_hide = "Show the code", "Hide the code"
nb_ipywidgets_js: dict[str, dict[str, str]] = {}  # scripts from elsewhere, for widgets, of which there are none

autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False  # those of torch say nothing of ours
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
python_display_short_literal_types = True
# Types of other packages, and of ours that have no entry of their own.
nitpick_ignore_regex = [
    ("py:.*", r"(torch|jaxtyping|timm|numpy|PIL|pathlib|collections|typing)\..*"),
    ("py:.*", r"Tensor|F|opencrate\.(recipes\.recipe\.Recipe|training\.options\.Options|settings\.\w+)"),
    ("py:.*", r"opencrate\.(measures|operators|distributed|evaluation)\.([a-z]+\.)?[A-Z]\w*"),
]

html_theme = "furo"
pygments_dark_style = "monokai"
html_math_renderer = "mathml"
html_title = "opencrate"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False

# Pages of the repository's root, and the pages here that include them.
ROOT_PAGES = {name: name.lower() for name in ("SECURITY", "CHANGELOG", "CONTRIBUTING")}


def lead_to_the_site(app: Sphinx, page: str, source: list[str]) -> None:
    """Links to files above this folder lead to the pages that include them."""
    up = "../" * page.count("/")
    for name, here in ROOT_PAGES.items():
        source[0] = source[0].replace(f"]({up}../{name}.md", f"]({up}{here}.md")


def setup(app: Sphinx) -> None:
    app.connect("source-read", lead_to_the_site)
