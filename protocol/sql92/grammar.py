"""The grammar of SQL92 expressions for lark, with the nodes and errors that it builds.

Imported for the first expression: most brokers never compile one, and lark is a fifteenth of what a
start imports.

Source: filter/parser/SelectorParser.jj (the grammar), ParseException.java (the texts).
"""

from collections.abc import Callable, Iterator, Sequence, Set
from functools import lru_cache
from typing import Any, TypeAlias

from lark import Lark, Token, Transformer, v_args
from lark.common import LexerConf
from lark.lexer import Lexer, LexerState
from lark.parsers.lalr_analysis import Shift

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
    """Stub of a lexer.

    Tokens are fed to the parser one by one, so that it can stop before the text's end.
    """

    def __init__(self, _: LexerConf) -> None: ...

    def lex(self, lexer_state: LexerState, parser_state: object) -> Iterator[Token]:
        yield from ()


@v_args(inline=True)
class _Build(Transformer[Token, Node]):
    """Transformer that builds each rule's node as soon as the rule is complete."""

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


class _Tables:
    """Lark's tables with the builders of rules, under plain names.

    Lark's own names are compared and hashed by Python, which takes a third of a token's time.
    """

    def __init__(self) -> None:
        self.start: Any = _parser().parse_interactive()
        conf = self.start.parser_state.parse_conf
        self.first, self.last = conf.start_state, conf.end_state
        self.states: dict[int, dict[str, int | _Reduction]] = {
            state: {
                str(name): arg if action is Shift else _reduction(arg, conf.callbacks[arg])
                for name, (action, arg) in found.items()
            }
            for state, found in conf.states.items()
        }


_tables = lru_cache(maxsize=1)(_Tables)
_Reduction: TypeAlias = tuple[int, str, Callable[[list[Any]], Node] | None]
"""Number of parts, name of the node and its builder; None returns the one part as it is."""


def _reduction(rule: Any, callback: Callable[[list[Any]], Node]) -> _Reduction:
    size = len(rule.expansion)
    is_passed_on = size == 1 and rule.options.expand1 and not rule.alias
    return size, str(rule.origin.name), None if is_passed_on else callback


class _Parser:
    """Parser with Lark's results in two thirds of the time.

    A token that does not fit leaves it unchanged, except for duplicate terms of a chain, which
    change nothing.
    """

    def __init__(self) -> None:
        self._tables = _tables()
        self._states: list[int] = [self._tables.first]
        self._values: list[Any] = []

    def feed(self, kind: str, token: Token) -> bool:
        """Feed one token; return whether the grammar accepts it."""
        tables, states, values = self._tables.states, self._states, self._values
        undo: list[tuple[list[int], list[Any]]] = []
        while True:
            found = tables[states[-1]].get(kind)
            if found is None:
                for old_states, old_values in reversed(undo):
                    states[-1:], values[-1:] = old_states, old_values
                return False
            if isinstance(found, int):
                states.append(found)
                values.append(token)
                return True
            size, made, callback = found
            parts = values[-size:]
            undo.append((states[-size:], parts))
            del states[-size:]
            if callback is not None:
                values[-size:] = (callback(parts),)
            state = tables[states[-1]][made]
            assert isinstance(state, int)
            states.append(state)
            if state == self._tables.last:
                return True

    def as_larks(self) -> Any:
        """Return one of Lark's parsers in the same state."""
        made = self._tables.start.copy(deepcopy_values=False)
        made.parser_state.state_stack[:] = self._states
        made.parser_state.value_stack[:] = self._values
        return made

    @property
    def result(self) -> Node:
        """Return the node after the end was fed."""
        node: Node = self._values[-1]
        return node


def parse(expression: str) -> Node:
    """Return the node of an expression. Raises SqlError, and RecursionError for deep nesting."""
    parser, last = _Parser(), Token("$END", "")
    for token in tokens(expression):
        if not parser.feed(token.type, token):
            if "$END" not in parser.as_larks().accepts():
                raise _error_at(parser, token, expression, last)
            break  # text behind a whole expression is ignored
        last = token
    end = Token("$END", "", start_pos=len(expression) - 1)
    if not parser.feed("$END", end):
        raise _error_at(parser, end, expression, last)
    return parser.result


def _error_at(parser: _Parser, token: Token, expression: str, last: Token) -> SqlError:
    """Return the error at a token, or an earlier one if the fed tokens are invalid."""
    accepted = parser.as_larks().accepts()
    if "RPAR" in accepted:
        try:
            parser.as_larks().feed_token(Token("RPAR", ")"))
        except SqlError as error:
            return error
    return _parse_error(expression, [last, token], accepted)


def _parse_error(expression: str, fed: Sequence[Token], accepted: Set[str]) -> SqlError:
    """Return the error for the last of these tokens."""
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
