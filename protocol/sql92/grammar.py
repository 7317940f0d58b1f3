"""The grammar of SQL92 expressions, for lark, and what is made of them and of their errors.

Imported for the first expression: most brokers never compile one, and lark is a fifteenth of what a
start imports.

Source: filter/parser/SelectorParser.jj (the grammar), ParseException.java (the texts).
"""

from collections.abc import Iterator, Sequence, Set
from functools import lru_cache
from typing import Any

from lark import Lark, Token, Transformer, UnexpectedToken, v_args
from lark.common import LexerConf
from lark.lexer import Lexer, LexerState

from protocol.sql92 import nodes
from protocol.sql92.errors import PARSE, SqlError
from protocol.sql92.lexer import IMAGES, escaped, place, tokens
from protocol.sql92.nodes import Node

_COMPARISONS = frozenset(("BETWEEN", "IN", "GT", "GE", "LT", "LE"))
_GRAMMAR = """
start: or_expression

?or_expression: and_expression
    | or_expression OR and_expression -> or_
?and_expression: equality
    | and_expression AND equality -> and_
?equality: comparison
    | equality EQ comparison -> equal
    | equality NE comparison -> not_equal
    | equality IS NULL -> is_null
    | equality IS NOT NULL -> is_not_null
?comparison: unary
    | comparison (GT | GE | LT | LE) unary -> ordered
    | comparison BETWEEN unary AND unary -> between
    | comparison NOT BETWEEN unary AND unary -> not_between
    | comparison IN LPAR strings RPAR -> in_
    | comparison NOT IN LPAR strings RPAR -> not_in
?unary: primary
    | PLUS unary -> same
    | MINUS unary -> negated
    | NOT unary -> not_
?primary: STRING -> string
    | DECIMAL -> decimal
    | FLOAT -> double
    | TRUE -> true
    | FALSE -> false
    | NULL -> null
    | ID -> property
    | LPAR or_expression RPAR -> group
strings: STRING (COMMA STRING)*

%declare OR AND EQ NE IS NULL NOT GT GE LT LE BETWEEN IN LPAR RPAR COMMA
%declare PLUS MINUS STRING DECIMAL FLOAT TRUE FALSE ID
"""


class _OwnTokens(Lexer):
    """Tokens are fed to the parser one by one, so that it can stop before the text's end."""

    def __init__(self, _: LexerConf) -> None: ...

    def lex(self, lexer_state: LexerState, parser_state: object) -> Iterator[Token]:
        yield from ()


@v_args(inline=True)
class _Build(Transformer[Token, Node]):
    """Each rule's node, made as soon as the rule is complete."""

    def start(self, node: Node) -> Node:
        return nodes.as_boolean(node)

    def or_(self, left: Node, _: Token, right: Node) -> Node:
        return nodes.either(left, right)

    def and_(self, left: Node, _: Token, right: Node) -> Node:
        return nodes.both(left, right)

    def equal(self, left: Node, _: Token, right: Node) -> Node:
        return nodes.equal(left, right)

    def not_equal(self, left: Node, _: Token, right: Node) -> Node:
        return nodes.negation(nodes.equal(left, right))

    def is_null(self, left: Node, *_: Token) -> Node:
        return nodes.is_null(left)

    def is_not_null(self, left: Node, *_: Token) -> Node:
        return nodes.negation(nodes.is_null(left))

    def ordered(self, left: Node, operator: Token, right: Node) -> Node:
        return nodes.ordered(left, str(operator), right)

    def between(self, value: Node, _: Token, low: Node, __: Token, high: Node) -> Node:
        return nodes.between(value, low, high)

    def not_between(
        self, value: Node, _: Token, __: Token, low: Node, ___: Token, high: Node
    ) -> Node:
        return nodes.either(nodes.ordered(value, "<", low), nodes.ordered(value, ">", high))

    def in_(self, left: Node, *rest: Token | list[str]) -> Node:
        return nodes.in_list(left, _strings_of(rest), wanted=True)

    def not_in(self, left: Node, *rest: Token | list[str]) -> Node:
        return nodes.in_list(left, _strings_of(rest), wanted=False)

    def strings(self, *parts: Token) -> list[str]:
        return [_unquoted(part) for part in parts if part.type == "STRING"]

    def same(self, _: Token, right: Node) -> Node:
        return right

    def negated(self, _: Token, right: Node) -> Node:
        return nodes.minus(right)

    def not_(self, _: Token, right: Node) -> Node:
        return nodes.negation(nodes.as_boolean(right))

    def group(self, _: Token, inner: Node, __: Token) -> Node:
        return inner

    def string(self, token: Token) -> Node:
        return nodes.string(_unquoted(token))

    def decimal(self, token: Token) -> Node:
        return nodes.decimal(str(token))

    def double(self, token: Token) -> Node:
        return nodes.double(str(token))

    def true(self, _: Token) -> Node:
        return nodes.TRUE

    def false(self, _: Token) -> Node:
        return nodes.FALSE

    def null(self, _: Token) -> Node:
        return nodes.NULL

    def property(self, token: Token) -> Node:
        return nodes.property_named(str(token))


def _unquoted(token: Token) -> str:
    return token[1:-1].replace("''", "'")


def _strings_of(parts: tuple[Token | list[str], ...]) -> list[str]:
    return next(part for part in parts if isinstance(part, list))


@lru_cache(maxsize=1)
def _parser() -> Lark:
    return Lark(_GRAMMAR, parser="lalr", lexer=_OwnTokens, transformer=_Build())


def parse(expression: str) -> Node:
    """What evaluates it. Raises SqlError, and RecursionError for what is too deep."""
    parser, fed = _parser_after(()), list[Token]()
    for token in tokens(expression):
        try:
            parser.feed_token(token)
        except UnexpectedToken:
            # What it could have gone on with is asked of one that has not seen the token.
            parser = _parser_after(fed)
            if "$END" not in parser.accepts():
                raise _error_at(token, expression, fed) from None
            break  # what follows a whole expression is not looked at
        fed.append(token)
    try:
        result: Node = parser.feed_eof()
    except UnexpectedToken:
        end = Token("$END", "", start_pos=len(expression) - 1)
        raise _error_at(end, expression, fed) from None
    return result


def _error_at(token: Token, expression: str, fed: Sequence[Token]) -> SqlError:
    """What is wrong with a token behind those that were fed: with them, if they make no sense."""
    parser = _parser_after(fed)
    accepted = parser.accepts()
    if "RPAR" in accepted:
        try:
            parser.feed_token(Token("RPAR", ")"))
        except SqlError as error:
            return error
    return _parse_error(expression, [*fed, token], accepted)


def _parser_after(fed: Sequence[Token]) -> Any:
    """A parser that has taken these tokens."""
    parser: Any = _parser().parse_interactive()
    for token in fed:
        parser.feed_token(token)
    return parser


def _parse_error(expression: str, fed: Sequence[Token], accepted: Set[str]) -> SqlError:
    """The last of these tokens does not fit."""
    token = fed[-1]
    if accepted == {"BETWEEN", "IN"}:  # RocketMQ's parser looks ahead, and takes offence at NOT
        token, accepted = fed[-2], _COMPARISONS
    elif accepted == {"NULL", "NOT"}:
        accepted = {"NOT"}
    line, column = place(expression, token.start_pos or 0)
    image = IMAGES.get(token.type, '"+"')
    encountered = image if token.type == "$END" else f' {image} "{escaped(token)} "'
    expected = [f"{each} ..." for kind, each in IMAGES.items() if kind in accepted]
    one_of = "" if len(expected) == 1 else " one of"
    return SqlError(
        PARSE,
        f'Encountered "{encountered}" at line {line}, column {column}.\n'
        f"Was expecting{one_of}:\n    " + "".join(f"{each}\n    " for each in expected),
    )
