"""Residual networks, and BiT's."""
