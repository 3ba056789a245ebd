"""DETR: object detection by a transformer."""
