"""How figures look: one template for all, colours that colour-blind readers tell apart, and a second mark beside colour.

The colours are those of Okabe and Ito, in an order that keeps neighbours far apart; dashes, markers and patterns change with
them, so that a figure reads in black and white. Names from files are shown letter by letter, never as plotly's markup.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from skillgraft.errors import InputError

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
MARKERS = ("circle", "square", "diamond", "triangle-up", "x", "cross", "star", "triangle-down")
PATTERNS = ("", "/", ".", "x", "\\", "-", "|", "+")
# One hue from light to dark: numbers are legible on every shade, on paper too.
SEQUENTIAL = ((0.0, "#F4F8FB"), (0.5, "#7FB2D6"), (1.0, "#00568A"))
# Blue and vermillion, white between: red-green blindness does not mix them up.
DIVERGING = ((0.0, "#B24A00"), (0.25, "#E8A66F"), (0.5, "#FFFFFF"), (0.75, "#7FB2D6"), (1.0, "#00568A"))
INK, MUTED, GRID, UNDEFINED = "#1F2933", "#52606D", "#E4E7EB", "#D9DEE4"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
_LONGEST_NAME = 26


def graph_objects() -> Any:
    """plotly's figures, or the error that says how to get them."""
    try:
        import plotly.graph_objects
    except ImportError as error:
        raise InputError("figures need the package 'plotly': pip install 'skillgraft[report]'") from error
    return plotly.graph_objects


@cache
def template() -> Any:
    """White, quiet axes, the legend above the plot."""
    axis = {
        "gridcolor": GRID, "linecolor": "#9AA5B1", "showline": True, "zeroline": False, "ticks": "outside",
        "tickcolor": "#9AA5B1", "ticklen": 4, "automargin": True, "title": {"standoff": 10},
    }  # fmt: skip
    layout = {
        "font": {"family": FONT, "size": 13, "color": INK}, "paper_bgcolor": "#FFFFFF", "plot_bgcolor": "#FFFFFF",
        "xaxis": axis, "yaxis": axis, "colorway": list(COLOURS), "margin": {"l": 8, "r": 12, "t": 12, "b": 8},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "xanchor": "left", "yanchor": "bottom"},
        "hoverlabel": {"bgcolor": "#FFFFFF", "bordercolor": "#9AA5B1", "font": {"family": FONT, "color": INK}},
        "title": {"x": 0, "xref": "paper", "xanchor": "left", "y": 0.98, "yanchor": "top", "automargin": True,
                  "yref": "container", "font": {"size": 16}, "pad": {"b": 12}},
        "hovermode": "closest", "dragmode": False,
    }  # fmt: skip
    return graph_objects().layout.Template(layout=layout)


def new_figure(title: str, *, height: int, **layout: Any) -> Figure:
    """An empty figure in the template."""
    words = {"title": {"text": literal(title)}} if title else {}
    return graph_objects().Figure(layout={"template": template(), "height": height, **words, **layout})


def series(number: int) -> dict[str, Any]:
    """Colour, dash, marker and pattern of the nth series: each alone tells it from its neighbours."""
    return {
        "colour": COLOURS[number % len(COLOURS)],
        "dash": DASHES[number % len(DASHES)],
        "marker": MARKERS[number % len(MARKERS)],
        "pattern": PATTERNS[number % len(PATTERNS)],
    }


def faded(colour: str, share: float) -> str:
    """The colour, see-through."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, {share})"


def literal(text: str) -> str:
    """Text that plotly shows as it is: its own markup (`<b>`, `<a href>`) is disarmed."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def names_on_axis(names: tuple[str, ...]) -> dict[str, Any]:
    """Ticks 0, 1, 2 … under these names, long ones cut. Numbers and not names are plotted: cut names may be equal."""
    cut = [name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…" for name in names]
    return {
        "tickvals": list(range(len(names))),
        "ticktext": [literal(name) for name in cut],
        "showgrid": False,
        "autotickangles": [0, -35, -90],
    }
