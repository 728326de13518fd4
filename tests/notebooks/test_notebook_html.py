"""The HTML of a notebook stands alone: nothing is loaded, figures are inside, made for phones."""

from __future__ import annotations

import base64
import io
import json
import re
from pathlib import Path

import pytest
from small_notebooks import write

from mmlab import notebook

pytest.importorskip("nbconvert", reason="nbconvert is not installed")


def _executed(path: Path) -> Path:
    """A notebook with every kind of output, as if it had run."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (4, 4), "red").save(buffer, format="PNG")
    nb = write(path, "draw()")
    document = json.loads(nb.read_text())
    document["cells"][-1]["outputs"] = [
        {"output_type": "stream", "name": "stdout", "text": "a line <b>\n"},
        {
            "output_type": "display_data",
            "metadata": {},
            "data": {
                "image/png": base64.b64encode(buffer.getvalue()).decode(),
                "text/plain": "<Figure>",
            },
        },
        {
            "output_type": "display_data",
            "metadata": {},
            "data": {
                "text/html": "<table><tr><td>1</td></tr></table><script src='https://x.y/z.js'></script>",
                "text/plain": "1",
            },
        },
        {
            "output_type": "display_data",
            "metadata": {},
            "data": {"application/javascript": "alert(1)", "text/plain": "js"},
        },
    ]
    nb.write_text(json.dumps(document))
    return nb


def test_the_page_loads_nothing_and_runs_nothing(tmp_path: Path) -> None:
    page = notebook.to_html(_executed(tmp_path / "a.ipynb"))
    assert page == tmp_path / "report.html"
    text = page.read_text()
    assert not re.search(r"<script|<link|@import|url\(|<iframe", text, re.I)
    assert not re.search(r"""(src|srcset|poster|data)\s*=\s*["']?(https?:)?//""", text, re.I)
    assert "data:image/png;base64," in text
    assert "a line &lt;b&gt;" in text


def test_the_page_reads_on_a_phone_and_has_the_question_as_title(tmp_path: Path) -> None:
    text = notebook.to_html(_executed(tmp_path / "a.ipynb"), tmp_path / "b.html").read_text()
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in text
    assert re.search(r"img \{[^}]*max-width: 100%", text)
    assert "max-width: none" not in text  # figures shrink on a phone
    assert re.search(r"::-webkit-scrollbar \{ height", text)  # wide tables show that they scroll
    assert "<title>What does it cost?</title>" in text
    assert len(text) < 60_000  # no half megabyte of styles around a small notebook


def test_a_long_log_is_folded_and_a_short_one_is_not(tmp_path: Path) -> None:
    nb = _executed(tmp_path / "a.ipynb")
    document = json.loads(nb.read_text())
    document["cells"][-1]["outputs"][0]["text"] = "short\n"
    nb.write_text(json.dumps(document))
    assert "<summary>log" not in notebook.to_html(nb).read_text()
    piece = document["cells"][-1]["outputs"][0] | {"text": "a line\n" * 8}
    document["cells"][-1]["outputs"][:1] = [piece, piece]
    nb.write_text(json.dumps(document))
    assert "<summary>log of 16 lines</summary>" in notebook.to_html(nb).read_text()


def test_code_is_folded_away_but_there(tmp_path: Path) -> None:
    text = notebook.to_html(_executed(tmp_path / "a.ipynb")).read_text()
    assert text.count('<details class="code">') == 2
    assert "draw" in text
