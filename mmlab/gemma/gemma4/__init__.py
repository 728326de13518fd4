"""Gemma 4: images and frames in their own aspect ratio, and sound, before the text."""

from mmlab.gemma.gemma4.engine_making import engine
from mmlab.gemma.gemma4.frontend_making import frontend

__all__ = ["engine", "frontend"]
