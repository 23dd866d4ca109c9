"""Pure arithmetic: what a loader setting gives, from measured figures alone."""
