"""The kinds of work that recipes are made of: one table, merged from one file per family.

A new kind is a short function over the library in a file of its own, and one line here.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from skillgraft.errors import InputError, did_you_mean
from skillgraft.reproduce.jobs import analyses, arithmetic, continual, models, multitask, saying
from skillgraft.reproduce.jobs.job import SECONDS, Job

FILES = (models, saying, multitask, continual, arithmetic, analyses)
JOBS: Mapping[str, Job] = MappingProxyType({name: one for file in FILES for name, one in file.JOBS.items()})

__all__ = ["JOBS", "SECONDS", "Job", "job"]


def job(name: str) -> Job:
    """A job by name."""
    if name not in JOBS:
        raise InputError(f"unknown job {name!r}; {did_you_mean(name, JOBS)}")
    return JOBS[name]
