"""Give a format's name to JSON that skillgraft printed before 0.2, which had none and was told by its fields.

    python examples/name_formats.py runs docs/results     # every .json below these; prints what was changed

A report goes by the name alone. Files that have one, and files that are nobody's, are left as they are.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from skillgraft.files import atomic
from skillgraft.values.info import FORMATS

# The fields that told what a file was.
FIELDS = (
    ({"split", "tasks"}, "evaluation"),
    ({"validation", "curve", "density"}, "localization"),
    ({"scale", "search"}, "scales"),  # of `combine`
    ({"scale", "points"}, "scales"),  # of `forget`
    ({"alphas", "errors", "tasks"}, "map"),
)


def migrate(paths: Iterable[Path]) -> Iterator[tuple[Path, str]]:
    """Rewrite what has no format yet; yields each changed file and its format."""
    for file in sorted({file for path in paths for file in (path.rglob("*.json") if path.is_dir() else [path])}):
        try:
            facts = json.loads(file.read_text(encoding="utf-8"))
        except ValueError:
            continue
        if not isinstance(facts, dict) or "format" in facts:
            continue
        kind = next((kind for fields, kind in FIELDS if fields <= facts.keys()), None)
        if kind is not None:
            with atomic.new_file(file, overwrite=True) as new:
                new.write_text(
                    json.dumps({"format": FORMATS[kind], **facts}, ensure_ascii=False) + "\n", encoding="utf-8"
                )
            yield file, FORMATS[kind]


if __name__ == "__main__":
    for changed, name in migrate(map(Path, sys.argv[1:])):
        print(f"{changed}: {name}")
