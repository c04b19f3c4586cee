"""`skillgraft serve` as a process: it refuses early, says when it is ready, and finishes what is under way when it is stopped."""

from __future__ import annotations

import importlib.util
import json
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx2 as httpx
import pytest

from tests.running import runner, start

from .serving import films, skill, write_skills

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--skills", "none"), 2, "none: expected a folder of graft files"),
        (("--skills", ".", "--port", "70000"), 2, "from 0 to 65535"),
        (("--skills", ".", "--host", "0.0.0.0"), 2, "--no-auth"),
        (("--skills", ".", "--api-key", "none"), 2, "expected a text file that holds the key"),
        (("--skills", ".", "--max-seconds", "0"), 2, "--max-seconds must be above 0"),
        (("--skills", ".", "--host", "300.1.1.1", "--no-auth"), 2, "cannot listen on 300.1.1.1"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_before_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...], code: int, message: str,
) -> None:  # fmt: skip
    monkeypatch.delenv("SKILLGRAFT_API_KEY", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)  # importing it would fail
    for verb in ("serve", "studio"):
        ended = runner(tmp_path, monkeypatch, capsys)(verb, "BASE", *words)
        assert ended.code == code, ended
        assert message in ended.err


def test_without_the_extra_one_line_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from skillgraft.serve import running

    monkeypatch.setattr(running, "find_spec", lambda name: None if name == "uvicorn" else object())
    ended = runner(tmp_path, monkeypatch, capsys)("serve", "BASE", "--skills", ".")
    assert (ended.code, ended.err) == (2, f"error: {running.EXTRA}\n")


@contextmanager
def served(folder: Path, base: Path, *words: str) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The process and what it printed when it was ready."""
    process = start(folder, "serve", base, "--skills", "skills", "--port", "0", "--json", *words)
    try:
        assert process.stdout is not None
        yield process, json.loads(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_under_load_finishes_what_is_under_way(
    writer_base: Path, tmp_path: Path, number: signal.Signals
) -> None:
    write_skills(tmp_path / "skills", {"bash": skill(writer_base, 1)})
    with served(tmp_path, writer_base, "--name", "tiny") as (process, facts):
        assert (facts["base"], facts["writes"], facts["skills"], facts["refused"]) == ("tiny", True, ["bash"], {})
        answers: list[httpx.Response] = []

        def ask() -> None:
            body = {"model": "bash", "prompt": "the", "max_tokens": 200, "temperature": 0}
            answers.append(httpx.post(f"{facts['url']}/v1/completions", json=body, timeout=60))

        threads = [threading.Thread(target=ask) for _ in range(6)]
        for thread in threads:
            thread.start()
        while "skillgraft_writing_rows 6" not in httpx.get(f"{facts['url']}/metrics").text:
            time.sleep(0.01)
        process.send_signal(number)
        for thread in threads:
            thread.join(60)
        assert [answer.json()["usage"]["completion_tokens"] for answer in answers] == [200] * 6
        assert process.wait(30) == 0
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{facts['url']}/health")


@pytest.mark.long
def test_load_and_faults(
    encoder_base: Path, writer_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """benchmarks/serve_faults.py for some seconds on tiny bases: labels and texts."""
    faults = _faults(monkeypatch)
    monkeypatch.setattr(faults, "INFO", films(encoder_base, 0).info)
    for base in (encoder_base, writer_base):
        work = tmp_path / base.parent.name
        work.mkdir()
        seen, summary = faults.run(base, work, seconds=12, size=0.5, log=work / "log.txt")
        assert summary["wrong"] == []
        assert summary["log"] == []
        assert seen.answers["exit code 0"] == 1
        assert seen.answers["right"] > 50
        assert seen.answers["tie"] <= seen.answers["right"] // 20


def _faults(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    spec = importlib.util.spec_from_file_location("serve_faults", ROOT / "benchmarks" / "serve_faults.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "serve_faults", module)
    spec.loader.exec_module(module)
    return module
