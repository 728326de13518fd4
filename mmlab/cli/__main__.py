"""`python -m mmlab.cli`: the `mmlab` command of this interpreter, installed or not."""

import sys

from mmlab.cli import main

sys.exit(main())
