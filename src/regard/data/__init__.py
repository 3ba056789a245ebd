"""From the user's files to batches of tensors: sources, a scan, splits, augmentation, loading."""

from regard.data.augment import Augmenter, Masker, patch_order, to_float
from regard.data.batch import Batch
from regard.data.fitting import CROPS, fit, fitted_share, with_channels
from regard.data.folders import find_images
from regard.data.formats import open_source
from regard.data.images import checked, read_image, to_tensor
from regard.data.loader import Images, Loader
from regard.data.masks import read_mask
from regard.data.preparation import Preparation, statistics
from regard.data.random import order
from regard.data.scanner import ImageDataset, scan
from regard.data.source import Sample, Source
from regard.data.splits import keep_some, split

__all__ = [
    "CROPS",
    "Augmenter",
    "Batch",
    "ImageDataset",
    "Images",
    "Loader",
    "Masker",
    "Preparation",
    "Sample",
    "Source",
    "checked",
    "find_images",
    "fit",
    "fitted_share",
    "keep_some",
    "open_source",
    "order",
    "patch_order",
    "read_image",
    "read_mask",
    "scan",
    "split",
    "statistics",
    "to_float",
    "to_tensor",
    "with_channels",
]
