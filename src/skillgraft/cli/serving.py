"""What `serve` and `studio` share: their options, and the start of the server."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from skillgraft.cli import output
from skillgraft.cli.arguments import DeviceName, FormatName, Json, ModelName
from skillgraft.errors import InputError, did_you_mean

ENGINES = ("own", "vllm")
Skills = Annotated[
    Path, typer.Option(metavar="DIR", help="Folder of graft files; each is a skill under its name. It is watched.")
]
Host = Annotated[str, typer.Option(help="Address to listen on. Any but loopback needs a key or --no-auth.")]
Port = Annotated[int, typer.Option(help="Port; 0 finds a free one.")]
Name = Annotated[str | None, typer.Option(help="What the base is called in requests; by default its folder's name.")]
ReadoutKind = Annotated[
    str,
    typer.Option(
        "--readout", help="causal, encoder-decoder, text-head, linear or masked; auto goes by base and skills."
    ),
]


EngineName = Annotated[str, typer.Option(help="own, or vllm: language models, each graft as its exact LoRA.")]
VllmPython = Annotated[
    Path | None, typer.Option("--vllm-python", metavar="FILE", help="The Python of the environment that vLLM is in.")
]
VllmOptions = Annotated[str, typer.Option("--vllm-options", help="More options for vLLM's own server, as one text.")]


def _limit(about: str) -> Any:
    return typer.Option(help=about, rich_help_panel="Limits")


def _access(name: str, about: str, **more: Any) -> Any:
    return typer.Option(name, help=about, rich_help_panel="Access", **more)


KeyFile = Annotated[
    Path | None,
    _access("--api-key", "File that holds the key (or SKILLGRAFT_API_KEY in the environment).", metavar="FILE"),
]
NoAuth = Annotated[bool, _access("--no-auth", "Let anybody ask who reaches the address.")]
AllowHost = Annotated[
    list[str] | None, _access("--allow-host", "A name by which this server may be called; may be repeated.")
]
AllowOrigin = Annotated[
    list[str] | None, _access("--allow-origin", "https://… whose pages may ask from a browser; may be repeated.")
]
BodyBytes = Annotated[int, _limit("Bytes of a request's JSON.")]
GraftBytes = Annotated[int, _limit("Bytes of a graft that is uploaded or found in the folder.")]
QueueRows = Annotated[int, _limit("Rows that may wait; more are refused with 429.")]
BatchRows = Annotated[int, _limit("Rows of one forward pass.")]
BatchTokens = Annotated[int, _limit("Tokens of one forward pass, padding included, and of a prompt with its answer.")]
InputRows = Annotated[int, _limit("Texts of one request.")]
NewTokens = Annotated[int, _limit("Tokens that are written for one answer.")]
Seconds = Annotated[float, _limit("Time of a request.")]
Held = Annotated[int, _limit("Skills held.")]


def verb(about: str, *, page: bool) -> Callable[..., None]:
    """The verb's function: `serve` and `studio` take the same options."""

    def run(
        base: ModelName,
        skills: Skills,
        host: Host = "127.0.0.1",
        port: Port = 8000,
        name: Name = None,
        readout: ReadoutKind = "auto",
        api_key: KeyFile = None,
        no_auth: NoAuth = False,
        allow_host: AllowHost = None,
        allow_origin: AllowOrigin = None,
        max_body_bytes: BodyBytes = 1_000_000,
        max_graft_bytes: GraftBytes = 256_000_000,
        max_queue_rows: QueueRows = 512,
        max_batch_rows: BatchRows = 32,
        max_batch_tokens: BatchTokens = 8192,
        max_input_rows: InputRows = 256,
        max_new_tokens: NewTokens = 1024,
        max_seconds: Seconds = 120.0,
        max_skills: Held = 1000,
        engine: EngineName = "own",
        vllm_python: VllmPython = None,
        vllm_options: VllmOptions = "",
        device: DeviceName = None,
        dtype: FormatName = None,
        json: Json = False,
    ) -> None:
        _serve(str(base), dict(locals()), page=page)

    run.__doc__ = about
    return run


def _serve(base: str, options: dict[str, Any], *, page: bool) -> None:
    """Check everything that can be checked before torch is imported, then serve until told to stop."""
    from skillgraft.serve.guard import KEY_VARIABLE, Guard, read_key
    from skillgraft.serve.limits import Limits
    from skillgraft.serve.running import Settings, check_installed, listening, run
    from skillgraft.serve.watching import stamps

    check_installed()
    if not 0 <= options["port"] < 65536:
        raise InputError(f"--port is a number from 0 to 65535; found {options['port']}")
    limits = Limits(**{key.removeprefix("max_"): options[key] for key in options if key.startswith("max_")})
    key = read_key(options["api_key"], os.environ.get(KEY_VARIABLE))
    guard = Guard.of(
        options["host"], key=key, no_auth=options["no_auth"], allowed_hosts=options["allow_host"] or (),
        origins=options["allow_origin"] or (),
    )  # fmt: skip
    stamps(options["skills"])
    vllm = _vllm_python(options["engine"], options["vllm_python"], page=page)
    if Path(base).exists() and not Path(base).is_dir() and Path(base).suffix != ".gguf":
        raise InputError(f"{base} is no model folder; expected a folder with config.json and model.safetensors")
    settings = Settings(
        base, options["skills"], guard, limits, name=options["name"], readout=options["readout"],
        dtype=options["dtype"], device=options["device"], page=page, vllm=vllm,
        vllm_options=tuple(shlex.split(options["vllm_options"])),
    )  # fmt: skip
    with listening(options["host"], options["port"]) as socket, output.plain_log():
        output.only_our_progress()
        run(settings, socket, on_ready=lambda facts: _ready(facts, page=page, as_json=options["json"]))


def _vllm_python(engine: str, python: Path | None, *, page: bool) -> Path | None:
    """The Python to start vLLM with; None where our own engine answers."""
    if engine not in ENGINES:
        raise InputError(f"unknown engine {engine!r}: {did_you_mean(engine, ENGINES)}")
    if engine == "own":
        if python is not None:
            raise InputError("--vllm-python goes with --engine vllm")
        return None
    if page:
        raise InputError("the studio runs on our own engine: leave --engine out")
    if python is None and not find_spec("vllm"):
        raise InputError("vLLM is not installed here: give the Python of its environment with --vllm-python")
    return python or Path(sys.executable)


def _ready(facts: dict[str, Any], *, page: bool, as_json: bool) -> None:
    skills = ", ".join(facts["skills"]) or "no skill yet"
    lines = [f"{facts['base']} with {skills}", f"{'open' if page else 'listening on'} {facts['url']}   (Ctrl-C stops)"]
    output.show(
        {key: facts[key] for key in ("url", "base", "writes", "skills", "refused")}, as_json=as_json, lines=lines
    )
    sys.stdout.flush()
