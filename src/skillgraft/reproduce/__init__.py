"""The tables and figures of both papers as short recipes: which models, regions and predictions each cell needs.

    from skillgraft.reproduce import reproduce
    reproduce("table2", profile("cpu", base="MiniLM"), store="work", out="results")

A recipe names `Step`s; a `Store` keeps what they made, by content of their inputs, so that recipes share artefacts and an
interrupted run goes on where it was.
"""

from skillgraft.reproduce.recipe import Draft, Recipe, Wanted
from skillgraft.reproduce.run import reproduce
from skillgraft.reproduce.step import Step
from skillgraft.reproduce.store import Store

__all__ = ["Draft", "Recipe", "Step", "Store", "Wanted", "reproduce"]
