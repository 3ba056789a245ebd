"""The networks: each takes tensors, returns a small named output, and can say where its tokens live.

- A family is a folder: `config.py` has its settings and sizes, free of torch; `network.py` has the module.
- `base` is what every network offers, `config` what every config does.
"""
