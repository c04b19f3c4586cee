"""skillgraft serve"""

from __future__ import annotations

from skillgraft.cli import serving

run = serving.verb(
    """Serve one base with many skills at once.

    It answers in the shapes that OpenAI's clients know.

    \b
    Example
      skillgraft serve BASE --skills DIR

    `model` in a request names the base, a skill, or a sum such as bash+0.5*french. docs/serving.md has every path.
    """,
    page=False,
)
