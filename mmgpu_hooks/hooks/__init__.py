"""GPUEfficiencyHook, and code that connects MMEngine's Runner to the measuring."""
