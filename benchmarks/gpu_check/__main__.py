"""Entry point of ``python -m benchmarks.gpu_check``."""

import sys

from benchmarks.gpu_check.check import main

sys.exit(main())
