"""The parameters of a notebook: read from its parameters cell without running it, and checked.

Papermill only prints a line about a name it does not know, and carries a numpy scalar, a path or a
tuple as a string; a sweep would then run every point with the defaults. Here a wrong name or type
is refused before any kernel starts, and what is passed on is a literal that arrives as it left.
"""

from __future__ import annotations

import ast
import io
import os
import tokenize
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mmlab.errors import UsageError, unknown
from mmlab.notebook import finding, types
from mmlab.notebook.types import Literal


@dataclass(frozen=True)
class Parameter:
    """One line of the parameters cell: `name: annotation = default  # help`."""

    name: str
    annotation: str
    default: Literal
    help: str

    def check(self, value: object) -> Literal:
        """`value` as the literal that the notebook gets; UsageError where its type does not fit."""
        try:
            return types.fit(ast.parse(self.annotation, mode="eval").body, types.literal(value))
        except types.Mismatch as mismatch:
            raise UsageError(
                f"parameter {self.name!r}: {mismatch}, wanted {self.annotation}"
                + (f" ({self.help})" if self.help else "")
            ) from None


def parameters(path: str | os.PathLike[str]) -> dict[str, Parameter]:
    """The parameters of a notebook, in order. Nothing is executed.

    UsageError: no cell is tagged `parameters`, or the cell has more in it than literals.
    """
    cells = [cell for cell in finding.load(path)["cells"] if "parameters" in finding.tags(cell)]
    name = Path(path).name
    if len(cells) != 1:
        raise UsageError(
            f"{name} has {len(cells)} cells tagged 'parameters', wanted 1: "
            "tag the cell with the defaults (in JupyterLab: property inspector, cell tags)"
        )
    try:
        return parse(cells[0]["source"])
    except UsageError as error:
        raise UsageError(f"{name}, parameters cell, {error}") from None


def parse(source: str) -> dict[str, Parameter]:
    """The parameters in the source of a parameters cell."""
    try:
        statements = ast.parse(source).body
    except SyntaxError as error:
        raise UsageError(
            f"line {error.lineno}: {error.msg}, wanted 'name: type = literal'"
        ) from None
    comments = {
        token.start[0]: token.string.lstrip("# ").strip()
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    found: dict[str, Parameter] = {}
    for statement in statements:
        parameter = _parameter(statement, comments.get(statement.end_lineno or 0, ""))
        if parameter.name in found:
            raise UsageError(f"line {statement.lineno}: {parameter.name!r} is set a second time")
        found[parameter.name] = parameter
    return found


def _parameter(statement: ast.stmt, comment: str) -> Parameter:
    where = f"line {statement.lineno}"
    annotation = ""
    match statement:
        case ast.AnnAssign(target=ast.Name(id=name), annotation=typed, value=ast.expr() as value):
            annotation = ast.unparse(typed)
        case ast.Assign(targets=[ast.Name(id=name)], value=value):
            pass
        case _:
            raise UsageError(
                f"{where}: got {ast.unparse(statement)!r}, wanted a literal assignment"
            )
    try:
        default = types.literal(ast.literal_eval(value))
    except (ValueError, types.Mismatch):
        raise UsageError(f"{where}: {name} is {ast.unparse(value)!r}, wanted a literal") from None
    parameter = Parameter(name, annotation or type(default).__name__, default, comment)
    if not annotation and default is None:
        parameter = Parameter(name, "object", default, comment)
    try:
        parameter.check(default)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
    return parameter


def check(path: str | os.PathLike[str], given: Mapping[str, object]) -> dict[str, Literal]:
    """`given` as literals of this notebook's types. UsageError names what does not fit."""
    known = parameters(path)
    strangers = [name for name in given if name not in known]
    if strangers:
        kind = f"parameter of {Path(path).stem}:"
        raise UsageError("; ".join(str(unknown(kind, name, known)) for name in strangers))
    return {name: known[name].check(value) for name, value in given.items()}


def from_text(path: str | os.PathLike[str], given: Mapping[str, str]) -> dict[str, Literal]:
    """Like `check`, for values typed on a command line: `3`, `true`, `none`, `a,b` for a list."""
    known = parameters(path)
    return check(
        path,
        {
            name: types.read(known[name].annotation, text) if name in known else text
            for name, text in given.items()
        },
    )
