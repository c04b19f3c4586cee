"""SentenceTransformer: a folder with its pooling still works after `apply`, and a live one takes grafts."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from skillgraft import apply, extract, grafted
from tests.families.architectures import FAMILIES, tuned, write

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]
TEXTS = ["a film", "another longer film"]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A tiny encoder as sentence-transformers saves one: pooling and normalisation beside it."""
    folder = write(FAMILIES["bert"], tmp_path / "base", "float32")
    config = json.loads((folder / "config.json").read_text())
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    rows = [
        {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for n, (path, kind) in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(rows))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 32, "do_lower_case": False}))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": config["hidden_size"], "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


def test_the_applied_folder_and_the_live_model_embed_the_same(base: Path, tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    g = extract(base, tuned(base, tmp_path / "tuned"), scope="layers")
    apply(base, g, out=tmp_path / "on")
    live = library.SentenceTransformer(str(base), device="cpu")
    before = live.encode(TEXTS)
    wanted = library.SentenceTransformer(str(tmp_path / "on"), device="cpu").encode(TEXTS)
    assert np.allclose(np.linalg.norm(wanted, axis=1), 1, atol=1e-5)  # its pooling and normalisation came along
    with grafted(live, g):
        assert (live.encode(TEXTS) == wanted).all()
    assert (live.encode(TEXTS) == before).all()
    assert not np.allclose(before, wanted, atol=1e-3)
