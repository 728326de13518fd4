"""Notebooks from a script: find one, read and check its parameters, run it, show it as HTML.

done = notebook.execute("quickstart", {"scale": 0.25}, "runs/today")
notebook.to_html(done)                              # runs/today/report.html
"""

from mmlab.notebook.cell import Parameter, check, from_text, parameters
from mmlab.notebook.finding import available, find, run_dir, title
from mmlab.notebook.html import to_html
from mmlab.notebook.hygiene import problems, strip
from mmlab.notebook.running import NotebookError, execute
from mmlab.notebook.types import joined

__all__ = [
    "NotebookError",
    "Parameter",
    "available",
    "check",
    "execute",
    "find",
    "from_text",
    "joined",
    "parameters",
    "problems",
    "run_dir",
    "strip",
    "title",
    "to_html",
]
