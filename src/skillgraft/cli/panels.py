"""Help in panels: the options that most people need first, then those of each method, under a title of its own."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

FIRST = "Options"


class PanelCommand(TyperCommand):
    """A command whose plain help shows each option under its `rich_help_panel`; those without one come first."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {"Arguments": [], FIRST: []}
        for param in self.get_params(ctx):
            shown = param.get_help_record(ctx)
            if shown is not None:
                option = getattr(param, "rich_help_panel", None) or FIRST
                title = "Arguments" if param.param_type_name == "argument" else option
                panels.setdefault(title, []).append(shown)
        for title, lines in panels.items():
            if lines:
                with formatter.section(title):
                    formatter.write_dl(lines)
