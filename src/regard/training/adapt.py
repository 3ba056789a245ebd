"""Fine-tuning: freezing, LoRA, layer-wise learning rates."""

from __future__ import annotations

from regard.errors import ConfigError
from regard.networks.base import Network
from regard.nn.lora import add_lora
from regard.setting_groups import Transfer

_LAST = ("norm", "head", "cnn")  # modules after the blocks, or beside all of them
_TRAINED = ("head", "cnn")  # what trains though everything is frozen


def adapt(model: Network, config: Transfer) -> None:
    """Freeze parameters or add LoRA, as the settings say."""
    if config.lora is not None:
        add_lora(model, config.lora)
        model.frozen = _before(model)  # keeps a stem's BatchNorm statistics; blocks may still use stochastic depth
    elif config.freeze is not None:
        _freeze(model, config.freeze)
    if config.layer_decay != 1:
        layer_numbers(model)  # raises an error, if any, before anything is written
    model.train()


def _freeze(model: Network, freeze: int | str) -> None:
    """Freeze the stem and the first blocks, or all but the head: no gradients, dropout or BatchNorm updates there.

    A convolutional network beside a transformer trains: it is no part of what was trained before.
    """
    if freeze == "all":
        stays = {name for name, _ in model.named_parameters() if name.split(".")[0] not in _TRAINED}
        model.frozen = tuple(name for name, _ in model.named_children() if name not in _TRAINED)
    else:
        blocks, count = _blocks(model, f"freeze={freeze}"), int(freeze)
        if count > len(blocks):
            raise ConfigError(
                f"freeze={count} is more blocks than the model's {len(blocks)}",
                do=f"give --freeze 0 to {len(blocks)}, or all",
            )
        stays = {name for name, layer in layer_numbers(model).items() if layer <= count}
        model.frozen = (*_before(model), *blocks[:count])
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in stays)


def layer_numbers(model: Network) -> dict[str, int]:
    """The layer number of each parameter: 0 for stem, tokens and positions, then the blocks, then norm and head.

    Counted as in BEiT (Bao et al., 2022) and MAE (He et al., 2022). A merge after a block counts with it, as in SimMIM
    (Xie et al., 2022).
    """
    blocks, number, numbers = _blocks(model, "layer_decay"), 0, dict[str, int]()
    for name, _ in model.named_parameters():
        if name.split(".")[0] in _LAST:
            number = len(blocks) + 1
        else:  # what lies between two blocks counts with the first of them
            number = next((n for n, block in enumerate(blocks, start=1) if name.startswith(f"{block}.")), number)
        numbers[name] = number
    return numbers


def _blocks(model: Network, asking: str) -> list[str]:
    repeated = set(model.repeated())
    blocks = [name for name, module in model.named_modules() if module in repeated]
    if not blocks:
        raise ConfigError(f"{asking} counts blocks and the model has none", do="leave it out")
    return blocks


def _before(model: Network) -> tuple[str, ...]:
    """The modules before the first block."""
    blocks = _blocks(model, "lora")
    first = {name.split(".")[0] for name in blocks}
    return tuple(name for name, _ in model.named_children() if name not in (*first, *_LAST))
