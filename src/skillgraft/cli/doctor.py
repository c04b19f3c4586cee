"""skillgraft doctor"""

from __future__ import annotations

from skillgraft.cli import output
from skillgraft.cli.arguments import Json


def run(json: Json = False) -> None:
    """Tell what this machine has: versions, devices, packages.

    \b
    Example
      skillgraft doctor
    """
    from skillgraft.opening.doctor import examine

    facts = examine()
    rows = [(name, version or "missing", use) for name, (version, use) in facts["packages"].items()]
    lines = [
        f"skillgraft {facts['skillgraft']}",
        f"python {facts['python']} on {facts['system']}, {facts['cores']} cores, {facts['memory_gb']:.1f} GB of memory",
        f"devices: {', '.join(facts['devices'])}",
        "",
        *output.columns(rows, header=["package", "version", "used for"]),
    ]
    output.show(facts, as_json=json, lines=lines)
