"""What the server of tests/processes.py imports before it forks."""

import kornia  # noqa: F401
import matplotlib.figure  # noqa: F401
import sklearn.metrics  # noqa: F401
import torch.distributed.checkpoint
import torch.distributed.fsdp  # noqa: F401

import regard.api
import regard.run.runner
import regard.tasks.classification.task
import regard.tasks.pretraining.task
import regard.tasks.translation.task  # noqa: F401
