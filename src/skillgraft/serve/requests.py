"""What clients ask, read field by field: a body becomes a value, or a refusal that names the field.

    ask = completion(parse_body(b'{"model": "sst2", "prompt": "Hello"}'), limits)

A field that this server does not know is refused, and so is one that it knows and cannot honour: nothing is passed over. Fields
that change no answer (`user`, `metadata` …) are accepted.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from skillgraft.errors import did_you_mean
from skillgraft.serve.limits import Limits
from skillgraft.serve.refusals import Refused, shown, wrong
from skillgraft.serve.sampling import Sampling
from skillgraft.values import strict_json

Body = Mapping[str, Any]
TextOrIds = str | tuple[int, ...]
_WHO = ("model", "skills")
_HARMLESS = ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key")
# What OpenAI's clients may send, and the values at which it asks for nothing: any other value is refused.
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "best_of": (None, 1),
    "echo": (None, False),
    "suffix": (None, ""),
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
    "logit_bias": (None, {}),
    "tools": (None, []),
    "functions": (None, []),
    "tool_choice": (None, "none"),
    "function_call": (None, "none"),
    "parallel_tool_calls": (None, True, False),
    "response_format": (None, {"type": "text"}),
    "modalities": (None, ["text"]),
    "audio": (None,),
    "prediction": (None,),
    "reasoning_effort": (None,),
    "verbosity": (None,),
    "web_search_options": (None,),
}
_WRITING = (
    "max_tokens", "max_completion_tokens", "temperature", "top_p", "n", "stream", "stream_options", "stop", "seed",
    "logprobs",
)  # fmt: skip
_MOST_STOPS, _LONGEST_STOP = 16, 200
_ROLES = ("system", "developer", "user", "assistant")


@dataclass(frozen=True)
class Writing:
    """A request for text. `prompts` for completions, `messages` for a chat; `most` None is as much as there is room."""

    model: str
    skills: Mapping[str, object] | None
    prompts: tuple[TextOrIds, ...]
    messages: tuple[Mapping[str, str], ...]
    sampling: Sampling
    most: int | None
    stop: tuple[str, ...]
    n: int
    stream: bool
    usage: bool


@dataclass(frozen=True)
class Reading:
    """A request for embeddings or labels."""

    model: str
    skills: Mapping[str, object] | None
    inputs: tuple[Any, ...]
    is_list: bool
    task: str | None = None
    base64: bool = False


def parse_body(raw: bytes) -> Body:
    """The JSON object of a request."""
    try:
        body = strict_json.parse(raw.decode("utf-8"))
    except ValueError as error:
        raise Refused(400, "invalid_json", f"the body is not JSON: {str(error)[:200]}") from None
    if not isinstance(body, dict):
        raise Refused(400, "invalid_json", f"the body must be a JSON object; found {shown(body)}")
    return body


def completion(body: Body, limits: Limits) -> Writing:
    """POST /v1/completions."""
    _only(body, (*_WHO, "prompt", *_WRITING))
    prompts = _inputs(body, "prompt", limits)
    tops = _whole(body, "logprobs", None, 0, 5)
    most = _most(body, limits)
    return _writing(body, limits, prompts=prompts, top_logprobs=tops, most=16 if most is None else most)


def chat(body: Body, limits: Limits) -> Writing:
    """POST /v1/chat/completions."""
    _only(body, (*_WHO, "messages", "top_logprobs", *_WRITING))
    given = _flag(body, "logprobs")
    tops = _whole(body, "top_logprobs", None, 0, 20)
    if tops is not None and not given:
        raise Refused(400, "invalid_value", "'top_logprobs' needs 'logprobs': true", "top_logprobs")
    top_logprobs = (tops or 0) if given else None
    return _writing(body, limits, messages=_messages(body), top_logprobs=top_logprobs, most=_most(body, limits))


def embeddings(body: Body, limits: Limits) -> Reading:
    """POST /v1/embeddings."""
    _only(body, (*_WHO, "input", "encoding_format", "dimensions"))
    coding = body.get("encoding_format", "float")
    if coding not in ("float", "base64"):
        raise wrong("encoding_format", "'float' or 'base64'", coding)
    if body.get("dimensions") is not None:
        raise Refused(400, "unsupported", "'dimensions' cannot be chosen: an encoder has its own width", "dimensions")
    inputs = _inputs(body, "input", limits)
    return Reading(_model(body), _skills(body), inputs, is_list=True, base64=coding == "base64")


def classification(body: Body, limits: Limits) -> Reading:
    """POST /v1/classify: one text or many; a row of several fields is an object of texts."""
    _only(body, (*_WHO, "input", "task"))
    given = body.get("input")
    inputs = given if isinstance(given, list) else [given]
    _count(inputs, "input", limits)
    for item in inputs:
        if isinstance(item, dict) and item:
            for name, text in item.items():
                _text(text, f"input.{name}"[:60])
        else:
            _text(item, "input")
    task = body.get("task")
    if task is not None:
        _text(task, "task")
    return Reading(_model(body), _skills(body), tuple(inputs), is_list=isinstance(given, list), task=task)


def _writing(
    body: Body,
    limits: Limits,
    *,
    top_logprobs: int | None,
    most: int | None,
    prompts: tuple[TextOrIds, ...] = (),
    messages: tuple[Mapping[str, str], ...] = (),
) -> Writing:
    n = _whole(body, "n", 1, 1, limits.input_rows) or 1
    if n * max(1, len(prompts)) > limits.input_rows:
        raise Refused(400, "too_many_rows", f"'n' times prompts is at most {limits.input_rows}", "n")
    sampling = Sampling(
        temperature=_number(body, "temperature", 1.0, 0.0, 2.0),
        top_p=_number(body, "top_p", 1.0, 0.0, 1.0),
        seed=_whole(body, "seed", None, -(2**63), 2**63 - 1),
        top_logprobs=top_logprobs,
    )
    options = body.get("stream_options") or {}
    if not isinstance(options, dict) or set(options) - {"include_usage", "include_obfuscation"}:
        raise wrong("stream_options", "an object with include_usage", options)
    stream = _flag(body, "stream")
    usage = stream and _flag(options, "include_usage")
    return Writing(_model(body), _skills(body), prompts, messages, sampling, most, _stops(body), n, stream, usage)


def _only(body: Body, known: Collection[str]) -> None:
    for name, value in body.items():
        if name in known or name in _HARMLESS:
            continue
        if name not in _NEUTRAL:
            raise Refused(
                400,
                "unknown_field",
                f"unknown field {shown(name)}; {did_you_mean(name[:60], sorted(known))}",
                name[:60],
            )
        if value not in _NEUTRAL[name]:
            raise Refused(400, "unsupported", f"{name!r} is not supported; leave it out", name)


def _model(body: Body) -> str:
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise wrong("model", "the name of the base, of a skill or of a sum of skills", model)
    return model


def _skills(body: Body) -> Mapping[str, object] | None:
    skills = body.get("skills")
    if skills is not None and not isinstance(skills, dict):
        raise wrong("skills", "an object of skill names and scales", skills)
    return skills


def _inputs(body: Body, key: str, limits: Limits) -> tuple[TextOrIds, ...]:
    """One text or many; token ids as one list or many."""
    given = body.get(key)
    if isinstance(given, str) or (isinstance(given, list) and given and all(_is_id(each) for each in given)):
        given = [given]
    if not isinstance(given, list):
        raise wrong(key, "a text, a list of texts, or token ids", given)
    _count(given, key, limits)
    return tuple(_text_or_ids(each, key) for each in given)


def _text_or_ids(value: Any, key: str) -> TextOrIds:
    if isinstance(value, list) and value and all(_is_id(each) for each in value):
        return tuple(value)
    return _text(value, key)


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _count(inputs: Sequence[Any], key: str, limits: Limits) -> None:
    if not inputs:
        raise wrong(key, "at least one text", inputs)
    if len(inputs) > limits.input_rows:
        raise Refused(
            400, "too_many_rows", f"{key!r} has {len(inputs)} rows; at most {limits.input_rows} a request", key
        )


def _text(value: Any, key: str) -> str:
    if not isinstance(value, str):
        raise wrong(key, "a text", value)
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise Refused(400, "invalid_value", f"{key!r} has half a character (a lone surrogate)", key) from None
    return value


def _messages(body: Body) -> tuple[Mapping[str, str], ...]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise wrong("messages", "a list of {role, content}", messages)
    return tuple(_message(each) for each in messages)


def _message(message: Any) -> Mapping[str, str]:
    if not isinstance(message, dict) or set(message) - {"role", "content", "name", "refusal"}:
        raise wrong("messages", "objects of role and content alone", message)
    role, content = message.get("role"), message.get("content")
    if role not in _ROLES:
        raise wrong("messages.role", f"one of {', '.join(_ROLES)}", role)
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    texts = []
    for part in parts:
        if not isinstance(part, dict) or part.get("type") != "text":
            raise wrong("messages.content", "a text, or parts of type 'text'", part)
        texts.append(_text(part.get("text"), "messages.content"))
    return {"role": "system" if role == "developer" else role, "content": "".join(texts)}


def _most(body: Body, limits: Limits) -> int | None:
    given = [key for key in ("max_tokens", "max_completion_tokens") if body.get(key) is not None]
    if len(given) > 1:
        raise Refused(400, "invalid_value", "give 'max_completion_tokens' or 'max_tokens', not both", given[0])
    return _whole(body, given[0], None, 1, limits.new_tokens) if given else None


def _stops(body: Body) -> tuple[str, ...]:
    stop = body.get("stop")
    stops = [stop] if isinstance(stop, str) else [] if stop is None else stop
    if not isinstance(stops, list) or len(stops) > _MOST_STOPS:
        raise wrong("stop", f"a text or at most {_MOST_STOPS} texts", stop)
    for each in stops:
        if not 0 < len(_text(each, "stop")) <= _LONGEST_STOP:
            raise wrong("stop", f"texts of 1 to {_LONGEST_STOP} characters", each)
    return tuple(stops)


def _flag(body: Body, key: str) -> bool:
    value = body.get(key)
    if value is not None and not isinstance(value, bool):
        raise wrong(key, "true or false", value)
    return bool(value)


def _number(body: Body, key: str, default: float, low: float, high: float) -> float:
    value = body.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise wrong(key, f"a number from {low:g} to {high:g}", value)
    return float(value)


def _whole(body: Body, key: str, default: int | None, low: int, high: int) -> int | None:
    value = body.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise wrong(key, f"a whole number from {low} to {high}", value)
    return value
