"""``python -m benchmarks.gpu_check``."""

import sys

try:
    from benchmarks.gpu_check.check import main

    code = main()
except ModuleNotFoundError as error:
    # numpy or msgspec: what needs another package is skipped alone
    print(
        f'gpu-check needs {error.name}, which is not installed; a folder that holds '
        'it may be named in PYTHONPATH.',
        file=sys.stderr,
    )
    code = 2
sys.exit(code)
