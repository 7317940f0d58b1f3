"""SQL92 filters: an expression over the properties of a message, compiled to a closure.

    compile_filter("a BETWEEN 0 AND 3 AND color = 'red'")({"a": "2", "color": "red"})  → True

The closure gives True, False, or None where SQL says unknown; only True is a match. It raises
EvaluationError where RocketMQ's throws, which is no match either. The language, its number and
string rules and the texts of its errors are those of RocketMQ 4.9.7, oddities included:

- text behind a complete expression is ignored;
- properties are strings: they become numbers beside numbers (as integers beside an integer), and
  both become doubles in `a > b`, but never in `a = b`;
- a missing property on the left of `=` gives unknown, on the right False;
- `0.0` cannot be written, nor `TRUE = a` evaluated.

An expression of more than EXPRESSION_CHARS_MAX characters is an error here.

Source: filter/parser/SelectorParser.jj, filter/expression.
"""

from protocol.sql92.compile import EXPRESSION_CHARS_MAX, Filter, compile_filter, is_compiled
from protocol.sql92.errors import EvaluationError, SqlError

__all__ = [
    "EXPRESSION_CHARS_MAX",
    "EvaluationError",
    "Filter",
    "SqlError",
    "compile_filter",
    "is_compiled",
]
