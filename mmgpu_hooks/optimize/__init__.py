"""Makes a training cheaper where asked: one file each, imported when asked for."""
