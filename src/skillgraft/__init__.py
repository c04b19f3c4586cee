"""skillgraft: find the few thousand parameters that hold a fine-tuned skill, and put skills on and off models.

The public names, loaded when first used, so that `import skillgraft` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skillgraft.compose.forgetting import forget as forget
    from skillgraft.compose.rules import combine as combine
    from skillgraft.compose.scales import search_scale as search_scale
    from skillgraft.compose.store import ContinualStore as ContinualStore
    from skillgraft.files.graft_file import load as load
    from skillgraft.files.graft_file import load_region as load_region
    from skillgraft.files.graft_file import save as save
    from skillgraft.files.graft_file import save_region as save_region
    from skillgraft.folders.apply import apply as apply
    from skillgraft.folders.apply import check as check
    from skillgraft.folders.apply import remove as remove
    from skillgraft.folders.compare import compare as compare
    from skillgraft.folders.diff import diff as diff
    from skillgraft.folders.extract import extract as extract
    from skillgraft.folders.hub import download as download
    from skillgraft.folders.hub import upload as upload
    from skillgraft.interop.export import export_patch as export_patch
    from skillgraft.interop.lora import export_lora as export_lora
    from skillgraft.interop.trainer import GraftCallback as GraftCallback
    from skillgraft.live.bank import SkillBank as SkillBank
    from skillgraft.live.grafted import grafted as grafted
    from skillgraft.measure.evaluate import evaluate as evaluate
    from skillgraft.opening.runtime import Runtime as Runtime
    from skillgraft.opening.unpack import unpack as unpack
    from skillgraft.papers.run import map_steps as map_steps
    from skillgraft.regions.choose import choose_region as choose_region
    from skillgraft.regions.live import localize_live as localize_live
    from skillgraft.regions.localize import localize as localize
    from skillgraft.task_model import TaskModel as TaskModel
    from skillgraft.tasks.data import Data as Data
    from skillgraft.tasks.task import Task as Task
    from skillgraft.tasks.task_file import load_task as load_task
    from skillgraft.training.finetune import finetune as finetune
    from skillgraft.training.plan import TrainingPlan as TrainingPlan
    from skillgraft.values.graft import Graft as Graft
    from skillgraft.values.graft import total as total
    from skillgraft.values.region import Region as Region
    from skillgraft.values.region import Scope as Scope

_HOME = {
    "ContinualStore": "compose.store",
    "Data": "tasks.data",
    "Graft": "values.graft",
    "GraftCallback": "interop.trainer",
    "Region": "values.region",
    "Runtime": "opening.runtime",
    "Scope": "values.region",
    "SkillBank": "live.bank",
    "Task": "tasks.task",
    "TaskModel": "task_model",
    "TrainingPlan": "training.plan",
    "apply": "folders.apply",
    "check": "folders.apply",
    "choose_region": "regions.choose",
    "combine": "compose.rules",
    "compare": "folders.compare",
    "diff": "folders.diff",
    "download": "folders.hub",
    "evaluate": "measure.evaluate",
    "export_lora": "interop.lora",
    "export_patch": "interop.export",
    "extract": "folders.extract",
    "finetune": "training.finetune",
    "forget": "compose.forgetting",
    "grafted": "live.grafted",
    "load": "files.graft_file",
    "load_region": "files.graft_file",
    "load_task": "tasks.task_file",
    "map_steps": "papers.run",
    "localize": "regions.localize",
    "localize_live": "regions.live",
    "remove": "folders.apply",
    "save": "files.graft_file",
    "save_region": "files.graft_file",
    "search_scale": "compose.scales",
    "total": "values.graft",
    "unpack": "opening.unpack",
    "upload": "folders.hub",
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
