"""`import mmlab` is light, and a wheel is whole."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path

import pytest
from checkout import ROOT, files, python

HEAVY = {"transformers", "torchvision", "pandas", "matplotlib", "memray", "papermill", "skimage"}
HEAVY |= {"pyarrow", "scipy", "PIL", "ray", "IPython"}
OWN = {"mmlab", "msgspec", "zmq", "psutil", "_psutil_linux", "xxhash"}


def loaded_by(modules: str) -> set[str]:
    script = f"import json, sys, {modules}; print(json.dumps([*sys.modules]))"
    return {name.split(".")[0] for name in json.loads(python("-c", script))}


def test_import_needs_the_core_alone_and_adds_only_its_own_few_to_those_of_torch() -> None:
    """What an import costs beyond torch's own, in packages: a clock would measure the machine."""
    loaded = loaded_by("mmlab")
    assert "torch" in loaded
    assert not loaded & HEAVY
    added = loaded - loaded_by("torch, numpy") - set(sys.stdlib_module_names)
    # zmq is a Cython extension, whose runtime is a module with its version in its name
    assert {name for name in added if not name.startswith("_cython_")} <= OWN


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    python("-m", "build", "--no-isolation", "--wheel", "--outdir", str(out), str(ROOT))
    (built,) = out.glob("*.whl")
    return built


def test_the_wheel_carries_package_notebooks_and_data(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    places = {"mmlab": "mmlab", "notebooks": "mmlab/_notebooks", "data": "mmlab/_data"}
    wanted = {
        f"{place}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, place in places.items()
        for path in files(ROOT / folder)
    }
    assert {"mmlab/_notebooks/00_quickstart.ipynb", "mmlab/_data/published/published.csv"} <= wanted
    assert {name for name in names if ".dist-info/" not in name} == wanted
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_the_wheel_works_without_the_repository(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    script = "import mmlab; print(mmlab.__file__)"
    printed = python("-c", script, cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert Path(printed.strip()) == tmp_path / "mmlab" / "__init__.py"
    script = "from mmlab.bench.workloads import WORKLOADS; print(len(WORKLOADS), *WORKLOADS)"
    printed = python("-c", script, cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert printed == "7 doc-mix single multi video audio ragged many-small\n"
