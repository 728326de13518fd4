"""What a process pays for: transformers only when a model is loaded, and no model in a frontend."""

from __future__ import annotations

import json
import subprocess
import sys

FRONTEND = """
import json, sys
import mmlab.gemma
before = sorted({name.partition(".")[0] for name in sys.modules})
import numpy, torch
model = mmlab.gemma.load_frontend("gemma3-tiny")
done = model.process("Hi", [numpy.zeros((9, 9, 3), numpy.uint8)])
model.decode(done.token_ids)
print(json.dumps({
    "before": before,
    "cuda": torch.cuda.is_initialized(),
    "modeling": "transformers.models.gemma3.modeling_gemma3" in sys.modules,
    "items": len(done.mm["image"]),
}))
"""


def test_the_import_is_light_and_the_frontend_builds_no_model_and_opens_no_gpu() -> None:
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", FRONTEND], capture_output=True, text=True, timeout=55
    )
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
    told = json.loads(run.stdout)
    heavy = {"transformers", "torchvision", "tokenizers", "PIL", "huggingface_hub", "matplotlib"}
    assert not heavy & set(told["before"])
    assert told == told | {"cuda": False, "modeling": False, "items": 1}
