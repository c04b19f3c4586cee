"""Links between the project's pages: the file is there, and so is the heading that a link names."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted(page.relative_to(ROOT).as_posix() for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")))


def text_of(page: Path) -> str:
    """A page without its blocks of code, fenced or indented."""
    return re.sub(r"^```.*?^```|^ {4}[^\n]*", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """What headings are called in links: lower case without punctuation, hyphens for spaces; the second of a name gets -1."""
    seen, found = Counter[str](), set[str]()
    for heading in re.findall(r"^#+ (.*)$", text_of(page), flags=re.MULTILINE):
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        found.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return found


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    here = ROOT / page
    text = re.sub(r"`[^`\n]*`", "", text_of(here))  # code may look like a link
    for link in re.findall(r"\]\((?!https?:)([^)]+)\)", text):
        name, _, anchor = link.partition("#")
        target = here.parent / name if name else here
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_headings_are_named_as_readers_of_markdown_name_them(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# Two skills, one model (P1 §5)\n\n```sh\n# no heading\n```\n\n## `apply` it\n\n## Verbs\n\n## Verbs\n\n## Verbs\n",
        "utf-8",
    )
    assert anchors(page) == {"two-skills-one-model-p1-5", "apply-it", "verbs", "verbs-1", "verbs-2"}
