"""Object detection: boxes with classes and scores, by DETR."""
