"""Provenance: a closed set of typed items, each with one text."""

from __future__ import annotations

import pytest

from skillgraft.errors import InputError
from skillgraft.values.info import ITEMS, Info


def test_items_are_stored_as_one_text():
    info = Info(task="größer", labels=("b", "a"), scores={"z": 0.1, "a": [1, None, True]}, num_labels=2, method=None)
    assert info.texts == {
        "labels": '["b","a"]',
        "num_labels": "2",
        "scores": '{"a":[1,null,true],"z":0.1}',
        "task": "größer",
    }
    assert dict(info) == {
        "labels": ["b", "a"],
        "num_labels": 2,
        "scores": {"z": 0.1, "a": [1, None, True]},
        "task": "größer",
    }
    assert Info.from_texts(info.texts) == info
    assert info.text("task") == "größer"
    assert info.text("method") == ""
    assert "method" not in info
    assert len(info) == 4


def test_the_order_of_items_does_not_matter():
    a, b = Info(task="t", scores={"x": 1, "y": 2}), Info(scores={"y": 2, "x": 1}, task="t")
    assert a == b
    assert hash(a) == hash(b)
    assert repr(a) == repr(b) == "Info({'scores': {'x': 1, 'y': 2}, 'task': 't'})"
    assert a != {"task": "t"}


def test_updated_and_agreed():
    info = Info(task="t", method="movement")
    assert info.updated(method="learned", task=None) == Info(method="learned")
    assert Info.agreed([info, Info(task="t", method="random"), Info(task="t")]) == Info(task="t")
    assert Info.agreed([info]) == info


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ({"tasks": "t"}, "unknown provenance item 'tasks'; did you mean 'task'"),
        ({"task": 5}, "provenance item 'task' must be str, found int"),
        ({"labels": "positive"}, "provenance item 'labels' must be list, found str"),
        ({"num_labels": True}, "provenance item 'num_labels' must be int, found bool"),
        ({"scores": {"a": float("nan")}}, "cannot be written as JSON: Out of range float"),
        ({"scores": {"a": object()}}, "cannot be written as JSON: Object of type object"),
        ({"scores": {"a": 1, 2: 1}}, "cannot be written as JSON"),
        ({"task": "\ud800"}, "provenance item 'task' cannot be written as JSON: .*surrogates not allowed"),
        ({"labels": ["\ud800"]}, "surrogates not allowed"),
    ],
)
def test_items_of_a_wrong_type_are_refused(items, message):
    with pytest.raises(InputError, match=message):
        Info(**items)


def test_endless_nesting_is_refused():
    nested: list[object] = []
    nested.append(nested)
    with pytest.raises(InputError, match="Circular reference"):
        Info(recipe={"a": nested})
    with pytest.raises(InputError, match="must hold texts alone"):
        Info(labels=nested)
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InputError, match="recursion"):
        Info(recipe={"a": deep})
    with pytest.raises(InputError, match="must hold texts alone"):
        Info(labels=deep)


@pytest.mark.parametrize("key", [key for key, kind in ITEMS.items() if kind is not str])
def test_texts_that_are_not_json_are_refused(key):
    with pytest.raises(InputError, match=f"provenance item '{key}' is not JSON"):
        Info.from_texts({key: "{"})
    with pytest.raises(InputError, match=f"provenance item '{key}' must be {ITEMS[key].__name__}, found NoneType"):
        Info.from_texts({key: "null"})
