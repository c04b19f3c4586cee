"""The skills that a server holds, by name; and what a request picks among them.

    shelf = Shelf("minilm", engine, questions)
    await shelf.put("sst2", graft)              # refused if it does not fit the base; a graft of that name is replaced
    with shelf.pick("sst2+0.5*trec") as pick:   # what the request began with stays until the `with` ends
        pick.spec                               # keys of the bank with scales
    await shelf.delete("sst2")

The bank knows skills by keys of ours, a new one for each graft, so that a name that is given to another graft never changes what
is under way. Everything here runs on the server's thread; the bank and the model are touched on the model's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol, TypeVar

from skillgraft.errors import InputError, SkillgraftError
from skillgraft.serve import names
from skillgraft.serve.questions import Question, same_question
from skillgraft.serve.refusals import Refused, unknown_skill
from skillgraft.serve.work import Spec
from skillgraft.values.graft import Graft
from skillgraft.values.region import Region

T = TypeVar("T")


class Runner(Protocol):
    """The thread on which skills are added and removed."""

    def run(self, call: Callable[[], T]) -> Future[T]: ...


class SkillsBank(Protocol):
    """What the shelf needs of a bank."""

    def add(self, name: str, graft: Graft) -> None: ...

    def remove(self, name: str) -> None: ...


@dataclass(eq=False)
class HeldSkill:
    """A skill in memory. `why_not` says why it cannot classify; `uses` counts the requests under way."""

    name: str
    key: str
    digest: str
    region: Region
    facts: Mapping[str, Any]
    question: Question | None
    why_not: str
    origin: str
    retired: bool = False
    uses: int = 0


@dataclass(frozen=True)
class Pick:
    """What answers a request: held skills with their scales; none of them is the base."""

    model: str
    terms: tuple[tuple[HeldSkill, float], ...]

    @property
    def spec(self) -> Spec:
        return {held.key: scale for held, scale in self.terms} or None

    def made_by(self) -> list[dict[str, Any]]:
        """Which grafts, at which scales: what every answer says."""
        return [{"name": held.name, "scale": scale, "digest": held.digest} for held, scale in self.terms]

    @property
    def header(self) -> str:
        return ", ".join(f"{held.name};scale={scale:g};digest={held.digest}" for held, scale in self.terms) or "base"


@dataclass(eq=False)
class Shelf:
    """`ask` makes a graft's question, on the model's thread; `own` is what the base itself classifies, if it does.

    `has_head` says whether the model's classifier is the base's own, or random numbers until a graft brings one.
    """

    base: str
    engine: Runner
    bank: SkillsBank
    most: int
    ask: Callable[[Graft], Question]
    own: Question | None = None
    has_head: bool = True
    held: dict[str, HeldSkill] = field(default_factory=dict)
    _keys: Iterator[int] = field(default_factory=count)
    _changing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def put(self, name: str, graft: Graft, *, origin: str = "uploaded") -> bool:
        """Hold a graft under a name; whether the name is new. Refused where it does not fit, and nothing has changed then."""
        names.checked_name(name)
        if name == self.base:
            raise Refused(409, "name_taken", f"{name!r} is the base's own name; give the skill another one", "name")
        async with self._changing:
            if name not in self.held and len(self.held) >= self.most:
                raise Refused(
                    409, "too_many_skills", f"{self.most} skills are held, the most allowed; delete one first", "name"
                )
            held = await asyncio.wrap_future(self.engine.run(lambda: self._hold(name, graft, origin)))
            before = self.held.get(name)
            self.held[name] = held
            if before is not None:
                self._retire(before)
            return before is None

    async def delete(self, name: str) -> None:
        async with self._changing:
            if name not in self.held:
                raise unknown_skill(name, self.held, self.base)
            self._retire(self.held.pop(name))

    @contextmanager
    def pick(self, model: str, skills: Mapping[str, object] | None = None) -> Iterator[Pick]:
        """What a request names, held until it ends."""
        terms = self._terms(model, skills)
        unknown = next((name for name, _ in terms if name not in self.held), None)
        if unknown is not None:
            raise unknown_skill(unknown, self.held, self.base)
        pick = Pick(names.written(terms) or self.base, tuple((self.held[name], scale) for name, scale in terms))
        for held, _ in pick.terms:
            held.uses += 1
        try:
            yield pick
        finally:
            for held, _ in pick.terms:
                held.uses -= 1
                self._let_go(held)

    def question(self, pick: Pick, task: str | None) -> Question:
        """What a picked model is asked: the question of its skills, or of the skill that the request names."""
        if task is not None:
            if task not in self.held:
                raise unknown_skill(task, self.held, self.base)
            return self._reads_its_head(_question(self.held[task]), task, pick)
        if pick.terms:
            return same_question([held.name for held, _ in pick.terms], [_question(held) for held, _ in pick.terms])
        if self.own is None:
            raise Refused(
                400, "no_classifier",
                f"{self.base!r} classifies nothing by itself; name in 'task' the skill whose question it is to answer", "task",
            )  # fmt: skip
        return self.own

    def _reads_its_head(self, question: Question, task: str, pick: Pick) -> Question:
        """A classifier's question is answered by the classifier that was made for it, never by another one."""
        if question.reader != "linear" or any(held.name == task for held, _ in pick.terms):
            return question
        if self.held[task].facts["heads"] or any(held.facts["heads"] for held, _ in pick.terms) or not self.has_head:
            raise Refused(
                400, "no_classifier",
                f"{task!r} is read off a classifier that {pick.model!r} does not have; add {task!r} to the sum", "task",
            )  # fmt: skip
        return question

    def _terms(self, model: str, skills: Mapping[str, object] | None) -> names.Terms:
        if skills is None:
            return () if model == self.base else names.parse(model)
        if model != self.base:
            raise Refused(400, "two_ways", f"'skills' goes with the base's name in 'model', {self.base!r}", "skills")
        return names.from_mapping(skills)

    def _hold(self, name: str, graft: Graft, origin: str) -> HeldSkill:
        """On the model's thread."""
        key = f"{next(self._keys)}:{name}"
        try:
            self.bank.add(key, graft)
        except SkillgraftError as error:  # the bank names its key, which nobody else knows
            raise type(error)(str(error).replace(repr(key), repr(name))) from None
        question, why_not = None, ""
        try:
            question = self.ask(graft)
        except SkillgraftError as error:
            why_not = str(error)
        facts = _facts(graft)
        return HeldSkill(name, key, graft.digest, graft.region, facts, question, why_not, origin)

    def _retire(self, held: HeldSkill) -> None:
        held.retired = True
        self._let_go(held)

    def _let_go(self, held: HeldSkill) -> None:
        if held.retired and not held.uses:
            held.uses = -1  # once
            self.engine.run(lambda: self.bank.remove(held.key))


def _question(held: HeldSkill) -> Question:
    if held.question is None:
        raise Refused(400, "cannot_classify", f"{held.name!r} cannot classify: {held.why_not}", "model")
    return held.question


def _facts(graft: Graft) -> dict[str, Any]:
    """What is shown of a graft; its file may hold any text, so only short ones of known items are kept."""
    made = {key: str(graft.info[key])[:200] for key in ("task", "method", "base") if key in graft.info}
    return {
        "entries": len(graft),
        "density": graft.region.density,
        "scale": graft.scale,
        "form": graft.form,
        "heads": sorted(graft.heads)[:20],
        **made,
    }


def refusal_of(error: Exception) -> Refused:
    """Any error as the answer that a client gets: our own with their words, others without theirs."""
    if isinstance(error, Refused):
        return error
    if isinstance(error, InputError):
        return Refused(422, "graft_refused", str(error))
    return Refused(500, "internal_error", "the server failed to answer; its log says why")
