"""Panoptic segmentation: every pixel belongs to a thing, such as a cell, or to stuff, such as the sky."""
