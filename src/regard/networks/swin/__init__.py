"""The Swin Transformer."""
