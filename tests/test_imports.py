"""The order of the rooms, enforced: imports point one way, and what must stay light or silent does."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import skillgraft

SOURCE = Path(skillgraft.__file__).parent
# From the ground up: a room imports rooms that come earlier in this table, never later ones; within a room anything goes.
ROOMS = (
    "errors",
    "values",
    "files",
    "folders",
    "opening",
    "live",
    "tasks",
    "readouts",
    "predictions",
    "task_model",
    "measure",
    "training",
    "regions",
    "compose",
    "interop",
    "serve",
    "report",
    "papers",
    "cli",
    "__main__",
)
NEVER_TORCH = ("values", "files", "folders")
# The exceptions: a graft and a region can read and write their own file (on the hub too), and an adapter that PEFT alone can
# read is merged by it; their bodies import that when it is asked for.
BACKWARDS = {
    ("values/graft.py", "skillgraft.files.graft_file"),
    ("values/graft.py", "skillgraft.files.graft_stream"),
    ("values/graft.py", "skillgraft.folders.hub"),
    ("values/region.py", "skillgraft.files.graft_file"),
    ("values/region.py", "skillgraft.folders.hub"),
    ("folders/extract.py", "skillgraft.opening.adapters"),
}
RULES_MAY_IMPORT = {"errors", "values"}
TORCH = {"torch", "transformers", "accelerate", "peft", "datasets", "sklearn"}


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def part_of(path: Path) -> str:
    """The first name below the package: `tasks` for tasks/data.py, `graft` for graft.py."""
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
            # `from skillgraft import atomic` imports skillgraft.files.atomic
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
    assert mine in ROOMS, f"{named(path)} is new: add it to ROOMS"
    for name, line in imports(path):
        package, _, rest = name.partition(".")
        if package != "skillgraft":
            continue
        theirs = rest.split(".")[0]
        assert theirs in ROOMS, f"{named(path)}:{line} imports {name}, which is not in ROOMS"
        backwards = ROOMS.index(theirs) > ROOMS.index(mine) and (named(path), name) not in BACKWARDS
        assert not backwards, f"{named(path)}:{line} imports {name}, which comes later in the table"


def test_the_exceptions_are_in_use_and_lazy() -> None:
    for file, module in BACKWARDS:
        assert module in {name for name, _ in imports(SOURCE / file)}, f"{file}: the exception is not needed"
        at_import = ast.parse((SOURCE / file).read_text(encoding="utf-8")).body
        assert module not in {node.module for node in at_import if isinstance(node, ast.ImportFrom)}


def test_a_class_name_stands_once_in_the_package() -> None:
    homes: dict[str, list[str]] = {}
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(named(path))
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}


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


@pytest.mark.parametrize("file", ["rules.py", "thinning.py"])
def test_rules_need_grafts_alone(file: str) -> None:
    names = [name for name, _ in imports(SOURCE / "compose" / file) if name.startswith("skillgraft.")]
    beside = {"skillgraft.compose.rules", "skillgraft.compose.thinning"}
    ours = {name.split(".")[1] for name in names if name not in beside}
    assert ours <= RULES_MAY_IMPORT


@pytest.mark.parametrize("room", NEVER_TORCH)
def test_the_ground_never_needs_torch(room: str) -> None:
    foreign = {name.split(".")[0] for path in (SOURCE / room).glob("*.py") for name, _ in imports(path)}
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


# Who may do what it takes to load a model: `TaskModel.open` makes the loader, and everybody else goes through it.
# The one other door: a model that is only written out again, never trained, searched or asked.
UNPACKING = {"opening/unpack.py": {"source.load"}}
LOADING = {
    "Loader": "task_model.py",
    "source.load": "readouts/readouts.py",
    "auto_class.from_pretrained": "opening/source.py",
    "PeftModel.from_pretrained": "opening/adapters.py",  # puts an adapter on a model that is there
}
NOT_MODELS = {"AutoConfig", "AutoTokenizer", "AutoImageProcessor"}
MODEL_CLASS = re.compile(r"Auto\w+|\w+Model|\w+For[A-Z]\w+|pipeline")


def model_loads(path: Path) -> set[str]:
    """The calls of a file that make a loader, use one, or load a model in transformers' own words."""
    names = {name for name, _ in calls(path)} - {f"{kind}.from_pretrained" for kind in NOT_MODELS}
    own_words = ("from_pretrained", "from_config", "Loader", "source.load")
    return {name for name in names if any(name == word or name.endswith(f".{word}") for word in own_words)}


def model_classes(path: Path) -> set[str]:
    """Classes of transformers that a file imports, or takes from the package, and that are or load models."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "transformers":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "transformers":
            found.add(node.attr)
    return {name for name in found - NOT_MODELS - {"PreTrainedModel"} if MODEL_CLASS.fullmatch(name)}  # that is a type


@pytest.mark.parametrize("path", modules(), ids=named)
def test_only_the_task_model_loads_models(path: Path) -> None:
    """Number format, device and attention are decided once; a second door would decide them otherwise."""
    assert model_loads(path) == {name for name, file in LOADING.items() if file == named(path)} | UNPACKING.get(
        named(path), set()
    )
    assert model_classes(path) == set()
    looks_up = [
        line for name, line in calls(path) if name == "getattr" and "getattr(transformers," in _line(path, line)
    ]
    assert not looks_up or named(path) == LOADING["auto_class.from_pretrained"]


@pytest.mark.parametrize(
    ("code", "loads", "classes"),
    [
        ("import transformers\ntransformers.AutoModel.from_pretrained(x)", "transformers.AutoModel.from_pretrained", "AutoModel"),
        ("from transformers import BertForMaskedLM as B\nB.from_pretrained(x)", "B.from_pretrained", "BertForMaskedLM"),
        ("from skillgraft.readouts import readouts\nreadouts.Loader(plan)", "readouts.Loader", ""),
        ("opened.source.load(name)", "opened.source.load", ""),
    ],
)  # fmt: skip
def test_a_second_door_would_be_seen(code: str, loads: str, classes: str, tmp_path: Path) -> None:
    (tmp_path / "door.py").write_text(code)
    assert model_loads(tmp_path / "door.py") == {loads}
    assert model_classes(tmp_path / "door.py") == set(classes.split())


def _line(path: Path, line: int) -> str:
    return path.read_text(encoding="utf-8").splitlines()[line - 1]


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
    return "allow_pickle=False" in _line(path, line)


@pytest.mark.parametrize("path", modules(), ids=named)
def test_every_module_says_what_it_holds(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree)
