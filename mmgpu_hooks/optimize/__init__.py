"""Makes a training cheaper where asked, a file each, none imported unless asked for."""
