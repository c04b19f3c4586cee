"""The `skillgraft` command: its verbs, and how errors end it.

Wrong input ends with exit code 2, failed work with 1, each with one or two lines on stderr; `--debug` anywhere on the command
line shows the traceback instead.
"""

from __future__ import annotations

import logging
import sys
import traceback
from typing import NoReturn

import typer

from skillgraft.cli import (
    apply,
    check,
    combine,
    compare,
    continual,
    demo,
    diff,
    doctor,
    download,
    evaluate,
    export,
    extract,
    finetune,
    forget,
    inspect,
    localize,
    remove,
    report,
    reproduce,
    upload,
)
from skillgraft.cli.panels import PanelCommand
from skillgraft.errors import SkillgraftError

# Options of 0.1.0 and what they are called now.
RENAMED = {
    "--budget": "--density (a share: 1e-4) or --entries (a count: 8500)",
    "--only": "--inside",
    "--amplify": "--scale",
    "--rows": "--train-rows, --validation-rows or --test-rows",
}
_INTERRUPTED = 130  # the exit code that shells give to Ctrl-C
app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"max_content_width": 100},
    help="""Find where a fine-tuned model keeps a skill, lift it out as a tiny file, put skills on and take them off.

\b
Examples
  skillgraft extract BASE TUNED --density 1e-4 -o skill.safetensors
  skillgraft apply BASE skill.safetensors -o GRAFTED
  skillgraft remove GRAFTED skill.safetensors -o BACK

`skillgraft VERB --help` has examples for each verb; --json prints one object for machines; --debug shows tracebacks.""",
)
for verb in (
    demo, finetune, localize, extract, check, apply, remove, combine, forget, continual,
    evaluate, diff, inspect, compare, export, upload, download, report, reproduce, doctor,
):  # fmt: skip
    app.command(verb.__name__.rsplit(".", 1)[1], cls=PanelCommand)(verb.run)


def main() -> NoReturn:
    """Run the command line and end the process with the right exit code."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1
    logger = logging.getLogger("skillgraft")  # what is about to be fetched is said there
    logger.setLevel(logging.INFO)
    logger.addHandler(logging.StreamHandler())
    try:
        status = app(arguments, prog_name="skillgraft", standalone_mode=False)
    except (typer.Abort, KeyboardInterrupt):
        status = _INTERRUPTED
    except Exception as error:
        print(traceback.format_exc() if debug else _explanation(error), file=sys.stderr)
        sys.exit(getattr(error, "exit_code", 1))
    if status == _INTERRUPTED:  # the command-line library may have caught it first
        print("interrupted", file=sys.stderr)
    sys.exit(status if isinstance(status, int) else 0)


def _explanation(error: Exception) -> str:
    """Usage errors are the command-line library's own exceptions, told by their format; the rest are bugs or the machine."""
    if isinstance(error, SkillgraftError):
        return f"error: {error}"
    if not hasattr(error, "format_message"):
        return f"error: {type(error).__name__}: {error}\nThis looks like a bug; run again with --debug to see where."
    message = str(error.format_message())
    if "\n" in message:  # nothing was typed after `skillgraft`: this is the help
        return message
    renamed = next(iter(message.partition("No such option: ")[2].split()), "")
    if renamed in RENAMED:
        return f"error: {renamed} is spelt {RENAMED[renamed]} now"
    context = getattr(error, "ctx", None)
    return f"error: {message}\nTry '{context.command_path if context else 'skillgraft'} --help'."
