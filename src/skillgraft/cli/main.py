"""The `skillgraft` command: its verbs, and how errors end it.

Wrong input ends with exit code 2, failed work with 1, each with one or two lines on stderr; `--debug` anywhere on the command
line shows the traceback instead.
"""

from __future__ import annotations

import sys
from typing import NoReturn

import typer

from skillgraft.cli import apply, check, combine, compare, doctor, export, extract, inspect, remove
from skillgraft.errors import SkillgraftError

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="""Find where a fine-tuned model keeps a skill, lift it out as a tiny file, put skills on and take them off.

\b
Examples
  skillgraft extract BASE TUNED --budget 1e-4 -o skill.safetensors
  skillgraft apply BASE skill.safetensors -o GRAFTED
  skillgraft remove GRAFTED skill.safetensors -o BACK

`skillgraft VERB --help` has examples for each verb; --json prints one object for machines; --debug shows tracebacks.""",
)
for verb in (extract, check, apply, remove, combine, inspect, compare, export, doctor):
    app.command(verb.__name__.rsplit(".", 1)[1])(verb.run)


def main() -> NoReturn:
    """Run the command line and end the process with the right exit code."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1
    try:
        status = app(arguments, prog_name="skillgraft", standalone_mode=False)
    except SkillgraftError as error:
        if debug:
            raise
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except typer.Abort:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    except KeyboardInterrupt:
        print("interrupted; nothing was left behind", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        _show_usage_error(error, debug=debug)
    sys.exit(status if isinstance(status, int) else 0)


def _show_usage_error(error: Exception, *, debug: bool) -> NoReturn:
    """Usage errors are the command-line library's own exceptions, with their exit code; the rest are bugs or the machine."""
    show = getattr(error, "show", None)
    if show is not None and not debug:
        show(file=sys.stderr)
        sys.exit(getattr(error, "exit_code", 2))
    if debug:
        raise error
    print(
        f"error: {type(error).__name__}: {error}\nThis looks like a bug; run again with --debug to see where.",
        file=sys.stderr,
    )
    sys.exit(1)
