"""`python -m supervisor`: the same command as `bulkhead`, from a checkout."""

import sys

from supervisor.launcher import main

sys.exit(main())
