"""skillgraft: find the few thousand parameters that hold a fine-tuned skill, and put skills on and off models.

The public names, loaded when first used, so that `import skillgraft` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skillgraft.comparison import compare as compare
    from skillgraft.comparison import describe as describe
    from skillgraft.compose.bench import Workbench as Workbench
    from skillgraft.compose.forgetting import forget as forget
    from skillgraft.compose.rules import combine as combine
    from skillgraft.compose.scales import add_skills as add_skills
    from skillgraft.compose.store import Store as Store
    from skillgraft.export import export_patch as export_patch
    from skillgraft.extraction import extract as extract
    from skillgraft.graft import Graft as Graft
    from skillgraft.graft import total as total
    from skillgraft.graft_file import load as load
    from skillgraft.graft_file import load_region as load_region
    from skillgraft.graft_file import save as save
    from skillgraft.graft_file import save_region as save_region
    from skillgraft.live import grafted as grafted
    from skillgraft.localize.skill import Rows as Rows
    from skillgraft.localize.skill import localize_skill as localize_skill
    from skillgraft.measure.evaluate import evaluate as evaluate
    from skillgraft.region import Region as Region
    from skillgraft.region import Scope as Scope
    from skillgraft.surgery import Named as Named
    from skillgraft.surgery import apply as apply
    from skillgraft.surgery import check as check
    from skillgraft.surgery import remove as remove
    from skillgraft.training.finetune import finetune as finetune
    from skillgraft.training.plan import Plan as Plan

_HOME = {
    "Graft": "graft",
    "Named": "surgery",
    "Plan": "training.plan",
    "Region": "region",
    "Rows": "localize.skill",
    "Scope": "region",
    "Store": "compose.store",
    "Workbench": "compose.bench",
    "add_skills": "compose.scales",
    "apply": "surgery",
    "check": "surgery",
    "combine": "compose.rules",
    "compare": "comparison",
    "describe": "comparison",
    "evaluate": "measure.evaluate",
    "export_patch": "export",
    "extract": "extraction",
    "finetune": "training.finetune",
    "forget": "compose.forgetting",
    "grafted": "live",
    "load": "graft_file",
    "load_region": "graft_file",
    "localize_skill": "localize.skill",
    "remove": "surgery",
    "save": "graft_file",
    "save_region": "graft_file",
    "total": "graft",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'skillgraft' has no attribute {name!r}")
    value = getattr(import_module(f"skillgraft.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
