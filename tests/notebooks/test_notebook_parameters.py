"""Parameters are read without running anything, and refused by name and type before a kernel."""

from __future__ import annotations

import enum
import math
from pathlib import Path

import numpy as np
import pytest
from small_notebooks import write

from mmlab import notebook
from mmlab.errors import UsageError


class Colour(str, enum.Enum):  # noqa: UP042  (the kind that is a str itself)
    RED = "red"


def test_the_cell_is_parsed_with_types_defaults_and_help(tmp_path: Path) -> None:
    nb = write(tmp_path / "a.ipynb", "raise SystemExit('executed')")
    found = notebook.parameters(nb)
    assert list(found) == ["size", "name", "rate", "fast", "names", "limit", "out_dir"]
    assert found["size"] == notebook.Parameter("size", "int", 4, "number of images")
    assert found["limit"].annotation == "float | None"
    assert found["names"].default == []


@pytest.mark.parametrize(
    ("given", "arrives"),
    [
        ({"size": np.int64(3)}, {"size": 3}),
        ({"rate": np.float32(0.25)}, {"rate": 0.25}),
        ({"rate": 1}, {"rate": 1.0}),
        ({"fast": np.bool_(True)}, {"fast": True}),
        ({"name": Path("a") / "b"}, {"name": "a/b"}),
        ({"name": Colour.RED}, {"name": "red"}),
        ({"names": ("a", Colour.RED)}, {"names": ["a", "red"]}),
        ({"names": np.array(["a", "b"])}, {"names": ["a", "b"]}),
        ({"limit": None}, {"limit": None}),
        ({"limit": np.float64(2)}, {"limit": 2.0}),
    ],
)
def test_values_become_literals(
    tmp_path: Path, given: dict[str, object], arrives: dict[str, object]
) -> None:
    checked = notebook.check(write(tmp_path / "a.ipynb"), given)
    assert checked == arrives
    for name, value in checked.items():
        assert type(value) is type(arrives[name])


@pytest.mark.parametrize("value", [float("nan"), np.float32("nan")])
def test_nan_stays_nan(tmp_path: Path, value: float) -> None:
    arrived = notebook.check(write(tmp_path / "a.ipynb"), {"limit": value})["limit"]
    assert isinstance(arrived, float)
    assert math.isnan(arrived)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"size": "8"}, r"'size': got '8' \(str\), wanted int \(number of images\)"),
        ({"size": True}, r"'size': got True \(bool\), wanted int"),
        ({"size": 2.5}, r"'size': got 2.5 \(float\), wanted int"),
        ({"size": None}, r"'size': got None \(NoneType\), wanted int"),
        ({"fast": 1}, r"'fast': got 1 \(int\), wanted bool"),
        ({"names": "a,b"}, r"'names': got 'a,b' \(str\), wanted list\[str\]"),
        ({"names": [1]}, r"'names': got 1 \(int\), wanted list\[str\]"),
        ({"limit": "much"}, r"'limit': got 'much' \(str\), wanted float \| None \(upper bound\)"),
        ({"name": object()}, r"'name': got <object .*, which is no literal, wanted str"),
        ({"name": b"x"}, r"'name': got b'x' \(bytes\), which is no literal, wanted str"),
    ],
)
def test_a_wrong_type_is_named_with_what_was_expected(
    tmp_path: Path, given: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        notebook.check(write(tmp_path / "a.ipynb"), given)


def test_an_unknown_parameter_is_named_with_the_known_ones_and_a_guess(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        notebook.check(write(tmp_path / "a.ipynb"), {"sizee": 8, "zzz": 1})
    said = str(caught.value)
    assert "'sizee': did you mean 'size'?" in said
    assert "'zzz'" in said
    assert "known: size, name, rate, fast, names, limit, out_dir" in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("size: int = 2 + x", "line 1: size is '2 \\+ x', wanted a literal"),
        ("import os", "line 1: got 'import os', wanted a literal assignment"),
        ("size: int = 1\nsize: int = 2", "line 2: 'size' is set a second time"),
        ("size: int = 'a'", "line 1: parameter 'size': got 'a' \\(str\\), wanted int"),
        ("size: complex = 1", "'complex' is none that a parameter may have"),
        ("size: int", "wanted a literal assignment"),
        ("%matplotlib inline", "line 1: invalid syntax"),
        ("a, b = 1, 2", "wanted a literal assignment"),
    ],
)
def test_a_cell_that_is_more_than_literals_is_refused(
    tmp_path: Path, source: str, message: str
) -> None:
    with pytest.raises(UsageError, match=f"a.ipynb, parameters cell, .*{message}"):
        notebook.parameters(write(tmp_path / "a.ipynb", parameters=source))


def test_no_parameters_cell_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"a\.ipynb has 0 cells tagged 'parameters', wanted 1"):
        notebook.parameters(write(tmp_path / "a.ipynb", "x = 1", parameters=None))


def test_negative_numbers_and_untyped_lines_are_literals(tmp_path: Path) -> None:
    found = notebook.parameters(write(tmp_path / "a.ipynb", parameters="a = -1.5\nb = 'x'  # b"))
    assert (found["a"].default, found["a"].annotation) == (-1.5, "float")
    assert (found["b"].annotation, found["b"].help) == ("str", "b")


@pytest.mark.parametrize(
    ("text", "arrives"),
    [
        ({"size": "8"}, {"size": 8}),
        ({"name": "8"}, {"name": "8"}),
        ({"fast": "true"}, {"fast": True}),
        ({"limit": "none"}, {"limit": None}),
        ({"limit": "1e3"}, {"limit": 1000.0}),
        ({"names": "a,b"}, {"names": ["a", "b"]}),
        ({"names": "['a', 'b']"}, {"names": ["a", "b"]}),
        ({"names": "pickle"}, {"names": ["pickle"]}),
        ({"names": ""}, {"names": []}),
    ],
)
def test_text_of_a_command_line_is_read_by_the_type(
    tmp_path: Path, text: dict[str, str], arrives: dict[str, object]
) -> None:
    assert notebook.from_text(write(tmp_path / "a.ipynb"), text) == arrives


@pytest.mark.parametrize("given", ["a,b", ["a", "b"], ("a", "b")])
def test_names_are_joined_from_a_list_and_from_text(given: str | list[str]) -> None:
    assert notebook.joined(given) == "a,b"
    assert notebook.joined("") == notebook.joined([]) == ""


def test_text_of_a_wrong_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'size': got 'many' \(str\), wanted int"):
        notebook.from_text(write(tmp_path / "a.ipynb"), {"size": "many"})


@pytest.mark.parametrize("text", ["not json", "[]", '{"nbformat": 3, "worksheets": []}'])
def test_a_file_that_is_no_notebook_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.ipynb"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"a\.ipynb"):
        notebook.parameters(path)
