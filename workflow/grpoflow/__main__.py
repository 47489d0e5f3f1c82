"""`python -m grpoflow`, the same as `grpoflow`."""

import sys

from grpoflow.cli import main

sys.exit(main())
