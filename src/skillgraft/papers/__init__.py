"""The tables and figures of both papers as short recipes: which models, regions and predictions each cell needs.

    from skillgraft.papers import reproduce
    reproduce("table2", profile("cpu", base="MiniLM"), store="work", out="results")

A recipe names `Step`s, which are calls of the library's functions; a `Store` keeps their results by the content of their
arguments, so that recipes share them and an interrupted run goes on where it was.
"""

from skillgraft.papers.main import reproduce
from skillgraft.papers.recipe import Draft, Recipe, Wanted
from skillgraft.papers.run import Store
from skillgraft.papers.steps import Part, Step

__all__ = ["Draft", "Part", "Recipe", "Step", "Store", "Wanted", "reproduce"]
