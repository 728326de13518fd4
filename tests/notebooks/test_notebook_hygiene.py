"""What `strip` takes away, what `problems` sees, and that every shipped notebook is clean."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from small_notebooks import write

from mmlab import notebook

SHIPPED = notebook.available()


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_notebooks_are_clean(name: str) -> None:
    assert notebook.problems(SHIPPED[name]) == []


@pytest.mark.parametrize("name", SHIPPED)
def test_papermill_sees_the_same_parameters(name: str) -> None:
    papermill = pytest.importorskip("papermill", reason="papermill is not installed")
    found = papermill.inspect_notebook(str(SHIPPED[name]))
    assert {n: p["help"] for n, p in found.items()} == {
        n: p.help for n, p in notebook.parameters(SHIPPED[name]).items()
    }


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_notebooks_are_valid_and_ask_one_question(name: str) -> None:
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    nbformat.validate(nbformat.read(SHIPPED[name], as_version=4))
    assert notebook.title(SHIPPED[name]).endswith("?")


def test_the_quickstart_is_shipped_and_found_by_its_short_name() -> None:
    assert notebook.find("quickstart") == notebook.find("00_quickstart") == SHIPPED["00_quickstart"]


def _used(path: Path) -> Path:
    """A notebook as papermill leaves it."""
    nb = write(path, "x = 1\n", "y = 2")
    document = json.loads(nb.read_text())
    document["metadata"]["papermill"] = {"start_time": "2026-11-30T20:00:00", "parameters": {}}
    document["metadata"]["language_info"] = {"name": "python", "version": "3.11.7"}
    code = [cell for cell in document["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(code):
        cell["execution_count"] = number + 1
        cell["metadata"] |= {"papermill": {"duration": 0.1}, "execution": {"iopub.status": "x"}}
        cell["outputs"] = [
            {
                "output_type": "execute_result",
                "execution_count": number + 1,
                "data": {"text/plain": "1"},
                "metadata": {},
            }
        ]
    injected = json.loads(json.dumps(code[0]))
    injected |= {"id": "injected", "metadata": {"tags": ["injected-parameters"]}}
    document["cells"].insert(2, injected)
    document["cells"][-1]["id"] = document["cells"][-2]["id"]  # repeated
    nb.write_text(json.dumps(document))
    return nb


def test_strip_leaves_nothing_that_changes_without_a_reason(tmp_path: Path) -> None:
    nb = _used(tmp_path / "a.ipynb")
    assert notebook.problems(nb)
    assert notebook.strip(nb) is True
    assert notebook.problems(nb) == []
    text = nb.read_text()
    for gone in ("papermill", "2026-11-30", "3.11.7", "injected", "duration", "text/plain"):
        assert gone not in text
    ids = [cell["id"] for cell in json.loads(text)["cells"]]
    assert ids[:3] == ["c0", "c1", "c2"]
    assert len(set(ids)) == len(ids) == 4
    assert notebook.strip(nb) is False
    assert nb.read_text() == text


def test_strip_can_keep_outputs(tmp_path: Path) -> None:
    nb = _used(tmp_path / "a.ipynb")
    notebook.strip(nb, keep_outputs=True)
    cell = json.loads(nb.read_text())["cells"][-1]
    assert cell["outputs"][0]["data"] == {"text/plain": "1"}
    assert cell["outputs"][0]["execution_count"] is None
    assert cell["execution_count"] is None


@pytest.mark.parametrize(
    ("code", "parameters", "problem"),
    [
        ("open('/home/me/x')", "a: int = 1  # b", "absolute path"),
        ("\n".join(f"x{n} = {n}" for n in range(16)), "a: int = 1  # b", "more than 15 lines"),
        ("x = 1", "a: int = 1", "parameter a has no help"),
        ("x = 1", "a = 1  # b", "parameter line 1 has no type"),
        ("x = 1", "a: list[int] = [\n1]  # b", "several lines"),
        ("x = 1", "a: int = f()  # b", "wanted a literal"),
        ("x = 1", None, "0 cells tagged"),
        (f"x = '{'y' * 300_000}'", "a: int = 1  # b", "wanted at most 300,000"),
    ],
)
def test_problems_are_seen(tmp_path: Path, code: str, parameters: str | None, problem: str) -> None:
    nb = write(tmp_path / "a.ipynb", code, parameters=parameters)
    notebook.strip(nb)
    assert [line for line in notebook.problems(nb) if problem in line]
