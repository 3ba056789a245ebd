"""The masked autoencoder: sees what it may see, is judged on what it may not, and computes what the paper's does."""

import pytest
import torch
from transformers import ViTMAEConfig, ViTMAEForPreTraining

from regard.data import patch_order
from regard.errors import ConfigError
from regard.networks.mae.config import MAEConfig
from regard.networks.mae.network import MaskedAutoencoder
from regard.networks.vit.config import ViTConfig, configure
from regard.networks.vit.network import ViT
from regard.tasks.pretraining.loss import MaskedPatches

SMALL = MAEConfig(decoder_width=32, decoder_depth=2, decoder_heads=4)


def build(name="vit_nano", config=SMALL, **fields) -> MaskedAutoencoder:
    torch.manual_seed(0)
    return MaskedAutoencoder(ViT(configure(name, **{"depth": 2, "size": 16} | fields)), config).eval()


@pytest.mark.parametrize(
    ("name", "fields", "patches"),
    [
        ("vit_nano", {}, 16),
        ("vit_nano", {"size": (17, 22), "channels": 5}, 30),
        ("vit_nano", {"pool": "mean", "positions": "sinusoidal"}, 16),
        ("vit_nano", {"registers": 3, "positions": "axial"}, 16),
        ("vit3d_nano", {"size": (16, 24, 17)}, 18),
    ],
)
def test_every_shape_of_input_is_filled_in(name, fields, patches):
    model = build(name, **fields)
    own = model.encoder.config
    x, order = torch.rand(2, own.channels, *own.size), patch_order(0, 0, torch.arange(2), patches)
    output = model.train()(x, order)
    assert output.predicted.shape == output.wanted.shape == (2, patches, model.pixels.out_features)
    assert output.hidden.sum(1).tolist() == [patches - patches // 4] * 2
    MaskedPatches().loss(output, {"patch_order": order}).backward()
    assert all(p.grad is not None for p in model.parameters()), "what gets no gradient stops several processes"


def test_the_encoder_sees_the_visible_patches_and_no_others():
    model = build()
    x, order = torch.rand(2, 3, 16, 16), patch_order(0, 0, torch.arange(2), 16)
    counts = []
    model.encoder.blocks[0].register_forward_pre_hook(lambda _, inputs: counts.append(inputs[0].shape[1]))
    before = model.encode(x, order[:, :4])
    assert counts == [1 + 4]
    hidden = model(x, order).hidden
    boxes = model.token_map().paint(hidden.float())[:, None]
    torch.testing.assert_close(model.encode(x + boxes * torch.rand_like(x), order[:, :4]), before, atol=0, rtol=0)
    assert not torch.equal(model.encode(x + (1 - boxes), order[:, :4]), before)


@pytest.mark.parametrize("normalise", [True, False])
def test_the_loss_is_of_hidden_patches_only(normalise):
    model = build(config=MAEConfig(0.75, 32, 1, 2, normalise))
    order = patch_order(0, 0, torch.arange(2), 16)
    output, objective = model(torch.rand(2, 3, 16, 16), order), MaskedPatches()
    targets = {"patch_order": order}
    elsewhere = torch.where(output.hidden[..., None], output.wanted, torch.rand_like(output.wanted))
    assert torch.equal(objective.loss(output._replace(wanted=elsewhere), targets), objective.loss(output, targets))
    there = torch.where(output.hidden[..., None], torch.rand_like(output.wanted), output.wanted)
    assert not torch.equal(objective.loss(output._replace(wanted=there), targets), objective.loss(output, targets))
    by_hand = (output.predicted - output.wanted)[output.hidden].square().mean()
    torch.testing.assert_close(objective.loss(output, targets), by_hand)


def test_a_patch_is_wanted_relative_to_itself():
    x = torch.rand(1, 3, 16, 16)
    patch = x[0, :, 4:8, 8:12].flatten()
    torch.testing.assert_close(build().wanted(x)[0, 4 + 2], (patch - patch.mean()) / patch.std())
    torch.testing.assert_close(build(config=MAEConfig(0.75, 32, 1, 2, False)).wanted(x)[0, 4 + 2], patch)


def test_masks_depend_on_seed_epoch_and_sample_alone():
    numbers = torch.tensor([3, 1, 4, 15])
    whole = patch_order(0, 7, numbers, 64)
    assert torch.equal(whole.sort(1).values, torch.arange(64).expand(4, -1))
    for place, number in enumerate(numbers):
        assert torch.equal(patch_order(0, 7, number[None], 64)[0], whole[place])
    for seed, epoch, other in ((1, 7, numbers), (0, 8, numbers), (0, 7, numbers + 20)):
        assert (patch_order(seed, epoch, other, 64) != whole).any(1).all()
    often = (patch_order(0, 0, torch.arange(4000), 16)[:, :4].flatten().bincount() / 4000).numpy()
    assert abs(often - 0.25).max() < 0.03, "every patch is as likely to be seen"


def test_an_image_is_filled_in_the_same_in_any_batch():
    model, numbers = build(), torch.arange(5)
    x = torch.rand(5, 3, 16, 16)
    together = model(x, patch_order(0, 0, numbers, 16)).predicted
    alone = model(x[3:4], patch_order(0, 0, numbers[3:4], 16)).predicted
    torch.testing.assert_close(alone[0], together[3], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("fields", "mask", "what"),
    [
        ({"stem": "conv"}, 0.75, "stem='conv' cannot be pre-trained"),
        ({"positions": "conditional"}, 0.75, "positions='conditional' cannot be pre-trained"),
        ({"rope": True}, 0.75, "rope=True cannot be pre-trained"),
        ({"stem": "r50", "size": 64, "patch": 16}, 0.75, "stem='r50' cannot be pre-trained"),
        ({"size": 8}, 0.9, "leaves 0 of 4 patches"),
    ],
)
def test_what_cannot_be_masked_says_so(fields, mask, what):
    with pytest.raises(ConfigError, match=what):
        build(config=MAEConfig(mask, 32, 1, 2), **fields)


@pytest.mark.parametrize("values", [{"mask": 0.0}, {"mask": 1.0}, {"decoder_depth": 0}])
def test_settings_that_make_no_autoencoder_say_so(values):
    with pytest.raises(ConfigError, match=next(iter(values))):
        MAEConfig(**values)


NAMES = {
    "vit.embeddings.cls_token": "encoder.class_token",
    "vit.embeddings.position_embeddings": "encoder.positions.table",
    "vit.embeddings.patch_embeddings.projection": "encoder.patches.project",
    "vit.layers": "encoder.blocks",
    "vit.layernorm": "encoder.norm",
    "decoder.mask_token": "mask_token",
    "decoder.decoder_embed": "bridge",
    "decoder.decoder_layers": "blocks",
    "decoder.decoder_norm": "norm",
    "decoder.decoder_pred": "pixels",
    "layernorm_before": "norm1",
    "layernorm_after": "norm2",
    "attention.o_proj": "attention.out",
    "mlp.fc1": "mlp.up",
    "mlp.fc2": "mlp.down",
}


def channels_first(pixels: torch.Tensor, dim: int) -> torch.Tensor:
    """A patch of 4 × 4 in colour is (row, column, channel) there and (channel, row, column) here."""
    return pixels.unflatten(dim, (16, 3)).transpose(dim, dim + 1).flatten(dim, dim + 1)


def copy(theirs: ViTMAEForPreTraining, ours: MaskedAutoencoder) -> None:
    """Their weights into ours, and our fixed positions of the decoder (theirs in another order) into theirs."""
    theirs.decoder.decoder_pos_embed.data[0, 1:] = ours.positions.fixed
    state = {}
    for name, tensor in theirs.state_dict().items():
        for old, new in NAMES.items():
            name = name.replace(old, new)
        state[name] = tensor
    del state["decoder.decoder_pos_embed"]
    for name in [name for name in state if "q_proj" in name]:
        parts = [state.pop(name.replace("q_proj", f"{letter}_proj")) for letter in "qkv"]
        state[name.replace("q_proj", "qkv")] = torch.cat(parts)
    for name in ("pixels.weight", "pixels.bias"):
        state[name] = channels_first(state[name], 0)
    for name, parameter in ours.named_parameters():
        state[name] = state[name].reshape(parameter.shape)
    ours.load_state_dict(state)


@pytest.mark.parametrize("normalise", [True, False])
def test_against_transformers_vit_mae(normalise):
    torch.manual_seed(0)
    theirs = ViTMAEForPreTraining(
        ViTMAEConfig(
            hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=16,
            patch_size=4, decoder_hidden_size=24, decoder_num_hidden_layers=2, decoder_num_attention_heads=2,
            decoder_intermediate_size=96, norm_pix_loss=normalise, layer_norm_eps=1e-6,
        )
    ).eval()  # fmt: skip
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    theirs.decoder.decoder_pos_embed.data.zero_()
    own = ViTConfig(size=(16, 16), patch=(4, 4), width=32, depth=2, heads=4, mlp=64)
    ours = MaskedAutoencoder(ViT(own), MAEConfig(0.75, 24, 2, 2, normalise)).eval()
    copy(theirs, ours)
    x, noise = torch.rand(3, 3, 16, 16), torch.rand(3, 16)
    with torch.no_grad():
        other, output = theirs(x, noise=noise), ours(x, noise.argsort(1))
    assert torch.equal(other.mask.bool(), output.hidden)
    torch.testing.assert_close(channels_first(other.logits, 2), output.predicted, atol=1e-5, rtol=1e-5)
    mine = MaskedPatches().loss(output, {"patch_order": noise.argsort(1)})
    torch.testing.assert_close(other.loss, mine, atol=1e-5, rtol=1e-5)
