"""Pure arithmetic: predicts a training with other loader settings from measurements."""
