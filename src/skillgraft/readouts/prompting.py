"""What the three prompted readouts share: a task's prompt, its words by label, the end of its template."""

from __future__ import annotations

from collections.abc import Sequence

from skillgraft.errors import InputError, listed
from skillgraft.tasks import Prompt, Task
from skillgraft.tasks.task import PromptKind


def prompt_of(task: Task, *kinds: PromptKind) -> Prompt:
    """The task's prompt of the first of these kinds that it has."""
    for kind in kinds:
        if kind in task.prompts:
            return task.prompts[kind]
    wanted = " or ".join(f"[prompt.{kind}]" for kind in kinds)
    found = listed(f"[prompt.{kind}]" for kind in task.prompts) or "no prompt"
    raise InputError(f"task {task.name!r}: the {kinds[0]} readout needs {wanted}; its file has {found}")


def words_by_label(task: Task, prompt: Prompt) -> dict[str, str]:
    return dict(zip(task.labels, prompt.words, strict=True))


def ending(prompt: Prompt) -> str:
    """The text that every filled prompt ends with, or a colon where it ends with a field."""
    last = prompt.template.parts[-1]
    return last if isinstance(last, str) else ":"


def without_eos(ids: Sequence[int], eos: int | None) -> list[int]:
    """A prompt that is to be continued cannot end with the end-of-text token, which some tokenizers append."""
    return list(ids[:-1] if len(ids) > 1 and ids[-1] == eos else ids)
