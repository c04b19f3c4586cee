"""skillgraft check"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from skillgraft.cli import output
from skillgraft.cli.arguments import Base, GraftFile, Json
from skillgraft.errors import InputError, WrongBase


def run(
    base: Base,
    graft: GraftFile,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse whatever changes more than entries.")] = False,
    json: Json = False,
) -> None:
    """Tell whether a graft fits a base, and what it would change.

    The exit code is 3 if it does not fit, and 2 for what --strict refuses. Headers and sites alone are read, so it takes
    seconds at any size.

    \b
    Examples
      skillgraft check BASE skill.safetensors
      skillgraft check BASE skill.safetensors --strict
    """
    from skillgraft.folders.apply import check
    from skillgraft.values.graft import stream_of

    stream = stream_of(graft)
    report = check(base, graft, strict=strict)
    prints = "same fingerprint" if report.same_fingerprint else "another fingerprint, but the sites are what counts"
    verdict = f"{graft} fits {base}: {report.entries:,} sites, {prints}" if report.fits else report.problem
    lines = [verdict, *report.reach.lines(), *output.digest_lines({graft.name: stream.digest})]
    facts = {"base": str(base), "graft": str(graft), "digest": stream.digest, **asdict(report)}
    output.show(facts, as_json=json, lines=lines)
    if not report.fits:
        fits_otherwise = strict and check(base, graft).fits
        raise typer.Exit(InputError.exit_code if fits_otherwise else WrongBase.exit_code)
