"""The README is tried, not believed: its links, its commands, its code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from checkout import ROOT, make, python


def readme_links() -> list[str]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.findall(r"(?:\]\(|src=\"|srcset=\")([^)\s\"]+)", text)


def test_readme_links_lead_somewhere() -> None:
    local = [link for link in readme_links() if "://" not in link and not link.startswith("#")]
    assert len(local) > 5
    assert not [link for link in local if not (ROOT / link.split("#")[0]).exists()]


def test_readme_lists_every_notebook() -> None:
    assert {path.relative_to(ROOT).as_posix() for path in (ROOT / "notebooks").glob("*.ipynb")} == {
        link for link in readme_links() if link.endswith(".ipynb")
    }


@pytest.mark.timeout(300)
def test_readme_code_runs_as_it_stands(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert blocks
    for number, block in enumerate(blocks):
        script = tmp_path / f"block_{number}.py"
        script.write_text(block, encoding="utf-8")
        python(str(script), PYTHONPATH=str(ROOT))


def test_readme_commands_are_verbs() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = re.findall(r"^make ([a-z-]+)", text, re.MULTILINE)
    assert {"run", "test"} <= set(commands)
    for verb in set(commands):
        make("--dry-run", verb)
