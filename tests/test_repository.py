"""What the repository promises to someone who clones it: its verbs, its CI, its files."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from checkout import ROOT, files, make, pyproject


def test_make_lists_its_verbs_and_each_can_be_planned() -> None:
    verbs = re.findall(r"^  make ([a-z-]+) +\S", make("help"), re.MULTILINE)
    assert {"setup", "run", "test", "check", "lab", "clean"} <= set(verbs)
    assert make() == make("help")
    phony = re.search(r"^\.PHONY: (.*)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    assert phony and set(verbs) == set(phony[1].split()) - {"stale"}
    for verb in verbs:
        make("--dry-run", verb)


def test_make_test_lints_then_types_then_tests() -> None:
    plan = make("--dry-run", "test")
    steps = ["ruff check .", "ruff format --check .", "-m mypy", "-m pytest"]
    places = [plan.rindex(step) for step in steps]
    assert places == sorted(places)


def test_ci_runs_make_test() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", script], check=True)
    text = script.read_text(encoding="utf-8")
    assert "set -euo pipefail" in text
    assert text.rstrip().splitlines()[-1].endswith("make --no-print-directory test")


def test_every_python_file_can_be_read_in_one_sitting() -> None:
    lengths = {
        path: len(path.read_bytes().splitlines()) for path in files() if path.suffix == ".py"
    }
    assert len(lengths) > 10
    assert not {str(path): lines for path, lines in lengths.items() if lines > 300}


def test_no_file_names_a_folder_of_the_machine_it_was_made_on() -> None:
    """Examples may name the home of `me`, `user` or `you`."""
    somewhere = [r"/(?:home|Users)/(?!(?:me|user|you)/)[\w.-]+/", r"/[r]oot/"]
    here = [re.escape(str(path)) for path in (ROOT, Path.home()) if len(path.parts) > 2]
    pattern = re.compile("|".join(somewhere + here))
    found = {}
    for path in files():
        if match := pattern.search(path.read_text(encoding="utf-8", errors="ignore")):
            found[str(path)] = match[0]
    assert not found


def test_the_license_is_the_one_that_is_declared() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert pyproject()["project"]["license"] == "Apache-2.0"
    assert "Apache License" in text and "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
