"""The families whose weights can be read: one literal table, by the `family` of their configs."""

from __future__ import annotations

from regard.weights.detr import DETR
from regard.weights.family import Family
from regard.weights.resnet import RESNET
from regard.weights.swin import SWIN
from regard.weights.vit import VIT

FAMILIES: dict[str, Family] = {
    "vit": VIT,
    "swin": SWIN,
    "detr": DETR,  # before the ResNet that it contains
    "resnet": RESNET,
    "mlp": Family(own="layers.0.linear.weight"),
    "monai": Family(own="body.conv1.weight"),  # of its ResNets
}

NAMES = ("regard", *dict.fromkeys(known.name for family in FAMILIES.values() for known in family.formats))
"""Formats that weights are written in."""
