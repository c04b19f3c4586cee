"""The order of the parts, enforced: imports point one way, and what must stay light or silent does."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import skillgraft

SOURCE = Path(skillgraft.__file__).parent
# From the ground up: a part imports parts that come earlier in this table, never later ones; within a package anything goes.
LAYERS = (
    ("errors", "names", "strict_json", "dtypes", "rounding", "provenance", "versions"),
    ("region", "graft"),
    ("atomic", "tensor_file", "weight_files"),
    ("graft_file", "checkpoint"),
    ("movement", "lora", "ledger", "card", "rewrite", "fit", "vocabulary"),
    ("extraction", "surgery", "export", "comparison", "binding", "live", "bottleneck", "doctor"),
    ("tasks", "readouts", "measure", "training", "localize", "compose", "report", "reproduce", "demo"),
    ("cli", "__main__"),
)
ORDER = [part for layer in LAYERS for part in layer]
NEVER_TORCH = ORDER[: ORDER.index("movement")]
RULES_MAY_IMPORT = {"errors", "dtypes", "region", "graft"}
TORCH = {"torch", "transformers", "accelerate", "peft", "datasets", "sklearn"}


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def part_of(path: Path) -> str:
    """The first name below the package: `tasks` for tasks/load.py, `graft` for graft.py."""
    first = path.relative_to(SOURCE).parts[0]
    return first.removesuffix(".py")


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Every imported module with its line, wherever in the file the import stands."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: say `from skillgraft…`, so that the order can be seen"
            assert node.module is not None
            # `from skillgraft import atomic` imports skillgraft.atomic
            names = (
                [f"skillgraft.{alias.name}" for alias in node.names] if node.module == "skillgraft" else [node.module]
            )
            yield from ((name, node.lineno) for name in names)


def named(path: Path) -> str:
    return str(path.relative_to(SOURCE))


@pytest.mark.parametrize("path", modules(), ids=named)
def test_imports_point_one_way(path: Path) -> None:
    if path == SOURCE / "__init__.py":  # the public names, looked up when first used
        return
    mine = part_of(path)
    assert mine in ORDER, f"{named(path)} is new: give it its place in LAYERS"
    for name, line in imports(path):
        package, _, rest = name.partition(".")
        if package != "skillgraft":
            continue
        theirs = rest.split(".")[0]
        assert theirs in ORDER, f"{named(path)}:{line} imports {name}, which has no place in LAYERS"
        backwards = ORDER.index(theirs) > ORDER.index(mine)
        assert not backwards, f"{named(path)}:{line} imports {name}, which comes later in the table"


def test_the_package_itself_imports_nothing_but_lazily() -> None:
    tree = ast.parse((SOURCE / "__init__.py").read_text(encoding="utf-8"))
    at_import = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert {node.module for node in at_import if isinstance(node, ast.ImportFrom)} <= {
        "__future__",
        "importlib",
        "typing",
    }
    assert all(isinstance(node, ast.ImportFrom) for node in at_import)
    assert sorted(skillgraft.__all__) == dir(skillgraft)
    for name in skillgraft.__all__:
        assert getattr(skillgraft, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'graftt'"):
        _ = skillgraft.graftt


@pytest.mark.parametrize("file", ["rules.py", "merging.py"])
def test_rules_need_grafts_alone(file: str) -> None:
    names = [name for name, _ in imports(SOURCE / "compose" / file) if name.startswith("skillgraft.")]
    ours = {name.split(".")[1] for name in names if name != "skillgraft.compose.merging"}
    assert ours <= RULES_MAY_IMPORT


@pytest.mark.parametrize("part", NEVER_TORCH)
def test_the_ground_never_needs_torch(part: str) -> None:
    foreign = {name.split(".")[0] for name, _ in imports(SOURCE / f"{part}.py")}
    assert not foreign & TORCH


def calls(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node.lineno


@pytest.mark.parametrize("path", modules(), ids=named)
def test_nothing_prints_below_the_command_line(path: Path) -> None:
    if part_of(path) != "cli":
        assert [line for name, line in calls(path) if name in ("print", "sys.stdout.write")] == []
        assert "typer" not in {name.split(".")[0] for name, _ in imports(path)}


@pytest.mark.parametrize("path", modules(), ids=named)
def test_no_file_can_run_code(path: Path) -> None:
    """Pickles and evaluated text are programs; grafts, tasks and recipes are data."""
    refused = {"eval", "exec", "compile", "torch.load", "torch.save", "__import__", "numpy.load", "np.load"}
    found = [
        (name, line)
        for name, line in calls(path)
        if name in refused and not (name == "np.load" and _without_pickles(path, line))
    ]
    assert found == []
    modules = {name.split(".")[0] for name, _ in imports(path)}
    assert not modules & {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}


def _without_pickles(path: Path, line: int) -> bool:
    return "allow_pickle=False" in path.read_text(encoding="utf-8").splitlines()[line - 1]


@pytest.mark.parametrize("path", modules(), ids=named)
def test_every_module_says_what_it_holds(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree)
