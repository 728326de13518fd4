"""A pipeline in a process that may open few files: started, or refused with the remedy."""

from __future__ import annotations

import pytest
from pipeline_parts import script

from mmlab import EngineError
from mmlab.pipeline import Pipeline, process

START = """
import resource, sys
import mmlab
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[1])))
try:
    with mmlab.Pipeline(model="echo", start_timeout=8, engine_threads=1) as pipeline:
        print("served", pipeline.submit_items(None).result(5).checksum)
except mmlab.MMLabError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.timeout(40)
@pytest.mark.parametrize("limit", [8, 16, 24])
def test_few_descriptors_are_named_with_the_remedy(limit: int) -> None:
    with script(START, str(limit)) as started:
        out, err = started.communicate(timeout=20)
    assert out.startswith("TransportError") and "ulimit -n" in out, err
    assert f"may have {limit} " in out


@pytest.mark.timeout(40)
def test_what_is_asked_for_is_enough() -> None:
    with script(START, "32") as started:
        out, err = started.communicate(timeout=20)
    assert out.startswith("served"), out + err


FEW = """
import resource, sys
from mmlab.pipeline import child
resource.setrlimit(resource.RLIMIT_NOFILE, (12, 12))
sys.exit(child.main(sys.argv[1:]))
"""


def test_an_engine_without_descriptors_says_so_to_its_frontend(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process, "ENGINE_ARGS", ("-c", FEW))
    with pytest.raises(EngineError, match=r"TransportError: .*no file descriptor.*ulimit -n"):
        Pipeline(model="echo", device="cpu", start_timeout=20)
