"""Gemma models at both ends of the journey: the processor in the frontend, the model in the engine.

`load_frontend` gives the real image processor and tokenizer and builds no model; `load_engine`
gives the real `Gemma3ForConditionalGeneration`. Both take a preset (random weights by seed, real
architecture, real input sizes) or a checkpoint of the same family. transformers is imported by
these two calls, not by this package.
"""

from mmlab.gemma.images import Image
from mmlab.gemma.loading import load_engine, load_frontend
from mmlab.gemma.model import EngineModel, Generation
from mmlab.gemma.presets import PRESETS, Preset
from mmlab.gemma.processor import FrontendModel, Processed

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
