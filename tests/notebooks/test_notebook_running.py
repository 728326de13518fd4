"""Notebooks run through papermill: refused before a kernel, failed when failed, partly kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from small_notebooks import outputs, write

from mmlab import notebook
from mmlab.errors import UsageError
from mmlab.notebook import running

papermill = pytest.importorskip("papermill", reason="papermill is not installed")

SHOW = "import sys\nprint([size, name, rate, fast, names, limit])\nprint(out_dir)\n"


def _run(path: Path, parameters: dict[str, object], out: Path) -> Path:
    return notebook.execute(path, parameters, out, log=False)


@pytest.mark.parametrize(
    ("parameters", "code"),
    [({"sizee": 8}, "x = 1"), ({"size": "8"}, "x = 1"), (None, None)],
    ids=["unknown", "wrong type", "no parameters cell"],
)
def test_nothing_is_started_for_what_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    parameters: dict[str, object] | None,
    code: str | None,
) -> None:
    def started(*_: object, **__: object) -> None:
        raise AssertionError("papermill was called")

    monkeypatch.setattr(papermill, "execute_notebook", started)
    nb = write(tmp_path / "a.ipynb", "x = 1", **({} if code else {"parameters": None}))
    with pytest.raises(UsageError):
        _run(nb, parameters or {}, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_values_arrive_as_they_left_and_the_kernel_is_this_python(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    nb = write(tmp_path / "a.ipynb", SHOW + "print(sys.executable)")
    given: dict[str, object] = {
        "size": 3,
        "name": 'quote " back\\slash {brace} é\n',
        "rate": float("inf"),
        "fast": True,
        "names": ("a", "b"),
        "limit": float("nan"),
    }
    done = notebook.execute(nb, given, tmp_path / "out {x}")
    said = outputs(done)
    assert repr([3, given["name"], float("inf"), True, ["a", "b"], float("nan")]) in said
    assert str(tmp_path / "out {x}") in said
    assert said.splitlines()[-1] == sys.executable
    told = capfd.readouterr()
    assert said.splitlines()[0] in told.err  # what a notebook prints is progress, on stderr
    assert told.out == ""
    json.loads(done.read_text(), parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


def test_a_failing_cell_raises_and_what_ran_is_kept(tmp_path: Path) -> None:
    nb = write(tmp_path / "a.ipynb", "print('before')", "boom = 1 / 0", "print('after')")
    with pytest.raises(notebook.NotebookError, match="starts with 'boom = 1 / 0'") as caught:
        _run(nb, {}, tmp_path / "out")
    assert caught.value.ename == "ZeroDivisionError"
    assert caught.value.output == tmp_path / "out" / "a.ipynb"
    assert outputs(caught.value.output) == "before\n"


@pytest.mark.parametrize(
    "code",
    [
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
        "import os; os._exit(0)",
        "import warnings, sys; warnings.simplefilter('ignore'); sys.exit(0)",
    ],
    ids=["killed", "exited", "sys.exit(0)"],
)
def test_a_kernel_that_ends_early_is_a_failure_within_ten_seconds(
    tmp_path: Path, code: str
) -> None:
    nb = write(tmp_path / "a.ipynb", "print('before', flush=True)", code, "print('after')")
    start = time.monotonic()
    with pytest.raises(notebook.NotebookError) as caught:
        _run(nb, {}, tmp_path / "out")
    assert time.monotonic() - start < 10 + 10  # the kernel's own start, on a loaded machine
    assert outputs(caught.value.output) == "before\n"


def test_two_notebooks_at_once_do_not_take_each_others_ports(tmp_path: Path) -> None:
    nb = write(tmp_path / "a.ipynb", SHOW)
    with ThreadPoolExecutor(2) as threads:
        done = list(threads.map(lambda n: _run(nb, {"size": n}, tmp_path / f"{n}"), range(4)))
    for number, path in enumerate(done):
        assert outputs(path).startswith(f"[{number},")


def test_the_kernel_leaves_no_socket_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "t").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "t"))
    _run(write(tmp_path / "a.ipynb", "x = 1"), {}, tmp_path / "out")
    assert not list((tmp_path / "t").iterdir())


def test_the_notebook_itself_is_never_written_over(tmp_path: Path) -> None:
    nb = write(tmp_path / "a.ipynb", "x = 1")
    with pytest.raises(UsageError, match=r"is where a\.ipynb itself is"):
        _run(nb, {}, tmp_path)


def test_an_unknown_notebook_is_named_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"unknown notebook 'quickstrat': .*00_quickstart"):
        notebook.execute("quickstrat", {}, "out")
    with pytest.raises(UsageError, match=r"no notebook at nowhere/x\.ipynb"):
        notebook.find("nowhere/x.ipynb")


def test_a_virtual_environment_need_not_be_active_and_an_event_loop_may_run(tmp_path: Path) -> None:
    """An empty PATH, another Python's kernel in the user's folder, and a call as from a cell."""
    nb = write(tmp_path / "a.ipynb", "import sys; print(sys.executable)")
    kernel = tmp_path / ".local" / "share" / "jupyter" / "kernels" / "python3"
    kernel.mkdir(parents=True)
    spec = {"argv": ["/bin/false", "{connection_file}"], "language": "python", "display_name": "x"}
    (kernel / "kernel.json").write_text(json.dumps(spec))
    code = (
        "import asyncio\n"
        "from mmlab import notebook\n"
        "async def cell():\n"
        f"    notebook.execute({str(nb)!r}, {{}}, {str(tmp_path / 'out')!r}, log=False)\n"
        "asyncio.run(cell())\n"
    )
    environment = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("VIRTUAL_ENV", "JUPYTER", "CONDA", "XDG_DATA"))
    }
    environment |= {"PATH": "", "HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=50)
    assert outputs(tmp_path / "out" / "a.ipynb").strip() == sys.executable


@pytest.mark.parametrize(("here", "runs"), [("notebooks", "runs"), ("work", "work/runs")])
def test_a_run_without_a_folder_gets_one_by_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: str, runs: str
) -> None:
    (tmp_path / here).mkdir()
    monkeypatch.chdir(tmp_path / here)
    folder = notebook.run_dir("")
    assert folder.is_dir()
    assert folder.parent == tmp_path / runs
    assert notebook.run_dir(tmp_path / "mine") == tmp_path / "mine"


def test_a_full_disk_is_said_and_not_hidden_by_the_half_written_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_space(source: Path, output: Path, values: object, log: bool) -> None:
        output.write_text('{"cells": [{"cell_ty', encoding="utf-8")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(running, "_papermill", no_space)
    source = write(tmp_path / "one.ipynb", "print(1)")
    with pytest.raises(notebook.NotebookError, match=r"out: No space left on device"):
        notebook.execute(source, {}, tmp_path / "out")
