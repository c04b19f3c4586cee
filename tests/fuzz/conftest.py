"""`refused`: how a refusal is tested."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from skillgraft.errors import FormatError
from skillgraft.files.graft_file import load

from ..golden.make_golden import HERE as GOLDEN
from .raw_file import Change, RawFile


@pytest.fixture
def refused(tmp_path) -> Callable[..., None]:
    """Change a golden file, then expect that loading it says `message`, with the file's name in front, and quickly."""

    def check(change: Change, message: str, *, golden: str = "exact", read=load) -> None:
        raw = RawFile.read(GOLDEN / f"{golden}.safetensors")
        made = change(raw)
        path = tmp_path / "g.safetensors"
        path.write_bytes(made if isinstance(made, bytes) else raw.content())
        started = time.process_time()
        with pytest.raises(FormatError, match=message) as caught:
            read(path)
        assert time.process_time() - started < 1
        assert str(caught.value).startswith(f"{path}: ")
        assert len(str(caught.value)) < 1000

    return check
