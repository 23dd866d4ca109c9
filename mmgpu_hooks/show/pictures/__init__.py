"""Pictures of a run: geometry in plain Python, written as SVG or PNG."""
