"""The command line: `mmlab run` and what helps with it.

Results go to stdout, progress and errors to stderr. Exit codes: 0 all went well, 1 something
failed, 2 the command was not understood and nothing was started, 130 interrupted.
"""

from mmlab.cli.app import main

__all__ = ["main"]
