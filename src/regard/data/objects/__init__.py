"""Images with boxes of objects: annotations read and checked, placed on a network's input, varied, in batches."""

from regard.data.objects.buckets import bucket_of, choose_buckets
from regard.data.objects.composing import Composer, place
from regard.data.objects.dataset import ObjectDataset, Objects
from regard.data.objects.loader import ObjectFeed, ObjectImages, ObjectLoader, prepare, target_slots
from regard.data.objects.reading import read_objects

__all__ = [
    "Composer",
    "ObjectDataset",
    "ObjectFeed",
    "ObjectImages",
    "ObjectLoader",
    "Objects",
    "bucket_of",
    "choose_buckets",
    "place",
    "prepare",
    "read_objects",
    "target_slots",
]
