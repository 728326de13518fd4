"""The quickstart by plain papermill, for real but small: what it measures, writes and says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mmlab import notebook

pytest.importorskip("papermill", reason="papermill is not installed")
pytest.importorskip("skimage", reason="scikit-image is not installed")
pandas = pytest.importorskip("pandas", reason="pandas is not installed")

SMALL = {
    "model": "echo",
    "workload": "single",
    "scale": "0.1",
    "repeats": "1",
    "strategies": "msgpack-inline,msgpack",  # -p hands a list over as text
}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_quickstart_measures_draws_and_answers(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "papermill", str(notebook.find("quickstart")), "out.ipynb"]
    for name, value in SMALL.items():
        command += ["-p", name, value]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]

    (folder,) = (tmp_path / "runs").iterdir()
    rows = pandas.read_parquet(folder / "results.parquet")
    assert set(rows["strategy"]) == {"msgpack-inline", "msgpack"}
    assert (rows.groupby(["repeat", "request"])["checksum"].nunique() == 1).all()
    assert len(pandas.read_csv(folder / "results.csv")) == len(rows)
    for name in ("summary", "latency", "stages", "memory"):
        assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (folder / f"{name}.svg").read_text()

    cells = json.loads((tmp_path / "out.ipynb").read_text())["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 4
    said = "\n".join("".join(output.get("data", {}).get("text/markdown", "")) for output in outputs)
    assert re.search(r"costs [\d.]+ m?s and [\d.]+ times its size in memory with `msgpack", said)
    assert "8 requests arrived as 8 different batches. No model answered them." in said
    assert "**Images**: photographs that come with packages" in said
