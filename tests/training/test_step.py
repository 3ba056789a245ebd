"""One training step."""

import pytest
import torch
from torch import nn

import regard
from regard.data.batch import Batch
from regard.tasks.detection.settings import Config
from regard.tasks.objects.loss import SetLoss
from regard.training.step import Step


def test_blocks_are_compiled_for_every_size_of_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ResNet has blocks of seven widths, and detection inputs of several sizes: torch would stop at eight graphs."""
    compiled = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda self, **how: compiled(self, backend="eager", **how))
    monkeypatch.setattr(torch.compiler.config, "recompile_limit", 8)
    monkeypatch.setattr(torch.compiler.config, "fail_on_recompile_limit_hit", True)
    torch.compiler.reset()
    model = regard.create("detr_nano", classes=2, width=32, mlp=32, depth=1, decoder_depth=1, backbone_width=8).train()
    config, device = Config.of(compile=True, precision="fp32"), torch.device("cpu")
    step = Step(model, SetLoss.of(model.config), config, device, rows=2)
    targets = {"boxes": torch.full((2, 1, 4), 0.5), "labels": torch.zeros(2, 1, dtype=torch.int64)}
    for size in ((64, 96), (96, 64)):
        mask = torch.ones(2, *size, dtype=torch.bool)
        loss, _ = step.train_step([Batch({"image": torch.rand(2, 3, *size), "mask": mask}, targets)])
        assert loss.isfinite()
    torch.compiler.reset()
