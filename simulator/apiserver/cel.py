"""Evaluate CEL conditions on decoded JSON.

Errors are values that spread as CEL defines: `false && error` is false, `true || error` is true, everything else
that touches an error fails. Types are JSON's; integers and floats compare as numbers.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from simulator.apiserver.cel_syntax import CelSyntaxError, Node, parse

Value = Any
Variables = Mapping[str, Value]


class CelError(Exception):
    """The expression has no value for these inputs (or cannot be read)."""


class _Optional:
    """CEL's optional value: something or nothing."""

    __slots__ = ("present", "value")

    def __init__(self, present: bool, value: Value = None) -> None:
        self.present = present
        self.value = value


_NONE = _Optional(False)


def evaluate(text: str, variables: Variables) -> Value:
    """Evaluate an expression.

    Args:
        text: The expression.
        variables: Values by name, such as object, oldObject, request.

    Raises:
        CelError: It cannot be read, or evaluates to an error.
    """
    try:
        return _value(parse(text), variables)
    except CelSyntaxError as error:
        raise CelError(f"cannot compile: {error}") from error


def holds(text: str, variables: Variables) -> bool:
    """Evaluate a condition.

    Raises:
        CelError: Also when the value is not a boolean.
    """
    value = evaluate(text, variables)
    if not isinstance(value, bool):
        raise CelError(f"the condition is not a boolean but {type(value).__name__}")
    return value


def _value(node: Node, scope: Variables) -> Value:
    return _EVALUATORS[node[0]](node, scope)


def _literal(node: Node, _: Variables) -> Value:
    return node[1]


def _variable(node: Node, scope: Variables) -> Value:
    if node[1] not in scope:
        raise CelError(f"undeclared reference to '{node[1]}'")
    return scope[node[1]]


def _field(node: Node, scope: Variables) -> Value:
    owner = _value(node[1], scope)
    if isinstance(owner, _Optional):
        return _step(owner, node[2])
    if not isinstance(owner, dict):
        raise CelError(f"no such key: {node[2]}" if owner is None else f"{_name(owner)} has no field {node[2]}")
    if node[2] not in owner:
        raise CelError(f"no such key: {node[2]}")
    return owner[node[2]]


def _index(node: Node, scope: Variables) -> Value:
    owner, key = _value(node[1], scope), _value(node[2], scope)
    if isinstance(owner, _Optional):
        return _step(owner, key)
    try:
        if isinstance(owner, list) and isinstance(key, int) and key >= 0:
            return owner[key]
        if isinstance(owner, dict):
            return owner[key]
    except (KeyError, IndexError):
        raise CelError(f"no such key: {key}") from None
    raise CelError(f"cannot index {_name(owner)} with {_name(key)}")


def _step(owner: Value, key: Value) -> _Optional:
    if isinstance(owner, _Optional):
        if not owner.present:
            return _NONE
        owner = owner.value
    if isinstance(owner, dict) and key in owner:
        return _Optional(True, owner[key])
    if isinstance(owner, list) and isinstance(key, int) and 0 <= key < len(owner):
        return _Optional(True, owner[key])
    return _NONE


def _optional(node: Node, scope: Variables) -> Value:
    return _step(_value(node[1], scope), _value(node[2], scope))


def _has(node: Node, scope: Variables) -> bool:
    selection = node[1]
    owner = _value(selection[1], scope)
    key = selection[2] if selection[0] == "field" else _value(selection[2], scope)
    if isinstance(owner, _Optional):
        return _step(owner, key).present
    if not isinstance(owner, dict):
        raise CelError(f"no such key: {key}")
    return key in owner and owner[key] is not None


def _if(node: Node, scope: Variables) -> Value:
    return _value(node[2] if _boolean(_value(node[1], scope)) else node[3], scope)


def _boolean(value: Value) -> bool:
    if not isinstance(value, bool):
        raise CelError(f"no such overload: {_name(value)} is not a boolean")
    return value


def _decide(outcomes: Iterable[Callable[[], Value]], decisive: bool) -> bool:
    """Combine conditions: one decisive value settles it, whatever errors the others have."""
    failed: CelError | None = None
    for outcome in outcomes:
        try:
            if _boolean(outcome()) is decisive:
                return decisive
        except CelError as error:
            failed = failed or error
    if failed is not None:
        raise failed
    return not decisive


def _or(node: Node, scope: Variables) -> bool:
    return _decide((lambda side=side: _value(side, scope) for side in node[1:]), True)  # type: ignore[misc]


def _and(node: Node, scope: Variables) -> bool:
    return _decide((lambda side=side: _value(side, scope) for side in node[1:]), False)  # type: ignore[misc]


def _not(node: Node, scope: Variables) -> bool:
    return not _boolean(_value(node[1], scope))


def _negative(node: Node, scope: Variables) -> Value:
    value = _value(node[1], scope)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise CelError(f"no such overload: -{_name(value)}")
    return -value


def _list(node: Node, scope: Variables) -> list[Value]:
    return [_value(item, scope) for item in node[1]]


def _map(node: Node, scope: Variables) -> dict[Value, Value]:
    return {_value(key, scope): _value(item, scope) for key, item in node[1]}


def _binary(node: Node, scope: Variables) -> Value:
    operator, left, right = node[1], _value(node[2], scope), _value(node[3], scope)
    if operator in {"==", "!="}:
        same = left == right and isinstance(left, bool) is isinstance(right, bool)
        return same is (operator == "==")
    if operator == "in":
        if not isinstance(right, (list, dict)):
            raise CelError(f"no such overload: in {_name(right)}")
        return left in right
    if operator in _ORDER:
        if not _comparable(left, right):
            raise CelError(f"no such overload: {_name(left)} {operator} {_name(right)}")
        return _ORDER[operator](left, right)
    return _arithmetic(operator, left, right)


_ORDER: dict[str, Callable[[Value, Value], bool]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def _is_number(value: Value) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _comparable(left: Value, right: Value) -> bool:
    return (isinstance(left, str) and isinstance(right, str)) or (_is_number(left) and _is_number(right))


def _arithmetic(operator: str, left: Value, right: Value) -> Value:
    if operator == "+" and type(left) is type(right) and isinstance(left, (str, list)):
        return left + right
    if not (_is_number(left) and _is_number(right)):
        raise CelError(f"no such overload: {_name(left)} {operator} {_name(right)}")
    if operator in {"/", "%"} and right == 0:
        raise CelError("division by zero")
    match operator:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "/":
            whole = isinstance(left, int) and isinstance(right, int)
            return int(left / right) if whole else left / right
    return left - right * int(left / right)


def _macro(node: Node, scope: Variables) -> Value:
    _, name, owner_node, variable, bodies = node
    owner = _value(owner_node, scope)
    if isinstance(owner, _Optional):
        owner = owner.value if owner.present else []
    if not isinstance(owner, (list, dict)):
        raise CelError(f"{name}: {_name(owner)} is neither a list nor a map")
    scopes = [{**scope, variable: item} for item in owner]
    body = bodies[0]
    match name:
        case "exists":
            return _decide((lambda inner=inner: _value(body, inner) for inner in scopes), True)  # type: ignore[misc]
        case "all":
            return _decide((lambda inner=inner: _value(body, inner) for inner in scopes), False)  # type: ignore[misc]
        case "filter":
            return [inner[variable] for inner in scopes if _boolean(_value(body, inner))]
        case "map":
            kept = scopes if len(bodies) == 1 else [inner for inner in scopes if _boolean(_value(body, inner))]
            return [_value(bodies[-1], inner) for inner in kept]
    return sum(_boolean(_value(body, inner)) for inner in scopes) == 1


def _size(value: Value) -> int:
    if not isinstance(value, (str, list, dict)):
        raise CelError(f"no such overload: size({_name(value)})")
    return len(value)


def _integer(value: Value) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        raise CelError(f"cannot convert {value!r:.40} to int") from None


def _string(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _matches(text: str, pattern: str) -> bool:
    try:
        return re.search(pattern, text) is not None
    except re.error as error:
        raise CelError(f"bad pattern {pattern!r}: {error}") from error


def _or_value(optional: Value, default: Value) -> Value:
    return optional.value if optional.present else default


_FUNCTIONS: dict[tuple[str, int], tuple[tuple[type, ...], Callable[..., Value]]] = {
    ("size", 1): ((object,), _size),
    ("startsWith", 2): ((str, str), lambda text, part: text.startswith(part)),
    ("endsWith", 2): ((str, str), lambda text, part: text.endswith(part)),
    ("contains", 2): ((str, str), lambda text, part: part in text),
    ("matches", 2): ((str, str), _matches),
    ("lowerAscii", 1): ((str,), lambda text: text.lower()),
    ("upperAscii", 1): ((str,), lambda text: text.upper()),
    ("trim", 1): ((str,), lambda text: text.strip()),
    ("split", 2): ((str, str), lambda text, by: text.split(by)),
    ("replace", 3): ((str, str, str), lambda text, old, new: text.replace(old, new)),
    ("join", 2): ((list, str), lambda items, by: by.join(items)),
    ("orValue", 2): ((_Optional, object), _or_value),
    ("hasValue", 1): ((_Optional,), lambda optional: optional.present),
    ("int", 1): ((object,), _integer),
    ("string", 1): ((object,), _string),
    ("dyn", 1): ((object,), lambda value: value),
}


def _call(node: Node, scope: Variables) -> Value:
    name, arguments = node[1], [_value(argument, scope) for argument in node[2]]
    found = _FUNCTIONS.get((name, len(arguments)))
    if found is None:
        raise CelError(f"undeclared reference to '{name}' with {len(arguments)} arguments")
    types, function = found
    if not all(isinstance(argument, type_) for argument, type_ in zip(arguments, types, strict=True)):
        raise CelError(f"no such overload: {name}({', '.join(_name(argument) for argument in arguments)})")
    return function(*arguments)


def _name(value: Value) -> str:
    names = {bool: "bool", int: "int", float: "double", str: "string", list: "list", dict: "map", type(None): "null"}
    return names.get(type(value), type(value).__name__)


_EVALUATORS: dict[str, Callable[[Node, Variables], Value]] = {
    "value": _literal,
    "variable": _variable,
    "field": _field,
    "index": _index,
    "optional": _optional,
    "has": _has,
    "if": _if,
    "or": _or,
    "and": _and,
    "not": _not,
    "negative": _negative,
    "list": _list,
    "map": _map,
    "binary": _binary,
    "macro": _macro,
    "call": _call,
}
