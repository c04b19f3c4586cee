"""The `skillgraft` command: its verbs, and how errors end it.

Wrong input ends with exit code 2, a graft that does not fit its base with 3, failed work with 1, each with one or two lines on
stderr and, with `--json`, an object on stdout. `--debug`, `--quiet` and `--verbose` may stand anywhere on the command line.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

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
    output,
    remove,
    report,
    reproduce,
    serve,
    studio,
    task,
    unpack,
    upload,
)
from skillgraft.cli.panels import PanelCommand
from skillgraft.errors import SkillgraftError, missing_package
from skillgraft.values.escaping import terminal, terminal_lines

# Options of 0.1.0 and what they are called now.
RENAMED = {
    "--budget": "--density (a share: 1e-4) or --entries (a count: 8500)",
    "--only": "--inside",
    "--amplify": "--scale",
    "--rows": "--train-rows, --validation-rows or --test-rows",
}
_INTERRUPTED = 130  # the exit code that shells give to Ctrl-C
# Flags of the whole command: they mean the same before and behind the verb.
EVERYWHERE = ("--debug", "--quiet", "-q", "--verbose", "-v")
app = typer.Typer(
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

`skillgraft VERB --help` has examples for each verb; --json prints one object for machines.""",
)


def _version(wanted: bool) -> None:
    if wanted:
        from skillgraft.values.info import versions

        print(f"skillgraft {versions()['skillgraft']}")
        raise typer.Exit


@app.callback()
def options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Nothing but results and errors.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Also what libraries have to tell.")] = False,
    _debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    output.set_volume(quiet=quiet, verbose=verbose)


for verb in (
    demo, finetune, localize, extract, check, apply, remove, combine, forget, continual,
    evaluate, diff, inspect, compare, export, upload, download, report, reproduce, serve, studio, unpack, doctor,
):  # fmt: skip
    app.command(verb.__name__.rsplit(".", 1)[1], cls=PanelCommand)(verb.run)

app.add_typer(task.app, name="task")


def main() -> NoReturn:
    """Run the command line and end the process with the right exit code."""
    given = sys.argv[1:]
    arguments = [*(word for word in given if word in EVERYWHERE), *(word for word in given if word not in EVERYWHERE)]
    logger = logging.getLogger("skillgraft")  # it names what is about to be fetched
    logger.setLevel(logging.INFO)
    logger.addHandler(logging.StreamHandler())
    try:
        status = app(arguments, prog_name="skillgraft", standalone_mode=False)
    except (typer.Abort, KeyboardInterrupt):
        status = _INTERRUPTED
    except Exception as error:
        sys.exit(_failed(error, given))
    if status == _INTERRUPTED:  # the command-line library may have caught it first
        print("interrupted", file=sys.stderr)
    sys.exit(status if isinstance(status, int) else 0)


def _failed(error: Exception, given: Sequence[str]) -> int:
    """Tell what went wrong, to people and to machines; returns the exit code."""
    code, message = int(getattr(error, "exit_code", 1)), _explanation(error)
    if "--json" in given:
        output.show({"error": {"kind": type(error).__name__, "message": message, "exit_code": code}}, as_json=True)
    shown = traceback.format_exc() if "--debug" in given else _line(error, message)
    print(terminal_lines(shown), file=sys.stderr)
    return code


def _line(error: Exception, message: str) -> str:
    """The help as it is (nothing was typed after `skillgraft`); everything else as an error."""
    if _is_usage(error):
        if "\n" in message:
            return message
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "skillgraft"
        hint = "" if _renamed(message) else f"\nTry '{command} --help'."
        return f"error: {_renamed(message) or message}{hint}"
    return f"error: {message}"


def _is_usage(error: Exception) -> bool:
    """Usage errors are the command-line library's own exceptions, which can format themselves."""
    return hasattr(error, "format_message")


def _explanation(error: Exception) -> str:
    """What a person should read; what is neither ours nor a usage error is a bug or the machine."""
    if isinstance(error, SkillgraftError):
        return terminal(str(error))
    if _is_usage(error):
        found: Any = error
        return str(found.format_message())
    if isinstance(error, ModuleNotFoundError) and (hint := missing_package(error.name)):
        return hint
    return (
        f"{type(error).__name__}: {terminal(str(error))}\nThis looks like a bug; run again with --debug to see where."
    )


def _renamed(message: str) -> str:
    """An option of 0.1.0 and what it is called now."""
    option = next(iter(message.partition("No such option: ")[2].split()), "")
    return f"{option} is spelt {RENAMED[option]} now" if option in RENAMED else ""
