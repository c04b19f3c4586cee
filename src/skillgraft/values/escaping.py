"""Text from files made harmless for where it is shown: a terminal, a Markdown page, YAML. One function for each, used by all.

Names and metadata are whatever somebody wrote: escape sequences that repaint a terminal, line ends that forge a line, letters
that run backwards, table cells and links. (HTML is escaped by what makes the pages.)

    >>> terminal("a\\x1b[2Jb\\nforged")
    'a\\\\x1b[2Jb\\\\nforged'
    >>> markdown("a|b](http://x) <img>")
    'a\\\\|b]\\\\(http://x) &lt;img>'
    >>> yaml('x"\\nlicense: mit')
    '"x\\\\"\\\\\\\\nlicense: mit"'
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Mapping
from typing import Any

_MARKDOWN = {
    "\\": "\\\\",
    "|": "\\|",
    "`": "\\`",
    "<": "&lt;",
    "&": "&amp;",
    "](": "]\\(",
    "][": "]\\[",
    "]:": "]\\:",
    "[!": "[\\!",
}
_MARKUP = re.compile("|".join(map(re.escape, sorted(_MARKDOWN, key=len, reverse=True))))
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
# Control characters; formatting ones, which can turn a line around; half characters; unassigned; line and paragraph ends.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def terminal(text: str) -> str:
    """One line of a terminal: whatever could move, repaint, hide or break it stands there as its code instead."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_shown(character) for character in text)


def _shown(character: str) -> str:
    if character in _NAMED:
        return _NAMED[character]
    if unicodedata.category(character) not in _HIDDEN:
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"


def terminal_lines(text: str) -> str:
    """Several lines that we composed ourselves (a traceback, a help page); only line ends stay what they are."""
    return "\n".join(terminal(line) for line in text.split("\n"))


def markdown(text: str) -> str:
    """Inline text of a Markdown page or table cell: no cell's end, no link, no picture, no code, no HTML, no line end."""
    return _MARKUP.sub(lambda found: _MARKDOWN[found[0]], terminal(text))


def yaml(text: str) -> str:
    """A quoted scalar of YAML, which reads JSON's strings."""
    return json.dumps(terminal(text), ensure_ascii=False)


# Characters that mean something to LaTeX, and those of our own tables that its text fonts lack.
_LATEX = str.maketrans(
    {
        **{character: f"\\{character}" for character in "&%$#_{}"},
        "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}",
        "<": "\\textless{}", ">": "\\textgreater{}", "|": "\\textbar{}", '"': "\\textquotedbl{}",
        "–": "--", "−": "$-$", "×": "$\\times$", "±": "$\\pm$", "‖": "$\\Vert$", "²": "$^2$", "→": "$\\to$", "≤": "$\\le$",
        "≥": "$\\ge$", "α": "$\\alpha$", "γ": "$\\gamma$", "λ": "$\\lambda$", "ξ": "$\\xi$", "ε": "$\\epsilon$", "δ": "$\\delta$",
        "θ": "$\\theta$", "τ": "$\\tau$",
    }
)  # fmt: skip
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def latex(text: str) -> str:
    """Text of a LaTeX document: no command, no cell's end, no mathematics but ours."""
    return terminal(text).translate(_LATEX)


def csv_text(text: str) -> str:
    """A text cell that a spreadsheet takes for text: what would be a formula gets a `'` in front, as spreadsheets write it."""
    shown = terminal(text)
    return f"'{shown}" if shown.startswith(_FORMULA) else shown


def plain_json(value: Any) -> str:
    """One line of JSON in ASCII: NaN and infinities, which JSON does not have, become null."""
    return json.dumps(_finite(value), allow_nan=False, default=str)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value
