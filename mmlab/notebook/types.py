"""The types that a parameter may have, and values made to fit them.

A closed set, since every value must be written into a cell as a literal and read back the same:
str, int, float, bool, None, lists, and dicts with names as keys.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Sequence

Literal = str | int | float | bool | None | list["Literal"] | dict[str, "Literal"]


class Mismatch(Exception):
    """A value does not fit; the message says what was got."""


def literal(value: object) -> Literal:
    """The value in the closed set: numpy scalars and arrays, paths and tuples are converted."""
    if value is None or isinstance(value, str | bool | int | float):
        return _plain(value)
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    convert = getattr(value, "tolist", None)  # numpy scalars and arrays, without importing numpy
    if callable(convert):
        return literal(convert())
    if isinstance(value, list | tuple):
        return [literal(item) for item in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {str(key): literal(item) for key, item in value.items()}
    raise Mismatch(f"got {_shown(value)}, which is no literal")


def _plain(value: str | int | float | bool | None) -> Literal:
    """Subclasses (a str or int Enum, numpy.float64) become the builtin that they are."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    return int.__index__(value) if isinstance(value, int) else float.__float__(value)


def _shown(value: object) -> str:
    return f"{value!r:.60} ({type(value).__name__})"


def fit(annotation: ast.expr, value: Literal) -> Literal:
    """The value as the annotation says (an int becomes a float if wanted), or Mismatch."""
    match annotation:
        case ast.Constant(value=None):
            fits = value is None
        case ast.Constant(value=str(text)):
            return fit(ast.parse(text, mode="eval").body, value)
        case ast.Name(id="object" | "Any"):
            fits = True
        case ast.Name(id="float"):
            if isinstance(value, int) and not isinstance(value, bool):
                return float(value)
            fits = isinstance(value, float)
        case ast.Name(id="int"):
            fits = isinstance(value, int) and not isinstance(value, bool)
        case ast.Name(id="str" | "bool" | "list" | "dict" as name):
            fits = isinstance(value, {"str": str, "bool": bool, "list": list, "dict": dict}[name])
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _either([left, right], value)
        case ast.Subscript(value=ast.Name(id="Optional"), slice=inner):
            return _either([ast.Constant(None), inner], value)
        case ast.Subscript(value=ast.Name(id="list"), slice=inner) if isinstance(value, list):
            return [fit(inner, item) for item in value]
        case ast.Subscript(
            value=ast.Name(id="dict"), slice=ast.Tuple(elts=[ast.Name(id="str"), inner])
        ) if isinstance(value, dict):
            return {key: fit(inner, item) for key, item in value.items()}
        case ast.Subscript(value=ast.Name(id="list" | "dict")):
            fits = False
        case _:
            raise Mismatch(
                f"its type {ast.unparse(annotation)!r} is none that a parameter may have"
            )
    if not fits:
        raise Mismatch(f"got {_shown(value)}")
    return value


def _either(choices: list[ast.expr], value: Literal) -> Literal:
    for choice in choices:
        try:
            return fit(choice, value)
        except Mismatch:
            continue
    raise Mismatch(f"got {_shown(value)}")


def joined(names: str | Sequence[str]) -> str:
    """`a,b` of a list of names or of `a,b`: papermill's `-p` gives text where a list is wanted."""
    return names if isinstance(names, str) else ",".join(names)


def read(annotation: str, text: str) -> Literal:
    """The value that someone typed for this annotation; text that is no literal stays text."""
    words: dict[str, Literal] = {
        "true": True,
        "false": False,
        "none": None,
        "nan": float("nan"),
        "inf": float("inf"),
    }
    if annotation == "str":
        return text
    if text.lower() in words:
        return words[text.lower()]
    try:
        return literal(ast.literal_eval(text))
    except (ValueError, SyntaxError, Mismatch):
        pass
    if annotation.startswith("list"):
        inner = annotation.removeprefix("list[").removesuffix("]") if "[" in annotation else "str"
        return [read(inner, part.strip()) for part in text.split(",") if part.strip()]
    return text
