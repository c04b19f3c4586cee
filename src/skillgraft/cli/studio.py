"""skillgraft studio"""

from __future__ import annotations

from skillgraft.cli import serving

run = serving.verb(
    """Serve the same with a page on which to try skills.

    Skills answer side by side, scaled, and several at once.

    \b
    Example
      skillgraft studio BASE --skills DIR

    The same server as `serve`, with a page at /. Nothing is fetched from elsewhere.
    """,
    page=True,
)
