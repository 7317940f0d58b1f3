"""The lexer: longest tokens first, independent of the grammar.

Source: filter/parser/SelectorParser.jj, SelectorParserTokenManager.java.
"""

from collections.abc import Iterator
from re import ASCII, DOTALL, IGNORECASE, compile
from typing import Final

from lark import Token

from protocol.sql92.errors import LEXICAL, SqlError

_LINE_COMMENT = r"|--[^\n\r]*(?:\r\n|\n|\r)"
_PATTERN = r"""(?P<SKIP>[ \t\n\r\f]LINE_COMMENT|/\*[^*]*\*(?:\*|[^*/][^*]*\*)*/)
    |(?P<FLOAT>[0-9]+\.[0-9]*(?:e[+-]?[0-9]+)?|\.[0-9]+(?:e[+-]?[0-9]+)?|[0-9]+e[+-]?[0-9]+)
    |(?P<DECIMAL>0|[1-9][0-9]*l?)
    |(?P<STRING>'(?:''|[^'])*')
    |(?P<ID>[a-z_$][a-z0-9_$]*)
    |(?P<NE><>)|(?P<GE>>=)|(?P<LE><=)|(?P<EQ>=)|(?P<GT>>)|(?P<LT><)
    |(?P<LPAR>\()|(?P<COMMA>,)|(?P<RPAR>\))|(?P<PLUS>\+)|(?P<MINUS>-)
    """.replace("\n    ", "")
_FLAGS = IGNORECASE | ASCII | DOTALL
_TOKENS = compile(_PATTERN.replace("LINE_COMMENT", _LINE_COMMENT), _FLAGS)
_TOKENS_OF_THE_LAST_LINE = compile(_PATTERN.replace("LINE_COMMENT", ""), _FLAGS)
"""Pattern without comments. Searching the end of one at each of 8,000 minus signs takes a second.
"""
_KEYWORDS = frozenset(("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS"))
_TAB_COLUMNS = 8

IMAGES: Final = {
    "$END": "<EOF>",
    "NOT": '"NOT"',
    "AND": '"AND"',
    "OR": '"OR"',
    "BETWEEN": '"BETWEEN"',
    "IN": '"IN"',
    "TRUE": '"TRUE"',
    "FALSE": '"FALSE"',
    "NULL": '"NULL"',
    "IS": '"IS"',
    "DECIMAL": "<DECIMAL_LITERAL>",
    "FLOAT": "<FLOATING_POINT_LITERAL>",
    "STRING": "<STRING_LITERAL>",
    "ID": "<ID>",
    "EQ": '"="',
    "NE": '"<>"',
    "GT": '">"',
    "GE": '">="',
    "LT": '"<"',
    "LE": '"<="',
    "LPAR": '"("',
    "COMMA": '","',
    "RPAR": '")"',
    "MINUS": '"-"',
}
"""Names of tokens in error texts, in their order; a `+` is never named."""

_ESCAPES = str.maketrans(
    {
        "\0": "",
        "\b": "\\b",
        "\t": "\\t",
        "\n": "\\n",
        "\f": "\\f",
        "\r": "\\r",
        '"': '\\"',
        "'": "\\'",
        "\\": "\\\\",
    }
)


def tokens(text: str) -> Iterator[Token]:
    """Yield the tokens in order. Raises SqlError at an invalid one."""
    position = 0
    last_line = max(text.rfind("\n"), text.rfind("\r")) + 1
    while position < len(text):
        pattern = _TOKENS if position < last_line else _TOKENS_OF_THE_LAST_LINE
        match = pattern.match(text, position)
        if match is None or match.lastgroup is None:
            raise _lexical_error(text, position)
        kind = match.lastgroup
        if kind == "ID" and match[0].upper() in _KEYWORDS:
            kind = match[0].upper()
        if kind != "SKIP":
            yield Token(kind, match[0], start_pos=position)
        position = match.end()


def _lexical_error(text: str, position: int) -> SqlError:
    line, column = place(text, position)
    character = text[position]
    if character == "'":  # never closed
        line, column = place(text, len(text) - 1)
        column += 1
        encountered, after = "<EOF> ", text[position:]
    else:
        encountered, after = f'"{escaped(character)}" ({ord(character)}), ', ""
    return SqlError(
        LEXICAL,
        f"Lexical error at line {line}, column {column}.  Encountered: {encountered}"
        f'after : "{escaped(after)}"',
    )


def place(text: str, position: int) -> tuple[int, int]:
    """Return line and column of a character, counted from 1."""
    line, column = 1, 0
    previous = ""
    for character in text[: position + 1]:
        if previous == "\n" or (previous == "\r" and character != "\n"):
            line, column = line + 1, 0
        column += 1
        if character == "\t":
            column = -(-column // _TAB_COLUMNS) * _TAB_COLUMNS
        previous = character
    return (line, column) if text else (0, 0)


def escaped(text: str) -> str:
    """Return text as an error message shows it."""
    return "".join(
        character if 0x20 <= ord(character) <= 0x7E else f"\\u{ord(character):04x}"
        for character in text.translate(_ESCAPES)
    )
