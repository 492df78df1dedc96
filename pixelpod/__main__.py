"""`python -m pixelpod` is the same as `pixelpod`."""

import sys

from pixelpod.cli import main

sys.exit(main())
