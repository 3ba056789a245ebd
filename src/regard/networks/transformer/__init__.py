"""The Transformer, for translation."""
