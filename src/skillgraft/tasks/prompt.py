"""Prompts as data: a template is parsed once, checked once, and filled for every row.

`"{a|strip_punct}? {mask}, {b|lower_first}"` is literal text, fields with filters, and the mask. A name or filter that does
not exist is refused when the template is parsed, never while a model runs. `{{` and `}}` stand for the braces themselves;
a filter's argument follows its colon and holds neither `|` nor braces.

    Template.parse("{text} It was {mask}.", texts=("text",)).render({"text": "Fine film."}, mask="<mask>")
"""

from __future__ import annotations

import re
import string
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from skillgraft.errors import InputError, did_you_mean


class Tokenizer(Protocol):
    """Any fast tokenizer of transformers: a call gives `input_ids` and, on request, `offset_mapping`."""

    def __call__(self, text: str, /, **options: Any) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class Piece:
    """A field's text on its way into a template. Choices give way last: an answer that is not shown cannot be chosen."""

    text: str
    is_list: bool = False


def cut_to(text: str, tokenizer: Tokenizer, tokens: int) -> str:
    """`text` itself if it has at most so many tokens, else its beginning."""
    return _cut(text, _starts(text, tokenizer), tokens)


def fit_pieces(
    pieces: Sequence[Piece], joined: Callable[[Sequence[str]], str], tokenizer: Tokenizer, *, max_length: int
) -> str:
    """`joined` of the texts, cut until it has at most `max_length` tokens.

    Tokens can merge across borders, so the count is taken again after each cut; every round shortens some text, so it ends.
    """
    whole = joined([piece.text for piece in pieces])
    while (length := len(tokenizer(whole, verbose=False)["input_ids"])) > max_length:
        if not any(piece.text for piece in pieces):
            raise InputError(
                f"the template alone takes {length} tokens, but max_length is {max_length}: "
                f"shorten the template or raise max_length: {whole!r}"
            )
        pieces = _shortened(pieces, tokenizer, length - max_length)
        whole = joined([piece.text for piece in pieces])
    return whole


def _shortened(pieces: Sequence[Piece], tokenizer: Tokenizer, excess: int) -> list[Piece]:
    starts = [_starts(piece.text, tokenizer) for piece in pieces]
    # A text may have no token of its own and still cost one inside the whole: any text counts as at least one.
    lengths = [max(1, len(found)) if piece.text else 0 for piece, found in zip(pieces, starts, strict=True)]
    keep = _kept(lengths, [piece.is_list for piece in pieces], excess)
    return [
        Piece(_cut(piece.text, found, kept) if kept < length else piece.text, piece.is_list)
        for piece, found, kept, length in zip(pieces, starts, keep, lengths, strict=True)
    ]


def _kept(lengths: Sequence[int], is_list: Sequence[bool], excess: int) -> list[int]:
    """Tokens left to each piece when `excess` go from the longest: one that is no longer the longest shares the loss."""
    texts = [0 if listed else length for length, listed in zip(lengths, is_list, strict=True)]
    lists = [length if listed else 0 for length, listed in zip(lengths, is_list, strict=True)]
    shorter_texts = _levelled(texts, excess)
    shorter_lists = _levelled(lists, excess - (sum(texts) - sum(shorter_texts)))
    return [text + listed for text, listed in zip(shorter_texts, shorter_lists, strict=True)]


def _levelled(lengths: Sequence[int], excess: int) -> list[int]:
    """`lengths` capped at the highest common level that takes at least `excess` away, or everything."""
    levels = range(max(lengths, default=0) + 1)
    level = bisect_right(levels, max(0, sum(lengths) - excess), key=lambda cap: sum(min(n, cap) for n in lengths)) - 1
    return [min(n, level) for n in lengths]


def _starts(text: str, tokenizer: Tokenizer) -> list[int]:
    """Where each token of `text` begins."""
    if not getattr(tokenizer, "is_fast", True):
        raise InputError("a text is too long and this tokenizer cannot say where its tokens are: use a fast tokenizer")
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    return [start for start, _ in encoded["offset_mapping"]]


def _cut(text: str, starts: Sequence[int], tokens: int) -> str:
    """The text before token number `tokens`; shorter than `text` whenever something is to go.

    Several tokens can share one character (byte-level pieces of an emoji): the whole character goes.
    """
    if tokens == 0:
        return ""
    if len(starts) <= tokens:
        return text
    return text[: min(starts[tokens], len(text) - 1)].rstrip()


Row = Mapping[str, Any]
MASK = "mask"
CHOICES = "choices"  # the field that holds a multiple-choice row's answers


def _strip_punct(text: str, _: str) -> str:
    """Drops one final character if it is punctuation. P1's code drops it whatever it is, and so eats letters."""
    bare = text.rstrip()
    return bare[:-1].rstrip() if bare and unicodedata.category(bare[-1]).startswith("P") else bare


def _before(text: str, mark: str) -> str:
    return text.partition(mark)[0]


def _after(text: str, mark: str) -> str:
    return text.partition(mark)[2]


def letter(position: int) -> str:
    """`A` for choice 0, `B` for choice 1, up to `Z`."""
    if position >= len(string.ascii_uppercase):
        raise InputError(f"a row has more than {len(string.ascii_uppercase)} choices: they cannot be lettered A to Z")
    return string.ascii_uppercase[position]


def _lettered(choices: Sequence[str], _: str) -> str:
    return "\n".join(f"{letter(position)}. {choice}" for position, choice in enumerate(choices))


@dataclass(frozen=True)
class Filter:
    """One row of the filter table: what it does, whether it reads a list, whether it needs an argument."""

    apply: Callable[[Any, str], str]
    takes_list: bool = False
    needs_argument: bool = False


FILTERS: Mapping[str, Filter] = {
    "strip_punct": Filter(_strip_punct),
    "lower_first": Filter(lambda text, _: text[:1].lower() + text[1:]),
    "lower": Filter(lambda text, _: text.lower()),
    "strip_end": Filter(lambda text, marks: text.rstrip().rstrip(marks).rstrip(), needs_argument=True),
    "remove": Filter(lambda text, mark: text.replace(mark, ""), needs_argument=True),
    "before": Filter(_before, needs_argument=True),
    "after": Filter(_after, needs_argument=True),
    "join": Filter(lambda choices, between: between.join(choices), takes_list=True, needs_argument=True),
    "lettered": Filter(_lettered, takes_list=True),
}
# Counts tokens, so it needs a tokenizer: `fit` applies it after the other filters, `render` cannot.
LIMIT = "limit"


def _without(text: str, mask: str) -> str:
    """The text without the mask, also where taking one out makes another: in one pass, however they are nested."""
    text = text.replace(mask, "")
    if mask not in text:
        return text
    kept: list[str] = []
    for character in text:
        kept.append(character)
        if character == mask[-1] and "".join(kept[-len(mask) :]) == mask:
            del kept[-len(mask) :]
    return "".join(kept)


@dataclass(frozen=True)
class TemplateSlot:
    """A field's place in a template: `{a|strip_punct|limit:110}`."""

    field: str
    filters: tuple[tuple[str, str], ...] = ()
    limit: int | None = None
    is_list: bool = False

    def value(self, row: Row, mask: str) -> str:
        """The filtered text. A mask token that the data itself holds is taken out: there must be exactly one."""
        value = row[self.field]
        for name, argument in self.filters:
            value = FILTERS[name].apply(value, argument)
        return _without(str(value), mask) if mask and mask in value else str(value)


@dataclass(frozen=True)
class Template:
    """Literal text, slots, and the mask (as a slot named "mask"), in order."""

    text: str
    parts: tuple[str | TemplateSlot, ...]

    @classmethod
    def parse(cls, text: str, *, texts: Collection[str], lists: Collection[str] = ()) -> Template:
        """The template in `text`, whose fields must be among `texts`, `lists` (which need a joining filter) and mask."""
        return cls(text, tuple(_parts(text, texts=texts, lists=lists)))

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields it names, in order of first use; the mask is not one."""
        return tuple(dict.fromkeys(slot.field for slot in self._slots()))

    @property
    def masks(self) -> int:
        """How often `{mask}` stands in it."""
        return sum(isinstance(part, TemplateSlot) and part.field == MASK for part in self.parts)

    def render(self, row: Row, *, mask: str = "") -> str:
        """The filled template at full length (token limits are `fit`'s business)."""
        return self._joined([slot.value(row, mask) for slot in self._slots()], mask)

    def fit(self, row: Row, tokenizer: Tokenizer, max_length: int, *, mask: str = "") -> str:
        """The filled template in at most `max_length` tokens, the tokenizer's special tokens included.

        Law: fields are cut from their end, the longest first and choices last; the template's own text and the mask stay.
        """
        pieces = [Piece(_limited(slot, row, tokenizer, mask), slot.is_list) for slot in self._slots()]
        return fit_pieces(pieces, lambda values: self._joined(values, mask), tokenizer, max_length=max_length)

    def limited(self, field: str, tokens: int) -> Template:
        """The same with at most so many tokens of a field; a smaller limit that it has stays."""

        def spelled(found: re.Match[str]) -> str:
            named = found["slot"] is not None and found["slot"].split("|")[0] == field
            return f"{{{found['slot']}|{LIMIT}:{tokens}}}" if named else found[0]

        lists = {slot.field for slot in self._slots() if slot.is_list}
        return Template.parse(_TOKEN.sub(spelled, self.text), texts={*self.fields} - lists, lists=lists)

    def _slots(self) -> list[TemplateSlot]:
        return [part for part in self.parts if isinstance(part, TemplateSlot) and part.field != MASK]

    def _joined(self, values: Sequence[str], mask: str) -> str:
        remaining = iter(values)
        return "".join(_filled(part, remaining, mask) for part in self.parts)


def _limited(slot: TemplateSlot, row: Row, tokenizer: Tokenizer, mask: str) -> str:
    value = slot.value(row, mask)
    return cut_to(value, tokenizer, slot.limit) if slot.limit else value


def _filled(part: str | TemplateSlot, values: Iterator[str], mask: str) -> str:
    if isinstance(part, str):
        return part
    return mask if part.field == MASK else next(values)


_TOKEN = re.compile(r"(?P<open>\{\{)|(?P<close>\}\})|\{(?P<slot>[^{}]*)\}|(?P<stray>[{}])")


def _parts(text: str, *, texts: Collection[str], lists: Collection[str]) -> list[str | TemplateSlot]:
    parts: list[str | TemplateSlot] = []
    end = 0
    for found in _TOKEN.finditer(text):
        parts.append(text[end : found.start()])
        end = found.end()
        if found["stray"]:
            raise InputError(f"template {text!r}: a lone {found['stray']!r}; write it twice for the character itself")
        if found["slot"] is not None:
            parts.append(_slot(found["slot"], texts=texts, lists=lists))
        else:
            parts.append(found[0][0])
    parts.append(text[end:])
    return [part for part in parts if part != ""]


def _slot(spelling: str, *, texts: Collection[str], lists: Collection[str]) -> TemplateSlot:
    field, *spelled = spelling.split("|")
    if field == MASK and not spelled:
        return TemplateSlot(MASK)
    if field not in texts and field not in lists:
        raise InputError(f"{{{spelling}}}: no field {field!r}: {did_you_mean(field, [*texts, *lists, MASK])}")
    filters = tuple(_bound(one, spelling) for one in spelled)
    limits = [int(argument) for name, argument in filters if name == LIMIT]
    filters = tuple(bound for bound in filters if bound[0] != LIMIT)
    _check_kinds(filters, spelling, is_list=field in lists)
    return TemplateSlot(field, filters, min(limits, default=None), field in lists)


def _bound(spelled: str, spelling: str) -> tuple[str, str]:
    name, _, argument = spelled.partition(":")
    if name == LIMIT:
        if not (argument.isdecimal() and int(argument) > 0):
            raise InputError(f"{{{spelling}}}: limit takes a number of tokens, 'limit:110'; found {argument!r}")
        return name, argument
    if name not in FILTERS:
        raise InputError(f"{{{spelling}}}: no filter {name!r}: {did_you_mean(name, [*FILTERS, LIMIT])}")
    if FILTERS[name].needs_argument != bool(argument):
        takes = "needs an argument after a colon" if FILTERS[name].needs_argument else "takes no argument"
        raise InputError(f"{{{spelling}}}: the filter {name!r} {takes}")
    return name, argument


def _check_kinds(filters: Sequence[tuple[str, str]], spelling: str, *, is_list: bool) -> None:
    """A list must become text with its first filter, and only there."""
    for name, _ in filters:
        if FILTERS[name].takes_list != is_list:
            found = "a list" if is_list else "text"
            raise InputError(f"{{{spelling}}}: the filter {name!r} does not read {found}")
        is_list = False
    if is_list:
        raise InputError(f"{{{spelling}}}: this field is a list; say how it becomes text: 'join: or ' or 'lettered'")


@dataclass(frozen=True)
class Prompt:
    """How a row is shown to a language model, and the answers among which it chooses.

    `words` (in the order of the task's labels) are fixed answers; `answer` is a template over {choice} and {letter} for rows
    that bring their own choices. Where a field of the row holds `blank`, `template_blank` is used instead (P2's quartz).
    """

    template: Template
    max_length: int
    words: tuple[str, ...] = ()
    answer: Template | None = None
    blank: str = ""
    template_blank: Template | None = None

    def limited(self, field: str, tokens: int) -> Prompt:
        """The same with at most so many tokens of a field."""
        blank = self.template_blank
        return replace(
            self,
            template=self.template.limited(field, tokens),
            template_blank=None if blank is None else blank.limited(field, tokens),
        )

    def template_for(self, row: Row) -> Template:
        """`template_blank` for a row with a blank, else `template`."""
        if self.template_blank and any(self.blank in row[field] for field in self.template_blank.fields):
            return self.template_blank
        return self.template

    def render(self, row: Row, *, mask: str = "") -> str:
        """The filled prompt at full length."""
        return self.template_for(row).render(row, mask=mask)

    def fit(self, row: Row, tokenizer: Tokenizer, max_length: int | None = None, *, mask: str = "") -> str:
        """The filled prompt in at most `max_length` tokens (by default the prompt's own)."""
        return self.template_for(row).fit(row, tokenizer, max_length or self.max_length, mask=mask)

    def answers(self, row: Row) -> tuple[str, ...]:
        """What the model chooses among for this row; position = label."""
        if self.answer is None:
            return self.words
        shown = ({"choice": choice, "letter": letter(i)} for i, choice in enumerate(row[CHOICES]))
        return tuple(self.answer.render(one) for one in shown)
