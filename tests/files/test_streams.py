"""Grafts read and written stretch by stretch: the same values and bytes as in memory, whatever the windows, packed or not."""

from __future__ import annotations

from functools import reduce
from operator import or_
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skillgraft import Graft, Region, Scope, combine, total
from skillgraft.compose.rules import RULES, combined
from skillgraft.errors import FormatError, InputError, WrongBase
from skillgraft.files import graft_file
from skillgraft.files.graft_stream import open_stream, save_stream
from skillgraft.folders.apply import apply, check, remove
from skillgraft.folders.checkpoint import MemoryTensors
from skillgraft.folders.compare import compare
from skillgraft.folders.extract import extract, extracted
from skillgraft.values import stream as streams
from skillgraft.values.joining import restricted, share_entries
from skillgraft.values.numbers import FLOATS

from ..laws.test_surgery import folder_with, same_tensors

SCOPE = Scope.of("all", {"v": (3,), "w": (10, 7)})
fast = settings(max_examples=25, deadline=None)


@pytest.fixture(autouse=True)
def narrow_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of 16 entries, so that a small parameter has several."""
    monkeypatch.setattr(streams, "STRETCH", 16)


def arrays(seed: int, dtype: np.dtype = np.dtype(np.float32), *, spread: float = 1.0) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    return {name: (spread * draw.normal(size=shape)).astype(dtype) for name, shape in SCOPE.shapes.items()}


def graft(seed: int, *, share: float = 0.5, dtype: np.dtype = np.dtype(np.float32), scale: float = 1.0) -> Graft:
    """Some entries of one base, as many as `share` says."""
    draw, base = np.random.default_rng(seed), arrays(0, dtype)
    tuned = {name: (array + draw.normal(size=array.shape)).astype(dtype) for name, array in base.items()}
    sites = {name: np.flatnonzero(draw.random(array.size) < share) for name, array in base.items()}
    return scale * Graft.between(base, tuned, Region(SCOPE, sites), base_fingerprint="0" * 64)


grafts = st.builds(
    graft, st.integers(1, 50), share=st.sampled_from([0.0, 0.02, 0.5, 1.0]), scale=st.sampled_from([1.0, -2.0])
)
several = st.lists(grafts, min_size=1, max_size=3)


@fast
@given(grafts)
def test_a_stream_is_its_graft(g: Graft) -> None:
    assert Graft.collected(g.stream()) == g
    assert g.stream().digest == g.digest
    half = Region(SCOPE, {"w": range(0, 70, 2)})
    assert Graft.collected(restricted(g.stream(), half)) == g & half
    assert Graft.collected(restricted(g.stream(), half, inside=False)) == g.outside(half)


@fast
@given(g=grafts)
def test_files_by_streams_are_files_of_values(g: Graft, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("files")
    whole, by_stream = folder / "a.safetensors", folder / "b.safetensors"
    graft_file.save(g, whole)
    save_stream(g.stream(), by_stream)
    assert whole.read_bytes() == by_stream.read_bytes()
    assert Graft.collected(open_stream(whole)) == g
    assert open_stream(whole).describe() == g.describe()


@fast
@given(several)
def test_a_sum_of_streams_is_the_sum(given_grafts: list[Graft]) -> None:
    assert Graft.collected(combined([g.stream() for g in given_grafts])) == total(given_grafts)


@pytest.mark.parametrize("rule", sorted(RULES))
@pytest.mark.parametrize("options", [{}, {"trim": "tensor"}], ids=["", "tensor"])
def test_rules_do_not_see_windows(
    rule: str, options: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In narrow windows, through files and with sizes counted in classes, each rule gives what it gives in one piece."""
    if options and rule != "ties":
        pytest.skip("an option of ties")
    if rule == "union":
        options = {"conflict": "largest"}
    given_grafts = [graft(seed, share=share) for seed, share in ((1, 0.5), (2, 1.0), (3, 0.05))]
    files = []
    for place, g in enumerate(given_grafts):
        files.append(tmp_path / f"{place}.safetensors")
        graft_file.save(g, files[-1])
    seeds = [int(g.stream().digest, 16) for g in given_grafts]
    monkeypatch.setattr("skillgraft.compose.thinning._GATHERED", 1)
    narrow = combine(files, rule=rule, **options)
    monkeypatch.setattr(streams, "STRETCH", 1 << 18)
    monkeypatch.setattr("skillgraft.compose.thinning._GATHERED", 1 << 21)
    if rule in ("dare", "della"):  # the windows are part of a digest, and it of the draw
        assert len(narrow) <= len(total(given_grafts))
        assert seeds != [int(g.stream().digest, 16) for g in given_grafts]
        return
    assert narrow == combine(given_grafts, rule=rule, **options)


@pytest.mark.parametrize("shares", [(0.97, 0.95), (0.97, 0.4), (0.4, 0.97, 0.02), (1.0, 0.97)], ids=str)
def test_nearly_full_windows_are_joined_in_every_form(
    shares: tuple[float, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Windows whose sites are a mask, positions, or all of them, with each other."""
    monkeypatch.setattr(streams, "STRETCH", 64)
    rng, shapes = np.random.default_rng(0), {"w": (1000,)}
    base, given_grafts = {"w": rng.standard_normal(1000).astype(np.float32)}, []
    for share in shares:
        sites = np.flatnonzero(rng.random(1000) < share)
        tuned = {"w": base["w"] + rng.standard_normal(1000).astype(np.float32)}
        region = Region(Scope.of("all", shapes), {"w": sites})
        given_grafts.append(Graft.between(base, tuned, region, base_fingerprint="0" * 64))
        given_grafts[-1].save(tmp_path / f"{share}.safetensors")
    wanted = sum(g.delta("w").astype(np.float64) @ np.eye(1000)[g.region.sites["w"]] for g in given_grafts)
    for found in (
        Graft.collected(combined([g.stream() for g in given_grafts])),
        combine([tmp_path / f"{share}.safetensors" for share in shares]),
    ):
        assert found.region == reduce(or_, (g.region for g in given_grafts))
        np.testing.assert_allclose(found.delta("w"), wanted[found.region.sites["w"]], rtol=1e-6)


def test_ties_trimmed_by_tensor() -> None:
    """Each parameter keeps its own share, however small its changes are beside another's."""
    base = {name: np.zeros(shape, np.float32) for name, shape in SCOPE.shapes.items()}
    tuned = {"v": np.float32([1, -2, 3]) * 1e-6, "w": np.arange(70, dtype=np.float32).reshape(10, 7)}
    g = Graft.between(base, tuned, Region.full(SCOPE))
    assert "v" not in combine([g], rule="ties", keep=1 / 3).region
    kept = combine([g], rule="ties", keep=1 / 3, trim="tensor")
    assert kept.region.sites["v"].tolist() == [2]
    assert kept.region.sites["w"].tolist() == list(range(70 - round(70 / 3), 70))
    with pytest.raises(InputError, match="unknown trim 'tensors'; did you mean 'tensor'"):
        combine([g], rule="ties", trim="tensors")


@fast
@given(grafts, grafts)
def test_compared_side_by_side(g: Graft, h: Graft) -> None:
    facts = compare({"g": g, "h": h})
    assert facts["coverage"][0][1] == g.region.coverage(of=h.region)
    assert facts["jaccard"][0][1] == facts["jaccard"][1][0] == g.region.jaccard(h.region)
    assert facts["cosine"][0][1] == pytest.approx(g.cosine(h))
    assert share_entries(g.stream(), h.stream()) != g.region.isdisjoint(h.region)


def folders(root: Path, dtype: np.dtype, *, share: float) -> tuple[Path, Path]:
    draw, before = np.random.default_rng(5), arrays(0, dtype)
    names = {"v": "encoder.layer.0.bias", "w": "encoder.layer.0.query.weight"}
    after = {}
    for name, array in before.items():
        moved = draw.random(array.shape) < share
        after[name] = np.where(moved, (array.astype(np.float64) * 1.01).astype(dtype), array)
    base = folder_with(root / "base", {names[name]: array for name, array in before.items()})
    return base, folder_with(root / "tuned", {names[name]: array for name, array in after.items()})


@pytest.mark.parametrize("dtype", FLOATS.values(), ids=FLOATS)
@pytest.mark.parametrize("share", [0.1, 0.9])
@pytest.mark.parametrize("pack", [False, True], ids=["whole", "packed"])
def test_extracted_applied_and_removed(dtype: np.dtype, share: float, pack: bool, tmp_path: Path) -> None:
    base, tuned = folders(tmp_path, dtype, share=share)
    file = tmp_path / "skill.safetensors"
    save_stream(extracted(base, tuned), file, pack=pack)
    in_memory = extract(base, tuned)
    stream = open_stream(file)
    assert (stream.digest, len(stream)) == (in_memory.digest, len(in_memory))
    assert check(base, file).fits
    assert not check(tuned, file).fits
    apply(base, file, out=tmp_path / "on")
    assert same_tensors(tmp_path / "on", tuned)
    remove(tmp_path / "on", file, out=tmp_path / "off")
    for each in base.iterdir():
        assert (tmp_path / "off" / each.name).read_bytes() == each.read_bytes()
    if pack:
        remove(tmp_path / "on", in_memory, out=tmp_path / "off again")
        apply(base, in_memory, out=tmp_path / "on again")
        remove(tmp_path / "on again", file, out=tmp_path / "off as well")


def packed(root: Path) -> tuple[Path, Path, Path]:
    base, tuned = folders(root, np.dtype(np.float32), share=0.5)
    save_stream(extracted(base, tuned), root / "p.safetensors", pack=True)
    return base, tuned, root / "p.safetensors"


def test_a_packed_graft_needs_its_base(tmp_path: Path) -> None:
    base, tuned, file = packed(tmp_path)
    stream = open_stream(file)
    assert Graft.collected(stream.based(MemoryTensors(dict(_tensors(base))))) == extract(base, tuned)
    with pytest.raises(InputError, match=r"is packed: it holds no numbers of its own, .*--base BASE"):
        combine([file])
    with pytest.raises(FormatError, match=r"packed \(format version 2\)"):
        Graft.load(file)
    facts = stream.describe()
    assert (facts["packed"], facts["norm"], facts["digest"]) == (True, None, extract(base, tuned).digest)
    other = tmp_path / "other"
    numbers = dict(_tensors(base))
    query = "encoder.layer.0.query.weight"
    at = np.flatnonzero(numbers[query] != dict(_tensors(tuned))[query])
    changed = numbers[query].copy()
    changed.reshape(-1)[at[0]] += 1
    folder_with(other, {**numbers, query: changed})
    with pytest.raises(WrongBase, match=rf"p.safetensors was made for another base: its numbers in {query}"):
        apply(other, file, out=tmp_path / "no")
    assert not (tmp_path / "no").exists()


def test_packed_and_scaled_comes_off_unpacked_alone(tmp_path: Path) -> None:
    base, tuned, file = packed(tmp_path)
    apply(base, file, out=tmp_path / "on", scale=0.5)
    with pytest.raises(InputError, match=r"p.safetensors is packed, and came on .* scaled or as a part of a sum"):
        remove(tmp_path / "on", file, out=tmp_path / "off")
    remove(tmp_path / "on", extract(base, tuned), out=tmp_path / "off")
    assert same_tensors(tmp_path / "off", base)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (graft(1, scale=2.0), "exact form at scale 2"),
        (graft(1) + graft(2), "arithmetic form"),
        (graft(1) - 0 * graft(1), "arithmetic form"),
    ],
)
def test_what_cannot_be_packed(wrong: Graft, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        save_stream(wrong.stream(), tmp_path / "p", pack=True)
    assert list(tmp_path.iterdir()) == []


def test_entries_that_did_not_change_are_not_packed(tmp_path: Path) -> None:
    still = Graft.between(arrays(0), arrays(0), Region(SCOPE, {"v": [1]}))
    with pytest.raises(InputError, match="1 entries of the graft did not change"):
        save_stream(still.stream(), tmp_path / "p", pack=True)
    assert list(tmp_path.iterdir()) == []


def _tensors(folder: Path) -> list[tuple[str, np.ndarray]]:
    from skillgraft.folders.checkpoint import Checkpoint

    source = Checkpoint.open(folder)
    return [(name, source.read(name)) for name in source.shapes]
