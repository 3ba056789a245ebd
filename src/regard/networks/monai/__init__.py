"""MONAI's networks for volumes, as baselines."""
