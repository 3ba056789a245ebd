"""Random numbers without state: a hash of (seed, epoch, sample, slot).

They do not depend on batch, process or order of drawing.
"""

import numpy as np

_MASK = (1 << 64) - 1


def uniforms(seed: int, epoch: int, index: np.ndarray, slots: int, use: int = 0) -> np.ndarray:
    """Numbers in [0, 1) of shape (samples, slots). Each purpose has its own number `use`.

    >>> a = uniforms(0, 3, np.array([7, 8]), 2)
    >>> b = uniforms(0, 3, np.array([8]), 2)
    >>> bool((a[1] == b[0]).all())
    True
    """
    key = 0
    for part in (seed, epoch, use):
        key = int(_mix(np.uint64((key ^ part * 0x9E3779B97F4A7C15) & _MASK)))
    samples = _mix(np.asarray(index, dtype=np.uint64) ^ np.uint64(key))[:, None]
    with np.errstate(over="ignore"):
        slot = _mix(np.arange(1, slots + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))[None]
    return (_mix(samples ^ slot) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def order(seed: int, epoch: int, index: np.ndarray) -> np.ndarray:
    """The samples in this epoch's order."""
    return index[np.argsort(uniforms(seed, epoch, index, 1, use=1)[:, 0], kind="stable")]


def _mix(x: np.ndarray | np.uint64) -> np.ndarray:
    """The finaliser of SplitMix64 (Steele et al., 2014): every input bit affects every output bit."""
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(x ^ (x >> np.uint64(31)))
