"""The networks: each takes tensors, returns a named tuple, and maps its tokens to places on the input.

- A family is a folder: `config.py` has its settings and sizes, free of torch; `network.py` has the module.
- `base` is what every network offers, `config` what every config does.
"""
