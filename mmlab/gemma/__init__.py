"""Gemma models at both ends of the journey: the processor in the frontend, the model in the engine.

`load_frontend` gives the real image processor and tokenizer and builds no model; `load_engine`
gives the real model. Both take a preset (random weights by seed, real architecture, real input
sizes) or a checkpoint of a known family. transformers is imported by these two calls, not by this
package.
"""

from mmlab.gemma.engine import EngineModel, Generation
from mmlab.gemma.frontend import FrontendModel, Processed
from mmlab.gemma.images import Image
from mmlab.gemma.loading import load_engine, load_frontend
from mmlab.gemma.presets import PRESETS, Preset

__all__ = [
    "PRESETS",
    "EngineModel",
    "FrontendModel",
    "Generation",
    "Image",
    "Preset",
    "Processed",
    "load_engine",
    "load_frontend",
]
