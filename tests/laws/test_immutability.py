"""Regions, grafts and provenance are values: nothing that anyone holds can change them."""

from __future__ import annotations

import dataclasses
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skillgraft.files.graft_file import load, save
from skillgraft.values.graft import Graft
from skillgraft.values.info import Info
from skillgraft.values.numbers import frozen
from skillgraft.values.region import Region, Scope

from ..strategies import FORMATS, examples, families


@pytest.mark.parametrize("dtype", FORMATS.values(), ids=FORMATS)
@examples(15)
@given(data=st.data())
def test_values_sent_to_another_process_arrive_as_they_were(dtype, data):
    g, h = data.draw(families(dtype, 2))
    for graft in (g, -g, g + h):
        there = ForkingPickler.loads(ForkingPickler.dumps(graft))  # as `--jobs` sends it
        assert there == graft
        assert there.digest == graft.digest
        assert (there.region, there.region.scope, dict(there.info)) == (
            graft.region,
            graft.region.scope,
            dict(graft.info),
        )
        assert not any(array.flags.writeable for array in there.before.values())


SCOPE = Scope.of("all", {"w": (4,)})


def made(**rest) -> Graft:
    one = np.ones(2, np.float32)
    return Graft(Region(SCOPE, {"w": [0, 3]}), {"w": one}, {"w": 2 * one}, heads={"score.bias": one}, **rest)


@pytest.mark.parametrize("dtype", FORMATS.values(), ids=FORMATS)
@examples(30)
@given(data=st.data())
def test_every_array_is_read_only(dtype, data):
    g, h = data.draw(families(dtype, 2))
    for graft in (g, -g, g + h, g & h.region, g.outside(h.region)):
        for arrays in (graft.region.sites, graft.before, graft.change, graft.heads):
            for name, array in arrays.items():
                assert not array.flags.writeable
                with pytest.raises(TypeError, match="item assignment"):
                    arrays[name] = array


def test_loaded_arrays_are_read_only(tmp_path):
    save(made(), tmp_path / "g.safetensors")
    loaded = load(tmp_path / "g.safetensors")
    for arrays in (loaded.region.sites, loaded.before, loaded.change, loaded.heads):
        for array in arrays.values():
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 0


@pytest.mark.parametrize("attribute", [field.name for field in dataclasses.fields(Graft)])
def test_attributes_of_a_graft_cannot_be_set(attribute):
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(made(), attribute, None)


@pytest.mark.parametrize("attribute", ["scope", "sites", "_sites", "more"])
def test_attributes_of_a_region_cannot_be_set(attribute):
    with pytest.raises(AttributeError):
        setattr(Region(SCOPE, {}), attribute, None)


def test_scopes_cannot_be_changed():
    with pytest.raises(TypeError, match="item assignment"):
        SCOPE.shapes["w"] = (5,)
    with pytest.raises(dataclasses.FrozenInstanceError):
        SCOPE.label = "other"


@pytest.mark.parametrize("hidden", [False, True], ids=["plain", "behind a read-only view"])
def test_the_callers_arrays_are_not_aliased(hidden):
    at, before, after, head = np.array([0, 3], np.int32), *(np.ones((3, 2), np.float32))
    given = [at, before, after, head]
    if hidden:
        given = [array[:] for array in given]
        for array in given:
            array.flags.writeable = False
    graft = Graft(Region(SCOPE, {"w": given[0]}), {"w": given[1]}, {"w": given[2]}, heads={"score.bias": given[3]})
    digest = graft.digest
    for array in (at, before, after, head):
        array[:] = 2
    assert graft.region.sites["w"].tolist() == [0, 3]
    assert graft.before["w"].tolist() == graft.change["w"].tolist() == graft.heads["score.bias"].tolist() == [1, 1]
    assert dataclasses.replace(graft).digest == digest


def test_the_callers_mappings_are_not_aliased():
    shapes, sites = {"w": (4,)}, {"w": [1]}
    region = Region(Scope.of("all", shapes), sites)
    shapes["w"], sites["w"] = (1,), [0]
    assert region == Region(SCOPE, {"w": [1]})


def test_provenance_gives_out_copies():
    labels = ["bad", "good"]
    info = Info(labels=labels, scores={"accuracy": 0.5})
    labels.append("odd")
    info["labels"].append("odd")
    info["scores"]["accuracy"] = 1.0
    info.texts["task"] = "other"
    assert dict(info) == {"labels": ["bad", "good"], "scores": {"accuracy": 0.5}}
    with pytest.raises(TypeError):
        info["task"] = "other"


def test_frozen_copies_only_what_someone_can_write():
    own = np.arange(3)
    own.flags.writeable = False
    mapped = np.frombuffer(b"12345678", np.int32)
    assert frozen(own) is own
    assert frozen(mapped) is mapped
    for other in (np.arange(3), np.broadcast_to(np.arange(3), (2, 3)), np.frombuffer(bytearray(8), np.int32)):
        assert frozen(other) is not other
        assert not frozen(other).flags.writeable
