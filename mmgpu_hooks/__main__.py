"""``python -m mmgpu_hooks`` is ``mmgpu``."""

import sys

from mmgpu_hooks.cli.main import main

sys.exit(main())
