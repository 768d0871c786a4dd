"""Parsed JSON as dataclasses, by the types of their fields."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")

#: A function that returns a value of some type for one of JSON, or raises WrongJson.
Reader = Callable[[Any], Any]

_NAMES = {str: "a string", int: "a whole number", bool: "true or false", dict: "an object", list: "a list"}


class WrongJson(Exception):
    """JSON that does not fit a type; its text says which field, and why."""

    def __init__(self, why: str, *path: str):
        super().__init__(why)
        self.why, self.path = why, path

    def __str__(self) -> str:
        return f"{'.'.join(self.path)} {self.why}".lstrip()


def of_json(kind: type[T], value: object) -> T:
    """Return ``value``, which json.loads gave, as the dataclass ``kind``; fields that it does not have are ignored.

    Its fields are str, int, bool, an Enum, a NamedTuple (a list in JSON), a dataclass, which its own ``of`` reads if it
    has one, and ``X | None``, ``tuple[X, ...]`` and ``Mapping[str, X]`` of these. Raise WrongJson.
    """
    found: T = _dataclass(kind)(value)  # type: ignore[arg-type]
    return found


@cache
def _reader(kind: Any) -> Reader:
    origin, of = get_origin(kind), get_args(kind)
    if kind is Any:
        return lambda value: value
    if origin is UnionType:
        known = _reader(next(k for k in of if k is not NoneType))
        return lambda value: None if value is None else known(value)
    if origin is tuple:
        each, whole = _reader(of[0]), _of_type(list)
        return lambda value: tuple(_at(str(n), each, v) for n, v in enumerate(whole(value)))
    if origin is not None:  # Mapping, or dict
        each, whole = _reader(of[1]), _of_type(dict)
        return lambda value: {k: _at(k, each, v) for k, v in whole(value).items()}
    if issubclass(kind, Enum):
        return _enum(kind)
    if issubclass(kind, tuple):
        return _named_tuple(kind)
    if not is_dataclass(kind):
        return _of_type(kind)
    own: Reader | None = getattr(kind, "of", None)
    return own or _dataclass(kind)  # type: ignore[arg-type]


def _of_type(kind: type) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is kind:
            return value
        raise WrongJson(f"is not {_NAMES[kind]}")

    return read


def _enum(kind: type[Enum]) -> Reader:
    def read(value: Any) -> Any:
        try:
            return kind(value)
        except ValueError:
            raise WrongJson(f"is not one of {', '.join(str(k.value) for k in kind)}") from None

    return read


def _named_tuple(kind: type[Any]) -> Reader:
    hints = get_type_hints(kind)
    readers, whole = [_reader(hints[name]) for name in kind._fields], _of_type(list)

    def read(value: Any) -> Any:
        try:
            return kind(*(r(v) for r, v in zip(readers, whole(value), strict=False)))
        except TypeError:
            raise WrongJson("has too few values") from None

    return read


@cache
def _dataclass(kind: Any) -> Reader:
    hints, whole = get_type_hints(kind), _of_type(dict)
    readers = {f.name: _reader(hints[f.name]) for f in fields(kind)}
    needed = [f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING]

    def read(value: Any) -> Any:
        missing = next((name for name in needed if name not in whole(value)), None)
        if missing is not None:
            raise WrongJson("is missing", missing)
        return kind(**{name: _at(name, r, value[name]) for name, r in readers.items() if name in value})

    return read


def _at(step: str, read: Reader, value: Any) -> Any:
    try:
        return read(value)
    except WrongJson as e:
        raise WrongJson(e.why, step, *e.path) from None
