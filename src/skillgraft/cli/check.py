"""skillgraft check"""

from __future__ import annotations

from dataclasses import asdict

import typer

from skillgraft.cli import output
from skillgraft.cli.arguments import Base, GraftFile, Json
from skillgraft.errors import WrongBase


def run(base: Base, graft: GraftFile, json: Json = False) -> None:
    """Tell whether a graft fits a base; exit code 3 if it does not.

    Headers and sites alone are read, so it takes seconds at any size.

    \b
    Example
      skillgraft check BASE skill.safetensors
    """
    from skillgraft.folders.apply import check

    report = check(base, graft)
    prints = "same fingerprint" if report.same_fingerprint else "another fingerprint, but the sites are what counts"
    verdict = f"{graft} fits {base}: {report.entries:,} sites, {prints}" if report.fits else report.problem
    output.show({"base": str(base), "graft": str(graft), **asdict(report)}, as_json=json, lines=[verdict])
    if not report.fits:
        raise typer.Exit(WrongBase.exit_code)
