"""`python -m roquet` is the `roquet` command."""

import sys

from roquet.cli.main import main

sys.exit(main())
