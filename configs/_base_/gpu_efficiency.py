# In `default_hooks`, where a new key is merged with the hooks of the other base files:
# a `custom_hooks` list would replace theirs (EMA, pipeline switch) without a word.
default_hooks = dict(gpu_efficiency=dict(type='mmgpu_hooks.GPUEfficiencyHook'))
