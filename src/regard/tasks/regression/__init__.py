"""Regression: a number per image or volume, or several, such as an age or a count."""
