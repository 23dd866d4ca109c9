#!/bin/sh
# Installs OpenMMLab's packages; mmcv is built from source, with its operators.
# Usage: install_mmcv.sh VENV [pip options]
#
# The operators are built for the CPU alone (they serve the demo on a GPU too, and no CUDA
# toolkit is needed): mmcv's set-up takes FORCE_CPU only where no GPU is visible.
set -u
here=$(dirname "$0")
bin=$(cd "$1/bin" && pwd)
shift
mmcv=$(grep '^mmcv==' "$here/mminstall.txt")
export PATH="$bin:$PATH" MMCV_WITH_OPS=1 FORCE_CPU=1 CUDA_VISIBLE_DEVICES=
# Without debugging symbols, which take half of the compiler's time.
export CFLAGS="${CFLAGS-} -g0" CXXFLAGS="${CXXFLAGS-} -g0"

operators_work() {
    "$bin/python" -c 'import torch
from mmcv.ops import nms
nms(torch.tensor([[0.0, 0.0, 9.0, 9.0]]), torch.tensor([0.5]), 0.5)' 2>"$bin/../mmcv.log"
}

install() {
    "$bin/python" -m pip install --quiet --no-deps --no-build-isolation "$@"
}

# Python 3.13 ended `exec` writing into the locals of a function, by which mmcv 2.1.0 reads
# its version; during its set-up such an `exec` writes there again.
if "$bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 13))'; then
    shim=$(mktemp -d) && trap 'rm -r "$shim"' EXIT
    export PYTHONPATH="$shim"
    cat >"$shim/sitecustomize.py" <<'EOF'
import builtins
import sys

_exec = builtins.exec


def exec_into_caller(code, *scopes, **kwargs):
    frame = sys._getframe(1)
    if scopes or kwargs:
        return _exec(code, *scopes, **kwargs)
    if frame.f_locals is frame.f_globals:
        return _exec(code, frame.f_globals)
    names = dict(frame.f_locals)
    _exec(code, frame.f_globals, names)
    frame.f_locals.update(names)


builtins.exec = exec_into_caller
EOF
fi

"$bin/python" -c "from importlib.metadata import version
assert 'mmcv==' + version('mmcv') == '$mmcv'" 2>/dev/null ||
    echo "Installing $mmcv; compiling its operators takes 5 to 10 minutes on two cores."
install "$@" -r "$here/mminstall.txt" || {
    echo "make: $mmcv could not be fetched or built; the lines above say why" >&2
    exit 1
}
# pip may have kept a wheel that was built without operators or against another torch.
operators_work && exit
echo "The $mmcv that pip had kept does not fit this torch: building it anew."
install "$@" --no-cache-dir --force-reinstall "$mmcv" || {
    echo "make: $mmcv could not be built; the lines above say what is missing" >&2
    exit 1
}
operators_work || {
    echo "make: $mmcv was built and its operators do not load:" \
        "$(tail -n 1 "$bin/../mmcv.log")" >&2
    exit 1
}
