"""skillgraft evaluate"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skillgraft.cli import naming, output
from skillgraft.cli.arguments import (
    MACHINE,
    ROWS_AND_TESTS,
    TABLES,
    Convert,
    Json,
    MachineAsked,
    ModelName,
    RowsAsked,
    TablesAsked,
    TaskNames,
    sharing,
)
from skillgraft.errors import InputError

ANSWERS = 3  # rows shown

if TYPE_CHECKING:
    from skillgraft.predictions.predictions import AnyPredictions, Predictions
    from skillgraft.tasks import Task
    from skillgraft.tasks.data import Data


@sharing(data=ROWS_AND_TESTS, tables=TABLES, run_as=MACHINE)
def run(
    base: ModelName,
    task: TaskNames,
    tuned: Annotated[
        list[str] | None, typer.Option(metavar="DIR|NAME=DIR", help="Tuned folders or adapters; NAME is shown.")
    ] = None,
    graft: Annotated[
        list[str] | None, typer.Option(metavar="G|NAME=G", help="Graft files; may be repeated, as --tuned.")
    ] = None,
    control: Annotated[
        list[str] | None,
        typer.Option(metavar="C", help="A task or text file that nothing should have changed; may be repeated."),
    ] = None,
    together: Annotated[bool, typer.Option("--together", help="Also the sum of all grafts.")] = False,
    split: Annotated[str, typer.Option(help="test; or train, validation of the same --shots and --seed.")] = "test",
    batch_size: Annotated[int, typer.Option(help="Rows at once.")] = 64,
    answers: Annotated[
        int, typer.Option(help="Tasks that complete prompts: so many rows' answers side by side.")
    ] = ANSWERS,
    generate: Annotated[
        bool, typer.Option("--generate/--no-generate", help="Tasks that complete prompts: generate answers, greedily.")
    ] = True,
    temperature: Annotated[
        bool, typer.Option("--temperature", help="Also tuned models with a temperature fitted on validation.")
    ] = False,
    shift: Annotated[
        bool, typer.Option("--shift", help="Also BASE with class scores shifted to fit validation rows.")
    ] = False,
    record: Annotated[bool, typer.Option("--record", help="Store the scores in the graft files.")] = False,
    save: Annotated[Path | None, typer.Option(metavar="DIR", help="Save all predictions (npz) in this folder.")] = None,
    convert: Convert = False,
    json: Json = False,
    *,
    data: RowsAsked,
    tables: TablesAsked,
    run_as: MachineAsked,
) -> None:
    """Measure base, tuned models and grafts on tasks.

    Accuracy, F1, ECE, NLL, Brier and agreement, with intervals.

    Of tasks that complete prompts: NLL per token, perplexity, token accuracy, exact match, and a few answers side by side.

    \b
    Examples
      skillgraft evaluate BASE --task sst2 --tuned TUNED --graft skill.safetensors
      skillgraft evaluate BASE --task bash.toml --control notes.txt --tuned TUNED --graft repaired.safetensors
      skillgraft evaluate BASE --task sst2 --tuned full=runs/a/model --tuned lora=runs/b/model --graft small=g.safetensors
      skillgraft evaluate BASE --task sst2 --task mr --graft a.safetensors --graft b.safetensors --together --json
    """
    from skillgraft.folders.hub import HubName
    from skillgraft.tasks.data import as_rows
    from skillgraft.values.graft import total
    from skillgraft.values.naming import short

    for option, asked_for, needs, there in (
        ("--together", together, "--graft", graft),
        ("--record", record, "--graft", graft),
        ("--temperature", temperature, "--tuned", tuned),
        ("--control", control, "--tuned", tuned),
    ):
        if asked_for and not there:
            raise InputError(f"{option} needs {needs}, and none is given: give one or leave out {option}")
    output.check_tables(tables)
    folders, files = (naming.by_name(given or [], naming.last_part) for given in (tuned, graft))
    if record and any(map(HubName.of, files.values())):
        raise InputError("--record writes into graft files: download the graft first, and give the file")
    grafts = {name: output.load_graft(path) for name, path in files.items()}
    if together and grafts:
        recipe = {"rule": "sum", "grafts": [each.digest for each in grafts.values()]}
        grafts["+".join(map(short, grafts))] = total(list(grafts.values())).with_info(recipe=recipe)
    splits = [split, *(["validation"] if temperature or shift else [])]
    tasks = _checked_tasks(task, data, splits)
    controls = [as_rows(each) for each in control or []]
    for each in controls:
        data.needed(each, split)

    from skillgraft.measure.evaluate import evaluate

    asked: dict[str, Any] = {
        "tuned": folders, "grafts": grafts, "data": data, "convert": convert, "batch_size": batch_size,
        "generates": generate, "controls": controls,
    }  # fmt: skip
    with output.running("evaluating", **run_as) as runtime:
        found, *fitted = [evaluate(base, tasks, split=each, runtime=runtime, **asked) for each in splits]
    if fitted:
        more = {
            name: _fitted(found[name], fitted[0][name], folders if temperature else (), shift=shift) for name in found
        }
        found = replace(found, predictions={name: {**found[name], **more[name]} for name in found})
    if save:
        found.save(save)
    facts = found.as_json(split=split)
    results = facts["tasks"]
    if any(tables.values()):
        from skillgraft.report.score_sheets import evaluation_sheets
        from skillgraft.report.table_files import write_tables

        write_tables(evaluation_sheets(facts), tables)
    if record:
        _record(files, results, split)
    examples = found.examples(answers)
    lines = [
        line
        for name, models in results.items()
        for line in [*output.score_table(name, models), *output.answer_lines(examples.get(name, ())), ""]
    ]
    facts |= {"examples": examples} if examples else {}
    repairs = found.repaired()
    facts |= {"repaired": repairs} if repairs else {}
    lines += [*repair_table(repairs), ""] if repairs else []
    output.show(facts, as_json=json, lines=lines[:-1])


def repair_table(repairs: Mapping[str, Any]) -> list[str]:
    """Models as rows: the improvement kept on each task, the damage to each control and how much of it is gone."""
    first = next(iter(repairs.values()))
    header = ["NLL"]
    for task in first["tasks"]:
        header += [f"{task} improves by", "kept, %"]
    for control in first["controls"]:
        header += [f"{control} damaged by", "given back, %"]
    rows = []
    for name, found in repairs.items():
        row = [name]
        for one in found["tasks"].values():
            row += [f"{one['improvement']['value']:.3f}", _share(one["kept"])]
        for one in found["controls"].values():
            row += [f"{one['damage']['value']:.3f}", _share(one["given_back"])]
        rows.append(row)
    return output.columns(rows, header=header)


def _share(found: Mapping[str, Any]) -> str:
    if found["value"] is None:
        return "-"
    ends = f" [{100 * found['low']:.0f}, {100 * found['high']:.0f}]" if found["low"] is not None else ""
    return f"{100 * found['value']:.1f}{ends}"


def _checked_tasks(names: Sequence[str], data: Data, splits: Sequence[str]) -> tuple[Task, ...]:
    """The tasks. Wrong data are refused here, before torch is imported, which takes seconds; they are read again later."""
    from skillgraft.tasks.data import load_tasks

    tasks = load_tasks(names)
    for task in tasks:
        for split in splits:
            data.needed(task, split)
    return tasks


def _fitted(
    models: Mapping[str, AnyPredictions], validation: Mapping[str, AnyPredictions], tuned: Iterable[str], *, shift: bool
) -> dict[str, Predictions]:
    """What models answer with a few numbers fitted on validation rows: the base's classes shifted, tuned at a temperature."""
    from skillgraft.measure import shifted, temperature_scaled
    from skillgraft.predictions.predictions import classes_of

    def of(model: str) -> tuple[Predictions, Predictions]:
        return classes_of(models[model]), classes_of(validation[model])

    base = {"base + shift": shifted(*of("base"))} if shift else {}
    return base | {f"{name} + temperature": temperature_scaled(*of(name)) for name in tuned}


def _record(files: Mapping[str, str], results: dict[str, Any], split: str) -> None:
    from skillgraft.files.graft_file import save

    for name, path in files.items():
        graft = output.load_graft(path)
        scores = dict(graft.info.get("scores", {}))
        scores[split] = {task: models[name] for task, models in results.items()}
        save(graft.with_info(scores=scores), path, overwrite=True)
