"""Private names of transformers and torch: in one module alone, and one clear error when a release drops one."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

import skillgraft
from skillgraft.errors import RunError
from skillgraft.opening import compat

SOURCE = Path(skillgraft.__file__).parent
# Private though they are spelt without an underscore: documented nowhere, changed between minor releases.
UNDOCUMENTED = {"core_model_loading", "conversion_mapping", "revert_weight_conversion"}
OWN_TABLES = {"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "_model_mapping"}


def foreign_imports(tree: ast.AST) -> Iterator[str]:
    """Dotted names that a file takes from torch and transformers."""
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{name}" for name in names]
        yield from (name for name in names if name.split(".")[0] in ("torch", "transformers"))


def private_names(path: Path) -> list[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported = [
        name
        for name in foreign_imports(tree)
        if any(part.startswith("_") or part in UNDOCUMENTED for part in name.split("."))
    ]
    attributes = [node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr in OWN_TABLES]
    keywords = [node.arg for node in ast.walk(tree) if isinstance(node, ast.keyword) and (node.arg or "")[0:1] == "_"]
    return imported + attributes + keywords


def test_private_names_stand_in_one_module() -> None:
    found = {str(path.relative_to(SOURCE)): private_names(path) for path in SOURCE.rglob("*.py")}
    assert {name for name, private in found.items() if private} == {"opening/compat.py"}


def test_the_expected_versions_are_those_of_the_package() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    stated = project["optional-dependencies"]["train"]
    assert {f"{package}{version}" for package, version in compat.EXPECTED.items()} <= set(stated)


def test_importing_the_module_is_light() -> None:
    at_import = [
        node
        for node in ast.parse(Path(compat.__file__).read_text(encoding="utf-8")).body
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    assert not list(foreign_imports(ast.Module(at_import, [])))


class Strict:
    """An Auto class without the private mapping."""


def cached_file_of_tomorrow(_model: str, _file: str) -> None:
    return None


DROPPED: dict[str, tuple[str, Callable[[], Any], str]] = {
    "stored_form": (
        "transformers.core_model_loading.revert_weight_conversion",
        lambda: compat.stored_form(nn.Linear(1, 1), {}),
        r"transformers.core_model_loading.revert_weight_conversion",
    ),
    "watched_operations": (
        "torch.utils._python_dispatch.TorchDispatchMode",
        lambda: compat.watched_operations(print),
        r"torch.utils._python_dispatch.TorchDispatchMode",
    ),
}


@pytest.mark.parametrize(("gone", "call", "named"), DROPPED.values(), ids=DROPPED)
def test_a_dropped_name_is_one_clear_error(
    gone: str, call: Callable[[], Any], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(gone)
    package = gone.partition(".")[0]
    wanted = rf"{package}{compat.EXPECTED[package]}"
    with pytest.raises(RunError, match=rf"expected {wanted}, which has {named}; found {package} \d.*pip install") as it:
        call()
    assert f"'{wanted}'" in str(it.value)


def test_a_dropped_attribute_is_one_clear_error() -> None:
    with pytest.raises(RunError, match=r"which has Strict\._model_mapping; found transformers \d"):
        compat.can_load(Strict, transformers.BertConfig())


def test_a_dropped_option_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.utils.cached_file", cached_file_of_tomorrow)
    with pytest.raises(RunError, match=r"which has cached_file\(_raise_exceptions_for_missing_entries=False\)"):
        compat.hub_file("someone/model", "config.json")


def test_other_type_errors_stay_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise TypeError("unhashable")

    monkeypatch.setattr("transformers.utils.cached_file", broken)
    with pytest.raises(TypeError, match="unhashable"):
        compat.hub_file("someone/model", "config.json")


def test_a_file_that_a_model_lacks_is_none(tmp_path: Path) -> None:
    """A folder stands in for the hub: transformers takes both through the same call."""
    (tmp_path / "config.json").write_text("{}")
    assert compat.hub_file(str(tmp_path), "config.json") == str(tmp_path / "config.json")
    assert compat.hub_file(str(tmp_path), "absent.json") is None


def test_which_auto_class_loads_what() -> None:
    assert compat.can_load(transformers.AutoModelForMaskedLM, transformers.BertConfig())
    assert not compat.can_load(transformers.AutoModelForMaskedLM, transformers.ViTConfig())


def test_tables_are_the_modules_own() -> None:
    model = nn.Sequential(nn.Linear(1, 2), nn.BatchNorm1d(2))
    model.register_buffer("computed", torch.zeros(1), persistent=False)
    saved = {
        f"{path}.{key}" if path else key
        for path, table, hidden in compat.tables(model)
        for key, tensor in table.items()
        if tensor is not None and key not in hidden
    }
    assert saved == model.state_dict().keys()
    before = compat.table_ids(model)
    assert before == compat.table_ids(model)
    model[0] = nn.Linear(1, 2)
    assert before != compat.table_ids(model)


def test_every_operation_is_seen() -> None:
    seen: list[int] = []
    with compat.watched_operations(lambda values: seen.extend(id(v) for v in values if isinstance(v, torch.Tensor))):
        a = torch.zeros(2)
        b = a + 1
    assert seen == [id(a), id(a), id(b)]
