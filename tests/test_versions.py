"""One set of versions, whichever way it is installed: make, CI, pip or conda.

conda is not at hand everywhere, so that environment.yml agrees is checked on its text.
"""

from __future__ import annotations

import importlib.metadata
import re
from typing import Any

import pytest
import yaml
from checkout import ROOT, make
from checkout import pyproject as read_pyproject
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

CHOSEN_BY_TORCH = re.compile(r"nvidia-|cuda-|triton$")


@pytest.fixture(scope="module")
def pyproject() -> dict[str, Any]:
    return read_pyproject()


@pytest.fixture(scope="module")
def direct(pyproject: dict[str, Any]) -> list[Requirement]:
    """Every dependency of the core and of every extra, less the extra that names the others."""
    project = pyproject["project"]
    listed = [project["dependencies"], *project["optional-dependencies"].values()]
    requirements = [Requirement(text) for texts in listed for text in texts]
    return [requirement for requirement in requirements if requirement.name != "mmlab"]


@pytest.fixture(scope="module")
def pins() -> dict[str, Version]:
    pinned: dict[str, Version] = {}
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            name, version = line.split("==")
            assert canonicalize_name(name) not in pinned, f"{name} is pinned twice"
            pinned[canonicalize_name(name)] = Version(version)
    return pinned


def test_every_direct_dependency_is_pinned_within_its_range(
    direct: list[Requirement], pins: dict[str, Version]
) -> None:
    for requirement in direct:
        name = canonicalize_name(requirement.name)
        assert name in pins, f"constraints.txt lacks {name}"
        assert requirement.specifier.contains(pins[name]), f"{requirement} excludes {pins[name]}"


def test_everything_that_is_installed_for_it_is_pinned_and_is_that_version(
    direct: list[Requirement], pins: dict[str, Version]
) -> None:
    todo, seen = list(direct), set()
    while todo:
        requirement = todo.pop()
        key = (canonicalize_name(requirement.name), frozenset(requirement.extras))
        if key in seen or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        seen.add(key)
        try:
            found = importlib.metadata.distribution(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if not CHOSEN_BY_TORCH.match(key[0]):
            assert key[0] in pins, f"constraints.txt lacks {key[0]} {found.version}"
            assert Version(found.version).public == str(pins[key[0]]), f"{key[0]} {found.version}"
        for needed in map(Requirement, found.requires or []):
            wanted = needed.marker is None or any(
                needed.marker.evaluate({"extra": extra}) for extra in ("", *requirement.extras)
            )
            if wanted:
                needed.marker = None
                todo.append(needed)
    assert len(seen) > 60


def test_the_pins_fit_the_first_release_of_every_python_that_is_promised(
    pins: dict[str, Version],
) -> None:
    """Debian 12 has 3.11.2, and a package may ask for 3.11.5."""
    for name in pins:
        try:
            found = importlib.metadata.metadata(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # for another Python
        for first in ("3.11.0", "3.12.0", "3.13.0"):
            wanted = SpecifierSet(str(found.json.get("requires_python", "")))
            assert wanted.contains(first), f"{name} {found['Version']} wants Python {wanted}"


def test_all_names_every_extra(pyproject: dict[str, Any]) -> None:
    extras = pyproject["project"]["optional-dependencies"]
    (everything,) = map(Requirement, extras["all"])
    assert everything.name == "mmlab"
    assert everything.extras == set(extras) - {"all"}
    assert {"models", "notebooks", "data", "ray", "test"} <= everything.extras


def test_conda_installs_the_same(pyproject: dict[str, Any]) -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    assert environment["name"] == pyproject["project"]["name"]
    assert environment["channels"] == ["conda-forge", "nodefaults"]
    *from_conda, from_pip = environment["dependencies"]
    assert [entry.split()[0] for entry in from_conda] == ["python", "pip"]
    requires = SpecifierSet(pyproject["project"]["requires-python"])
    assert SpecifierSet(from_conda[0].removeprefix("python")) == requires
    assert from_pip == {"pip": ["--constraint constraints.txt", "--editable .[all]"]}
    plan = make("--dry-run", "--always-make", "setup")
    assert "--constraint constraints.txt --editable '.[all]'" in plan


def test_the_python_versions_are_the_same_everywhere(pyproject: dict[str, Any]) -> None:
    requires = SpecifierSet(pyproject["project"]["requires-python"])
    fitting = [f"3.{minor}" for minor in range(8, 20) if requires.contains(f"3.{minor}")]
    classifiers = pyproject["project"]["classifiers"]
    assert [text.rsplit(" ")[-1] for text in classifiers if ":: 3." in text] == fitting
    assert pyproject["tool"]["mypy"]["python_version"] == fitting[0]
    assert pyproject["tool"]["ruff"]["target-version"] == "py" + fitting[0].replace(".", "")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    first, last = (version.replace(".", ", ") for version in (fitting[0], fitting[-1]))
    assert f"({first}) <= sys.version_info[:2] <= ({last})" in makefile
    candidates = re.search(r"CANDIDATES := .*", makefile)
    assert candidates and all(f"python{version}" in candidates[0] for version in fitting)
