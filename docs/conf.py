"""The documentation as a site: `make docs`.

Pages are the Markdown files of this folder, as they are read on a code host too. Files that lie outside of it (the README, the
changelog …) are read into a page of their own. A broken link or a missing name is an error.
"""

from __future__ import annotations

import re
from importlib.metadata import version as version_of
from pathlib import Path
from posixpath import normpath, relpath
from typing import Any

DOCS = Path(__file__).parent
# Page of the site → the file outside of docs that it shows.
OUTSIDE = {
    "index": "README.md",
    "contributing": "CONTRIBUTING.md",
    "changelog": "CHANGELOG.md",
    "benchmarks": "benchmarks/results.md",
}
PAGE_OF = {file: f"docs/{page}.md" for page, file in OUTSIDE.items()}

project = "skillgraft"
author = "The skillgraft authors"
release = version_of("skillgraft")
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"skillgraft {release}"
html_show_copyright = False
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_class_signature = "separated"
autodoc_typehints = "signature"
python_use_unqualified_type_names = True
default_role = "code"  # single backticks in docstrings


def relinked(text: str, *, file: str, page: str) -> str:
    """The text of a file, its links as they are seen from a page of the site (both relative to the project's root).

    A link to a file that is no page is left as its words.
    """

    def link(found: re.Match[str]) -> str:
        picture, words, target, anchor = found.groups("")
        goal = normpath(f"{Path(file).parent}/{target}")
        goal = PAGE_OF.get(goal, goal)
        if not goal.startswith("docs/"):
            return words
        return f"{picture}[{words}]({relpath(goal, Path(page).parent)}{anchor})"

    return re.sub(r"(!?)\[([^\]]*)\]\((?!https?:)([^)#]+)(#[^)]*)?\)", link, text)


def read_outside(_app: Any, page: str, source: list[str]) -> None:
    """Before a page is parsed: the file that it shows comes first, and links out of docs lead to such pages."""
    own = relinked(source[0], file=f"docs/{page}.md", page=f"docs/{page}.md")
    shown = OUTSIDE.get(page)
    before = relinked((DOCS.parent / shown).read_text("utf-8"), file=shown, page=f"docs/{page}.md") if shown else ""
    source[0] = f"{before}\n{own}"


def bars_as_they_are(_app: Any, _what: str, _name: str, _value: object, _options: object, lines: list[str]) -> None:
    """`|a|` in a docstring is a size, not a substitution."""
    lines[:] = [re.sub(r"\|(?=\S)", r"\\|", line) for line in lines]


def setup(app: Any) -> None:
    app.connect("source-read", read_outside)
    app.connect("autodoc-process-docstring", bars_as_they_are)
