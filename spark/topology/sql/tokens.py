"""SQL text as tokens: the part of Spark's lexer that types and expressions share."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

from spark.topology.errors import Place, TopologyError

Kind = Literal["word", "quoted", "string", "number", "operator", "type", "end"]

# `>>` is two tokens, so that the end of array<array<int>> needs no special case.
_TOKEN = re.compile(
    r"""
    (?P<space>\s+)
  | (?P<comment>--|/\*)
  | (?P<string>[rR]'[^']*' | [rR]"[^"]*" | '(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*")
  | (?P<quoted>`(?:[^`]|``)+`)
  | (?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?(?:BD|[LSYFD])?(?!\w))
  | (?P<word>[^\W\d]\w*)
  | (?P<operator>->|=>|::|<=>|<<|<>|<=|>=|!=|==|\|\||[-+*/%=<>!~&|^.,()\[\]:])
    """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
_CLOSES = {"(": ")", "[": "]"}


@dataclass(frozen=True)
class Token:
    """A piece of SQL text, the index of its first character, and whether white space precedes it."""

    kind: Kind
    text: str
    at: int
    spaced: bool = False

    @property
    def lower(self) -> str:
        """The text in lower case: names and words are case-insensitive."""
        return self.text.lower()

    @property
    def name(self) -> str:
        """The identifier of a word or a backquoted name."""
        return self.text[1:-1].replace("``", "`") if self.kind == "quoted" else self.text

    @property
    def is_name(self) -> bool:
        """True if this can be a name: a word or a backquoted identifier."""
        return self.kind in ("word", "quoted")

    def is_(self, *texts: str) -> bool:
        """True if this is one of these operators or words, without quotes."""
        return self.kind in ("word", "operator") and self.lower in texts


@dataclass(frozen=True)
class Sql:
    """SQL text as tokens, with closed quotes and brackets, and the user's line that it comes from."""

    text: str
    tokens: tuple[Token, ...]
    place: Place

    def at(self, index: int) -> Token:
        """The token at an index; past the last one, a token of kind "end"."""
        return self.tokens[index] if index < len(self.tokens) else Token("end", "", len(self.text))

    def before(self, index: int) -> Token:
        """The token before an index; before the first one, a token of kind "end"."""
        return self.tokens[index - 1] if index > 0 else Token("end", "", 0)

    def wrong(self, index: int, what: str, do: str) -> TopologyError:
        """An error at one token: what is wrong, and what to do."""
        return self.place.mistake(f"{what}, at character {self.at(index).at + 1} of {self.text!r}", do)


def lex(text: str, place: Place) -> Sql:
    """Cut a text into tokens.

    Raises:
        TopologyError: the text is no string, or has a comment, an unknown character, or an unbalanced quote or bracket.
    """
    tokens: list[Token] = []
    at, spaced, length = 0, False, len(one_text(text, place))
    while at < length:
        match = _TOKEN.match(text, at)
        if match is None:
            raise _unreadable(text, at, place)
        if match.lastgroup == "comment":
            raise place.mistake(f"{text!r} has a comment", "write the comment in Python, outside the SQL text")
        spaced, was_spaced = match.lastgroup == "space", spaced
        if not spaced:
            tokens.append(Token(cast(Kind, match.lastgroup), match.group(), at, was_spaced))
        at = match.end()
    sql = Sql(text, tuple(tokens), place)
    _check_balance(sql)
    return sql


def names_in(*texts: str) -> set[str]:
    """The names in texts that were parsed before, in lower case: columns, functions and other words."""
    return {token.name.lower() for text in texts for token in tokens_of(text) if token.is_name}


def tokens_of(text: str) -> tuple[Token, ...]:
    """The tokens of a text that was parsed before."""
    return lex(text, Place("a plan", None)).tokens


def texts(given: object, place: Place) -> tuple[str, ...]:
    """A string, or the strings of a list, as a tuple.

    Raises:
        TopologyError: it is neither.
    """
    if isinstance(given, str):
        return (given,)
    if not isinstance(given, Sequence) or isinstance(given, bytes):
        raise place.mistake(f"{given!r} is not a string or a list of strings", 'write SQL text, or a list: ["a", "b"]')
    return tuple(one_text(text, place) for text in given)


def text_of(tokens: Sequence[Token]) -> str:
    """The text of tokens, with white space between them as one blank, since line breaks and indents mean nothing."""
    return "".join(f" {t.text}" if t.spaced and i else t.text for i, t in enumerate(tokens))


def one_text(given: object, place: Place) -> str:
    """The given text.

    Raises:
        TopologyError: it is no string.
    """
    if not isinstance(given, str):
        raise place.mistake(f"{given!r} is not a string", "write SQL text")
    return given


def _unreadable(text: str, at: int, place: Place) -> TopologyError:
    where = f"{text[at]} at character {at + 1} of {text!r}"
    if text[at] in "'\"`":
        return place.mistake(f"the quote {where} is not closed", "close it")
    return place.mistake(f"unexpected {where}", "remove it, or put a name that contains it in `backquotes`")


def _check_balance(sql: Sql) -> None:
    open_: list[int] = []
    for index, token in enumerate(sql.tokens):
        if token.is_("(", "["):
            open_.append(index)
        elif token.is_(")", "]") and (not open_ or _CLOSES[sql.at(open_.pop()).text] != token.text):
            raise sql.wrong(index, f"{token.text!r} has no opening bracket", "remove it, or open it")
    if open_:
        opened = sql.at(open_[-1]).text
        raise sql.wrong(open_[-1], f"{opened!r} is not closed", f"close it with {_CLOSES[opened]!r}")
