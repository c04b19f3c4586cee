"""Tasks as data: what is asked, of which rows, and which rows train, validate and test.

task = load_task("sst2")                        # or "reviews.toml"; `catalogue()` lists the names
split = training_split(task, shots=64, seed=0)  # every row is checked before any model is loaded
"""

from skillgraft.tasks.data import Split, measured_split, test_split, training_split
from skillgraft.tasks.examples import Examples, read_examples
from skillgraft.tasks.prompt import Prompt, Template
from skillgraft.tasks.task import Describe, Origin, Task, asked_as
from skillgraft.tasks.task_file import catalogue, load_task

__all__ = [
    "Describe",
    "Examples",
    "Origin",
    "Prompt",
    "Split",
    "Task",
    "Template",
    "asked_as",
    "catalogue",
    "load_task",
    "measured_split",
    "read_examples",
    "test_split",
    "training_split",
]
