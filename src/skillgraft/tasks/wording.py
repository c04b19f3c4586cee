"""The `[prompt]` and `[describe]` tables of a task file: read against the task's fields and labels.

Words and descriptions are given by label name and must cover exactly the labels; their order in the file means nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import get_args

from skillgraft.errors import InputError, listed
from skillgraft.tasks.prompt import CHOICES, Prompt, Template
from skillgraft.tasks.section import Section
from skillgraft.tasks.task import Completing, Describe, PromptKind, Task

PROMPT_KEYS = ("template", "words", "answer", "max_length", "blank", "template_blank")
DESCRIBE_KEYS = ("input", "template", "choice")
KINDS: tuple[PromptKind, ...] = get_args(PromptKind)
# How many {mask} a template may have; None is a plain [prompt], whose mask decides what kind it is.
MASKS: Mapping[PromptKind | None, tuple[tuple[int, ...], str]] = {
    None: ((0, 1), "at most one"),
    "masked": ((1,), "exactly one"),
    "causal": ((0,), "no"),
    "choice": ((0,), "no"),
}


def with_wording(task: Task, top: Section) -> Task:
    """The task with the prompts and descriptions of its file."""
    return replace(task, prompts=_prompts(task, top.section("prompt")), describe=_describe(task, top))


def _prompts(task: Task, table: Section) -> Mapping[PromptKind, Prompt]:
    if not table.values:
        return {}
    if task.kind == "image":
        raise table.wrong("an image task has no prompt")
    if task.completing is not None:
        return _continued(task, task.completing, table)
    table.only((*PROMPT_KEYS, *KINDS))
    if not any(kind in table.values for kind in KINDS):
        prompt = _prompt(task, table)
        return {"masked" if prompt.template.masks else "causal": prompt}
    table.only(KINDS)
    return {kind: _prompt(task, table.section(kind), kind) for kind in KINDS if kind in table.values}


def _continued(task: Task, style: Completing, table: Section) -> Mapping[PromptKind, Prompt]:
    """How a prompt is worded that is to be completed: a template over {prompt}."""
    table.only(("template",))
    if style.layout != "prompt":
        raise table.wrong(f"a template is for rows of prompt and completion; this task's layout is {style.layout!r}")
    return {"causal": Prompt(_template(table, "template", texts=("prompt",)), task.max_length)}


def _prompt(task: Task, section: Section, kind: PromptKind | None = None) -> Prompt:
    section.only(PROMPT_KEYS)
    if ("blank" in section.values) != ("template_blank" in section.values):
        raise section.wrong("'blank' and 'template_blank' belong together")
    return Prompt(
        template=_asking(task, section, "template", kind),
        max_length=section.count("max_length", task.max_length),
        words=_words(task, section),
        answer=_answer(task, section),
        blank=section.text("blank", ""),
        template_blank=_asking(task, section, "template_blank", kind) if "template_blank" in section.values else None,
    )


def _asking(task: Task, section: Section, key: str, kind: PromptKind | None) -> Template:
    """A template over the row's fields, with the one mask of a masked prompt and without any in the others."""
    template = _template(section, key, texts=task.inputs, lists=_lists(task))
    allowed, needs = MASKS[kind]
    if template.masks not in allowed:
        raise section.wrong(f"{key!r} needs {needs} {{mask}}; found {template.masks}")
    return template


def _words(task: Task, section: Section) -> tuple[str, ...]:
    if not task.labels:
        if "words" in section.values:
            raise section.wrong("multiple choice has no 'words'; write answer = '{choice}' or answer = ' {letter}'")
        return ()
    words = tuple(_by_label(section.section("words"), task.labels).values())
    if len(set(words)) < len(words) or "" in words:
        raise section.wrong(f"'words' must be different and not empty; found {list(words)}")
    return words


def _answer(task: Task, section: Section) -> Template | None:
    if not task.labels:
        return _template(section, "answer", texts=("choice", "letter"))
    if "answer" in section.values:
        raise section.wrong("'answer' is for multiple choice; this task has labels and therefore 'words'")
    return None


def _by_label(section: Section, labels: tuple[str, ...]) -> dict[str, str]:
    """label → text for exactly the labels, in their order, whatever the order in the file."""
    section.only(labels)
    missing = [label for label in labels if label not in section.values]
    if missing:
        raise section.wrong(f"nothing for the label {listed(missing)}; every label needs a text")
    return {label: section.text(label) for label in labels}


def _describe(task: Task, top: Section) -> Describe | None:
    if "describe" not in top.values:
        return None
    section = top.section("describe")
    section.only((*DESCRIBE_KEYS, *task.labels))
    described = {key: value for key, value in section.values.items() if key in task.labels}
    settings = Section(section.file, section.name, {k: v for k, v in section.values.items() if k not in described})
    templates = _label_templates(settings)
    if task.labels and not described and not templates:
        raise section.wrong("every label needs a description, or 'template' a text with {label}")
    return Describe(
        input=_describe_input(task, settings),
        descriptions=_by_label(replace(section, values=described), task.labels) if described else {},
        choice=_describe_choice(task, settings),
        templates=templates,
    )


def _label_templates(section: Section) -> tuple[Template, ...]:
    """One text with {label}, or a list of them."""
    texts = section.texts("template")
    if "template" in section.values and not texts:
        raise section.wrong("'template' is an empty list; give a text with {label}, or several")
    return tuple(_parsed(section, "template", text, texts=("label",)) for text in texts)


def _describe_input(task: Task, section: Section) -> Template | None:
    if task.kind == "image":
        return None
    default = " ".join(f"{{{field}}}" for field in task.inputs)
    return _template(section, "input", default, texts=task.inputs, lists=_lists(task))


def _describe_choice(task: Task, section: Section) -> Template | None:
    if task.kind == "choice":
        return _template(section, "choice", "{choice}", texts=("choice", *task.inputs))
    if "choice" in section.values:
        raise section.wrong("'choice' is for multiple choice; this task has labels")
    return None


def _lists(task: Task) -> tuple[str, ...]:
    return (CHOICES,) if task.kind == "choice" else ()


def _template(
    section: Section, key: str, default: str | None = None, *, texts: tuple[str, ...], lists: tuple[str, ...] = ()
) -> Template:
    return _parsed(section, key, section.text(key, default), texts=texts, lists=lists)


def _parsed(section: Section, key: str, text: str, *, texts: tuple[str, ...], lists: tuple[str, ...] = ()) -> Template:
    try:
        return Template.parse(text, texts=texts, lists=lists)
    except InputError as error:
        raise section.wrong(f"{key!r}: {error}") from error
