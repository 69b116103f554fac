"""``python -m gendurable`` is the command line."""

import sys

from gendurable.cli import main

sys.exit(main())
