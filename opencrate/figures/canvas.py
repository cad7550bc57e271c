"""What all figures share: their sizes, fonts and colours, the note below them, and how they are written.

Figures are made for two-column papers, 3.4 or 7 inches wide, with text of 8 points. Everything goes through
matplotlib's objects, so that no global state is touched; matplotlib is imported when the first figure is drawn.
"""

import math
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
else:
    Axes = Figure = Any  # the names resolve where matplotlib is missing, too

COLUMN, PAGE = 3.4, 7.0  # inches: the width of one column and of two
SIZE, SMALL, TINY = 8.0, 7.0, 6.5  # points: text, titles of small panels, notes
# Okabe and Ito's colours, told apart by colour-blind readers too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LONGEST = 28  # letters of a class's name
INK, GREY, PALE = "#2b2d33", "#6b7280", "#d9dde3"
STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": SIZE,
    "text.color": INK,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.labelsize": SIZE,
    "axes.titlesize": SMALL,
    "axes.linewidth": 0.6,
    "legend.fontsize": SMALL,
    "legend.frameon": False,
    "pdf.fonttype": 42,  # TrueType: journals refuse matplotlib's default, and text stays text
    "image.composite_image": False,  # hundreds of pictures would take a minute to be made one in a PDF file
}


@contextmanager
def style() -> Iterator[None]:
    """As `@style()`: a function draws in our style, and matplotlib's settings are afterwards as they were."""
    try:
        import matplotlib
    except ImportError as error:
        raise ValueError("figures need the package 'matplotlib': pip install 'opencrate[report]'") from error
    with matplotlib.rc_context(STYLE):  # type: ignore[arg-type]
        yield


def sheet(
    width: float,
    height: float,
    title: str = "",
    notes: Iterable[str] = (),
    layout: Literal["constrained", "compressed"] = "constrained",
) -> Figure:
    """An empty figure with its title above and its notes below, for which the height grows."""
    from matplotlib.figure import Figure

    lines = [line for note in notes for line in textwrap.wrap(note, int(20 * width))]
    figure = Figure((width, height + 0.2 * bool(title) + 0.13 * len(lines)), layout=layout)
    if title:
        figure.suptitle(plain(title), x=0.01, ha="left", fontsize=SIZE, fontweight="bold")
    if lines:
        figure.supxlabel(plain("\n".join(lines)), x=0.01, ha="left", fontsize=TINY, color=GREY, linespacing=1.35)
    return figure


def tidy(axis: Axes) -> None:
    """Two spines, small ticks, and pale lines behind what is drawn."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(labelsize=SMALL, labelcolor=INK, color=GREY, width=0.6, length=2.5)
    axis.grid(axis="y", color=PALE, linewidth=0.5)
    axis.set_axisbelow(True)


def layer_axis(axis: Axes, layers: int) -> None:
    """A tidy axis whose abscissa counts the layers, all of them if there is room."""
    tidy(axis)
    step = math.ceil(layers / 6)
    axis.set_xticks(range(1, layers + 1) if layers <= 12 else [1, *range(step, layers + 1, step)])
    axis.set_xlabel("layer")


def naming(fact: str, names: Iterable[str]) -> list[str]:
    """A note that names what a fact is true of; none if it is true of nothing."""
    listed = ", ".join(names)
    return [f"{fact}: {listed}."] if listed else []


def short(name: str) -> str:
    """The name of a class, cut to fit beside a figure."""
    return plain(name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…")


def plain(text: str) -> str:
    """A user's words, in which a dollar sign begins no formula."""
    return text.replace("$", r"\$")


@style()
def save(figure: Figure, folder: str | Path, name: str) -> list[Path]:
    """Write name.png (200 dots per inch) and name.pdf (with its fonts), and return their paths."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    pictures = {
        folder / f"{name}.png": to_png(figure, dpi=200),
        # the same figure gives the same file
        folder / f"{name}.pdf": _content(figure, "pdf", dpi=300, metadata={"CreationDate": None}),
    }
    for path, content in pictures.items():
        with replacing(path) as file:
            file.write(content)
    return list(pictures)


@style()
def to_png(figure: Figure, dpi: int = 150) -> bytes:
    """The picture's bytes, for a page that holds its pictures itself."""
    return _content(figure, "png", dpi=dpi)


def _content(figure: Figure, form: str, **how: Any) -> bytes:
    file = BytesIO()
    _lay_out(figure)
    figure.savefig(file, format=form, **how)
    return file.getvalue()


def _lay_out(figure: Figure) -> None:
    """Once for all files of it: to find room for everything takes as long as to draw it."""
    if figure.get_layout_engine() is not None:
        figure.set_dpi(200)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
