"""``python -m mmgpu_hooks`` is ``mmgpu``."""

import sys

from mmgpu_hooks.commands.main import main

sys.exit(main())
