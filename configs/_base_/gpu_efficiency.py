# For configs that collect their parts in `_base_`: take it in place of
# default_runtime.py. MMEngine refuses two bases with the same key, so it brings the
# default hooks along; a config that inherits a whole one needs only the line below.
_base_ = 'mmdet::_base_/default_runtime.py'

default_hooks = dict(gpu_efficiency=dict(type='mmgpu_hooks.GPUEfficiencyHook'))
