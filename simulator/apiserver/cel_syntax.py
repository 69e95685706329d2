"""The syntax of CEL, as far as admission conditions use it: text to a tree of tuples.

Grammar: cel.dev/spec, without messages (`Type{…}`), bytes literals and namespaces; with the optional syntax of
Kubernetes (`a.?b`, `a[?k]`). A tree node is a tuple whose first element names it.
"""

import re
from functools import lru_cache
from typing import Any

Node = tuple[Any, ...]

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<comment>//[^\n]*)
    | (?P<number>\d+\.\d+(?:[eE][+-]?\d+)?|0x[0-9a-fA-F]+|\d+)(?P<unsigned>u?)
    | (?P<raw>[rR]?)(?P<string>\"\"\"(?:\\.|[^\\])*?\"\"\"|'''(?:\\.|[^\\])*?'''|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')
    | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<op>&&|\|\||==|!=|<=|>=|\.\?|\[\?|[-+*/%!<>?:.,()\[\]{}])
    )""",
    re.VERBOSE,
)

_LEVELS: tuple[tuple[str, ...], ...] = (
    ("==", "!=", "<", "<=", ">", ">=", "in"),
    ("+", "-"),
    ("*", "/", "%"),
)

MACROS = {"all": 2, "exists": 2, "exists_one": 2, "existsOne": 2, "map": 2, "filter": 2}
"""Macros called on a list or map, with their number of arguments."""


class CelSyntaxError(Exception):
    """The expression cannot be read."""


def _tokens(text: str) -> list[tuple[str, str]]:
    found, at = [], 0
    stripped = text.rstrip()
    while at < len(stripped):
        match = _TOKEN.match(stripped, at)
        if match is None:
            raise CelSyntaxError(f"unexpected {stripped[at : at + 10]!r} at position {at}")
        at = match.end()
        if match["number"] is not None:
            found.append(("number", match["number"]))
        elif match["string"] is not None:
            found.append(("raw" if match["raw"] else "string", match["string"]))
        elif match["name"] is not None:
            found.append(("name", match["name"]))
        elif match["op"] is not None:
            found.append(("op", match["op"]))
    found.append(("end", ""))
    return found


_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}


def _string(token: str, raw: bool) -> str:
    quotes = 3 if token[:3] in {'"""', "'''"} else 1
    text = token[quotes:-quotes]
    if raw:
        return text

    def unescape(match: re.Match[str]) -> str:
        code = match[1]
        if code[0] in "xuU":
            return chr(int(code[1:], 16))
        return _ESCAPES.get(code, code)

    return re.sub(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", unescape, text, flags=re.DOTALL)


def _number(text: str) -> int | float:
    if text.startswith("0x"):
        return int(text, 16)
    return float(text) if "." in text else int(text)


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._at = 0

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._at]

    def _next(self) -> tuple[str, str]:
        token = self._tokens[self._at]
        self._at += 1
        return token

    def _accept(self, *operators: str) -> str | None:
        kind, text = self._peek()
        if text in operators and kind in {"op", "name"}:
            self._at += 1
            return text
        return None

    def _expect(self, operator: str) -> None:
        if self._accept(operator) is None:
            raise CelSyntaxError(f"expected {operator!r}, found {self._peek()[1] or 'the end'!r}")

    def whole(self) -> Node:
        tree = self._ternary()
        if self._peek()[0] != "end":
            raise CelSyntaxError(f"unexpected {self._peek()[1]!r}")
        return tree

    def _ternary(self) -> Node:
        condition = self._or()
        if self._accept("?") is None:
            return condition
        first = self._or()
        self._expect(":")
        return ("if", condition, first, self._ternary())

    def _or(self) -> Node:
        tree = self._and()
        while self._accept("||"):
            tree = ("or", tree, self._and())
        return tree

    def _and(self) -> Node:
        tree = self._binary(0)
        while self._accept("&&"):
            tree = ("and", tree, self._binary(0))
        return tree

    def _binary(self, level: int) -> Node:
        if level == len(_LEVELS):
            return self._unary()
        tree = self._binary(level + 1)
        while operator := self._accept(*_LEVELS[level]):
            tree = ("binary", operator, tree, self._binary(level + 1))
        return tree

    def _unary(self) -> Node:
        if self._accept("!"):
            return ("not", self._unary())
        if self._accept("-"):
            return ("negative", self._unary())
        return self._member()

    def _member(self) -> Node:
        tree = self._primary()
        while True:
            if self._accept("."):
                tree = self._selection(tree)
            elif self._accept(".?"):
                tree = ("optional", tree, ("value", self._name()))
            elif self._accept("[?"):
                tree = ("optional", tree, self._ternary())
                self._expect("]")
            elif self._accept("["):
                tree = ("index", tree, self._ternary())
                self._expect("]")
            else:
                return tree

    def _name(self) -> str:
        kind, text = self._next()
        if kind != "name":
            raise CelSyntaxError(f"expected a name, found {text!r}")
        return text

    def _selection(self, tree: Node) -> Node:
        name = self._name()
        if self._accept("(") is None:
            return ("field", tree, name)
        arguments = self._arguments(")")
        if name in MACROS and len(arguments) in {MACROS[name], 3 if name == "map" else MACROS[name]}:
            if arguments[0][0] != "variable":
                raise CelSyntaxError(f"{name}: the first argument is a variable name")
            return ("macro", name, tree, arguments[0][1], arguments[1:])
        return ("call", name, (tree, *arguments))

    def _arguments(self, end: str) -> tuple[Node, ...]:
        found: list[Node] = []
        while self._accept(end) is None:
            if found:
                self._expect(",")
                if self._accept(end):
                    break
            found.append(self._ternary())
        return tuple(found)

    def _primary(self) -> Node:
        kind, text = self._next()
        if kind == "number":
            return ("value", _number(text))
        if kind in {"string", "raw"}:
            return ("value", _string(text, kind == "raw"))
        if kind == "name":
            return self._named(text)
        if text == "(":
            tree = self._ternary()
            self._expect(")")
            return tree
        if text == "[":
            return ("list", self._arguments("]"))
        if text == "{":
            return ("map", self._pairs())
        raise CelSyntaxError(f"unexpected {text or 'end'!r}")

    def _named(self, text: str) -> Node:
        if text in {"true", "false", "null"}:
            return ("value", {"true": True, "false": False, "null": None}[text])
        if self._accept("("):
            arguments = self._arguments(")")
            if text == "has":
                if len(arguments) != 1 or arguments[0][0] not in {"field", "index"}:
                    raise CelSyntaxError("has() takes one field selection")
                return ("has", arguments[0])
            return ("call", text, arguments)
        return ("variable", text)

    def _pairs(self) -> tuple[tuple[Node, Node], ...]:
        found: list[tuple[Node, Node]] = []
        while self._accept("}") is None:
            if found:
                self._expect(",")
            key = self._ternary()
            self._expect(":")
            found.append((key, self._ternary()))
        return tuple(found)


@lru_cache(maxsize=256)
def parse(text: str) -> Node:
    """Read an expression; the same text is read once.

    Raises:
        CelSyntaxError: With the place that is not understood.
    """
    return _Parser(text).whole()
