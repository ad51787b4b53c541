"""python -m regard: the same as the command `regard`."""

import sys

from .cli import main

sys.exit(main())
