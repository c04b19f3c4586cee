"""Options that are a plan's fields: every field is one, with its type, choices, default and help; panels in the plain help."""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_type_hints

import pytest
import typer
from typer.testing import CliRunner

from skillgraft.cli import arguments, finetune, localize
from skillgraft.cli.main import app
from skillgraft.cli.panels import PanelCommand
from skillgraft.cli.plan_options import filled_from
from skillgraft.regions.search import SearchPlan
from skillgraft.tasks.data import Data
from skillgraft.training.plan import OPTIONS, TrainingPlan


@dataclass(frozen=True)
class Plan:
    colour: Literal["red", "blue"] = "red"
    size: float = 0.5
    most: int | None = None
    careful: bool = True
    loud: bool = False
    seed: int = 0


PANELS = {
    "": {"colour": "Which one", "size": "How large"},
    "More": dict.fromkeys(("most", "careful", "loud", "seed"), "x"),
}


@pytest.fixture
def verb() -> typer.Typer:
    made = typer.Typer(rich_markup_mode=None, add_completion=False)

    @filled_from(Plan, PANELS, spelt={"seed": "plan_seed"})
    def run(base: str, seed: int = 7, *, settings: dict[str, Any]) -> None:
        """Show what was given."""
        print(json.dumps({"base": base, "seed": seed, "settings": settings}))

    made.command(cls=PanelCommand)(run)
    return made


@pytest.mark.parametrize(
    ("words", "settings"),
    [
        ([], {}),
        (["--colour", "blue", "--size", "2"], {"colour": "blue", "size": 2.0}),
        (["--no-careful", "--loud", "--most", "3"], {"most": 3, "careful": False, "loud": True}),
        (["--careful", "--plan-seed", "4"], {"careful": True, "seed": 4}),
    ],
)
def test_what_is_given_fills_the_plan(words: list[str], settings: dict[str, Any], verb: typer.Typer) -> None:
    ended = CliRunner().invoke(verb, ["BASE", *words])
    assert json.loads(ended.stdout) == {"base": "BASE", "seed": 7, "settings": settings}
    Plan(**settings)


def test_a_number_is_checked_by_its_type(verb: typer.Typer) -> None:
    assert CliRunner().invoke(verb, ["BASE", "--most", "1.5"]).exit_code == 2


def test_help_has_choices_defaults_and_panels(verb: typer.Typer) -> None:
    text = CliRunner().invoke(verb, ["--help"]).stdout
    first, more = text.split("Options:")[1].split("More:")
    assert "Which one: red, blue (red)." in first
    assert "How large (0.5)." in first
    assert re.search(r"--seed .*default: 7", first)
    assert all(name in more for name in ("--most", "--careful / --no-careful", "--loud", "--plan-seed"))
    assert "--no-loud" not in more


def options(run: Any) -> dict[str, typer.models.OptionInfo]:
    """Parameter → what typer knows about the option."""
    found = inspect.signature(run, eval_str=True).parameters.items()
    return {name: each.annotation.__metadata__[0] for name, each in found}


def test_every_field_of_a_training_plan_is_an_option_with_help() -> None:
    named = {field: help for panel in OPTIONS.values() for field, help in panel.items()}
    assert named.keys() == {each.name for each in fields(TrainingPlan)}
    assert all(named.values())
    known = options(finetune.run)
    for field in named:
        assert known["train_seed" if field == "seed" else field].help


def test_every_field_of_a_search_plan_is_an_option_with_help() -> None:
    """`options` are those of the methods, which stand beside; `--curve` and `--paper-curve` fill `densities` and `curve`."""
    known, given = options(localize.run), inspect.signature(localize.run, eval_str=True).parameters
    types, defaults = get_type_hints(SearchPlan), {each.name: each.default for each in fields(SearchPlan)}
    for field in defaults.keys() - {"options", "densities"}:
        assert known[field].help, field
        assert field == "curve" or given[field].default in (None, defaults[field]), field
    for field in ("density", "entries", "keep", "batch_size"):
        assert given[field].annotation.__origin__ == types[field], field


@pytest.mark.parametrize("run", [finetune.run, localize.run])
def test_every_field_of_data_is_an_option_spelt_one_way(run: Any) -> None:
    known = options(run)
    for field in {each.name for each in fields(Data)} - {"test_rows"}:  # neither verb tests
        assert known[field].help, field
    shared = {"".join(word.title() for word in each.name.split("_")) for each in fields(Data)}
    assert {name for name in shared if hasattr(arguments, name) or hasattr(arguments, f"{name}Name")} == shared


@pytest.mark.parametrize(
    ("verb", "old", "new"),
    [
        ("extract", "--budget", "--density (a share: 1e-4) or --entries (a count: 8500)"),
        ("localize", "--budget", "--density (a share: 1e-4) or --entries (a count: 8500)"),
        ("continual", "--budget", "--density (a share: 1e-4) or --entries (a count: 8500)"),
        ("finetune", "--only", "--inside"),
        ("localize", "--amplify", "--scale"),
        ("evaluate", "--rows", "--train-rows, --validation-rows or --test-rows"),
    ],
)
@pytest.mark.parametrize("given", [("{old}", "1"), ("{old}=1",)])
def test_an_old_spelling_names_the_new_one(
    verb: str, old: str, new: str, given: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    words = [word.format(old=old) for word in given]
    monkeypatch.setattr("sys.argv", ["skillgraft", verb, "A", "B", *words, "-o", str(tmp_path / "out")])
    from skillgraft.cli.main import main

    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"error: {old} is spelt {new} now\n"


def test_every_verb_shows_panels() -> None:
    assert all(command.cls is PanelCommand for command in app.registered_commands)
