"""Options of a verb that are the fields of a plan: types, choices and defaults are read off the plan itself.

    @filled_from(TrainingPlan, OPTIONS, spelt={"seed": "train_seed"})
    def run(base: Base, *, settings: dict[str, Any]) -> None: ...

`settings` then has the fields that were given on the command line. A new field needs one line, in the plan's table of help.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

Panels = Mapping[str, Mapping[str, str]]
Verb = Callable[..., None]


def filled_from(plan: type, panels: Panels, *, spelt: Mapping[str, str] | None = None) -> Callable[[Verb], Verb]:
    """A verb with one option for each field in `panels`; `spelt` has the fields whose option has another name."""
    names = {field: (spelt or {}).get(field, field) for panel in panels.values() for field in panel}

    def decorated(verb: Verb) -> Verb:
        own = [each for each in inspect.signature(verb, eval_str=True).parameters.values() if each.name != "settings"]

        @functools.wraps(verb)
        def run(**given: Any) -> None:
            found = {field: given.pop(name) for field, name in names.items()}
            verb(**given, settings={field: value for field, value in found.items() if value is not None})

        del run.__dict__["__wrapped__"]  # its signature is not this one's
        run.__annotations__ = {}
        needed = [each for each in own if each.default is each.empty]
        every = [*needed, *_options(plan, panels, names), *(each for each in own if each not in needed)]
        keywords = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in every]
        run.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
        return run

    return decorated


def _options(plan: type, panels: Panels, names: Mapping[str, str]) -> Iterator[inspect.Parameter]:
    types = get_type_hints(plan)
    defaults = {each.name: each.default for each in fields(plan)}
    for panel, helps in panels.items():
        for field, text in helps.items():
            option = typer.Option(
                _flags(names[field], defaults[field]),
                help=_help(text, types[field], defaults[field]),
                rich_help_panel=panel or None,
                show_default=False,
            )
            # None: not given, so that a recipe's own setting stays.
            annotation = Annotated[_plain(types[field]) | None, option]  # type: ignore[valid-type]
            yield inspect.Parameter(names[field], inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _flags(name: str, default: Any) -> str:
    """What is on by default can be switched off."""
    dashed = name.replace("_", "-")
    return f"--{dashed}/--no-{dashed}" if default is True else f"--{dashed}"


def _plain(kind: Any) -> Any:
    """The type that is read from the command line: a choice is text, which the plan checks; `float | None` is a float."""
    if get_origin(kind) is Literal:
        return str
    known = [each for each in get_args(kind) if each is not type(None)]
    return known[0] if known else kind


def _help(text: str, kind: Any, default: Any) -> str:
    choices = get_args(kind) if get_origin(kind) is Literal else ()
    sentence = f"{text}: {', '.join(choices)}" if choices else text
    return f"{sentence}." if default is None or isinstance(default, bool) else f"{sentence} ({default})."
