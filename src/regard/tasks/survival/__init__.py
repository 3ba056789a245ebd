"""Survival: the risk of an event over time, such as death, from images or volumes, with censored times."""
