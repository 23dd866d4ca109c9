#!/bin/sh
# Installs OpenMMLab's packages; mmcv is built from source, with its operators, and its
# wheel is kept for the next clone, in ~/.cache/mmgpu_hooks.
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
# No debugging symbols, which take half of the compiler's time. With these variables set,
# Python's own flags, -O3 among them, do not count: NMS without -O1 takes eight times as
# long, and -O1 adds a tenth to the compiler's time.
export CFLAGS="${CFLAGS-} -g0 -O1" CXXFLAGS="${CXXFLAGS-} -g0 -O1"

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

# A wheel fits one torch and one Python, which pip's own cache does not know, and is built
# as these two files and the compiler's flags say.
fits=$("$bin/python" -c 'import sys, torch
print(f"torch-{torch.__version__}-{sys.implementation.cache_tag}")') || {
    echo "make: torch does not load; the lines above say why" >&2
    exit 1
}
recipe=$({ cat "$here/install_mmcv.sh" "$here/build_mmcv.py"; echo "$CFLAGS $CXXFLAGS"; } |
    cksum | cut -d ' ' -f 1)
kept="${XDG_CACHE_HOME:-${HOME:-$bin/..}/.cache}/mmgpu_hooks"
wheels="$kept/$mmcv-$fits-$(uname -m)-$recipe"
installed="$bin/../mmcv.recipe"
mkdir -p "$wheels" 2>/dev/null && test -w "$wheels" || wheels="$bin/../wheels/$recipe"

install_wheel() {
    set -- "$wheels"/mmcv-*.whl "$@"
    test -e "$1" && install --force-reinstall --no-index "$1" && operators_work &&
        echo "$recipe" >"$installed"
}

install "$@" $(grep -v -e '^#' -e '^mmcv==' "$here/mminstall.txt") || {
    echo "make: MMEngine and MMDetection could not be installed;" \
        "the lines above say why" >&2
    exit 1
}
if test "$(cat "$installed" 2>/dev/null)" = "$recipe" &&
    "$bin/python" -c "from importlib.metadata import version
assert 'mmcv==' + version('mmcv') == '$mmcv'" 2>/dev/null && operators_work; then
    exit
fi
if install_wheel; then
    echo "Took $mmcv as it was compiled for an earlier clone, from $wheels"
    exit
fi
echo "Compiling $mmcv with its operators: 2 minutes on two cores, once."
"$bin/python" "$here/build_mmcv.py" "$mmcv" "$wheels" "$@" || {
    echo "make: $mmcv could not be fetched or built; the lines above say why" >&2
    exit 1
}
install_wheel || {
    echo "make: $mmcv was built and its operators do not load:" \
        "$(tail -n 1 "$bin/../mmcv.log")" >&2
    exit 1
}
