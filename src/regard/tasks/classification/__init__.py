"""Classification: one label per image, as probabilities over classes."""
