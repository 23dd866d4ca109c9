"""Commands of ``mmgpu``; no other package prints or exits."""
