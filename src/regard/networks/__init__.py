"""The networks. Each takes tensors, returns a named tuple, and has a token map.

- A family is a folder: `config.py` has its settings and sizes and does not import torch; `network.py` has the module.
- `base` has the base class of networks, `config` that of configs.
"""
