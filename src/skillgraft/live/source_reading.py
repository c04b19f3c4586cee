"""What the source of a module's class does with the modules below it, as far as rows of a batch are concerned.

A hook sees what goes through a module's own call. Code that reads `self.out_proj.weight` itself (Mamba), or that puts time
before rows (XLNet, Longformer), goes around it: such classes are found here, before any batch is answered wrongly.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import TypeGuard
from weakref import WeakKeyDictionary

# Methods that make, tie or describe a model; they do not answer a batch.
_SETUP = {
    "__init__", "_init_weights", "reset_parameters", "extra_repr", "tie_weights", "_tie_weights", "init_weights", "post_init",
}  # fmt: skip
_NUMBERS = {"weight", "bias"}
_FACTS = {"dtype", "device", "shape", "ndim", "size", "dim", "numel"}  # about a tensor, without its numbers
_NOT_OURS = ("torch.", "builtins", "abc", "typing", "transformers.modeling_utils", "transformers.generation", "peft.")


@dataclass(frozen=True)
class ClassReading:
    """Names of children whose numbers a class reads itself, names of its own parameters that it reads, and more."""

    children: frozenset[str]
    own: frozenset[str]
    scales_only: bool  # forward is super().forward(…) * self.embed_scale
    moves_rows: bool  # exchanges the first two axes of something, so that the modules below may not see rows first


_READ: WeakKeyDictionary[type, ClassReading | None] = WeakKeyDictionary()


def direct_reads(kind: type) -> ClassReading | None:
    """Read a class and what it inherits, once; None where the source is not to be had."""
    if kind not in _READ:
        _READ[kind] = _read(kind)
    return _READ[kind]


def _read(kind: type) -> ClassReading | None:
    children: set[str] = set()
    own: set[str] = set()
    scales, moves = False, False
    for part in kind.__mro__:
        if part.__module__.startswith(_NOT_OURS):
            continue
        tree = _classes(part.__module__).get(part.__qualname__)
        if tree is None:
            return None
        for method in _methods(tree):
            nodes = list(ast.walk(method))
            children |= set(_children(nodes))
            own |= {node.attr for node in nodes if _is_own(node)}
            moves = moves or any(map(_moves_rows, nodes))
            scales = scales or (method.name == "forward" and _scales(method))
    return ClassReading(frozenset(children), frozenset(own), scales, moves)


@cache
def _classes(module: str) -> dict[str, ast.ClassDef]:
    """Every class of a module by its qualified name. `inspect` would parse the whole file again for each."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError, SyntaxError, KeyError):
        return {}
    return dict(_qualified(tree, ""))


def _qualified(tree: ast.AST, prefix: str) -> Iterator[tuple[str, ast.ClassDef]]:
    for node in getattr(tree, "body", []):
        if isinstance(node, ast.ClassDef):
            yield prefix + node.name, node
            yield from _qualified(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            yield from _qualified(node, f"{prefix}{node.name}.<locals>.")
        else:  # an `if` or `try` around a class
            yield from _qualified(node, prefix)


def _methods(tree: ast.ClassDef) -> Iterator[ast.FunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name not in _SETUP:
            yield node


def _children(nodes: list[ast.AST]) -> Iterator[str]:
    """`x` of every `….x.weight` and `….x.bias` whose numbers are read, and of every `….x.forward`."""
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    facts = {id(node.value) for node in attributes if node.attr in _FACTS}
    facts |= {id(part) for node in nodes if _asks_type(node) for part in ast.walk(node)}
    for node in attributes:
        read = node.attr == "forward" or (node.attr in _NUMBERS and id(node) not in facts)
        if read and isinstance(node.value, ast.Attribute):
            yield node.value.attr


def _asks_type(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance"


def _is_own(node: ast.AST) -> TypeGuard[ast.Attribute]:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


def _moves_rows(node: ast.AST) -> bool:
    """`.transpose(0, 1)` or `.permute(1, 0, …)`."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    given = [arg.value if isinstance(arg, ast.Constant) else None for arg in node.args]
    return (node.func.attr == "transpose" and given == [0, 1]) or (node.func.attr == "permute" and given[:2] == [1, 0])


def _scales(method: ast.FunctionDef) -> bool:
    """`return super().forward(x) * self.embed_scale`, with a cast around the scale or not."""
    last = method.body[-1]
    value = last.value if isinstance(last, ast.Return) else None
    if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Mult):
        return False
    return ast.unparse(value.left).startswith("super().forward(") and ast.unparse(value.right).startswith(
        "self.embed_scale"
    )
