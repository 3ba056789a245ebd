"""Both ways with Hugging Face transformers: ViT, DINOv2 with and without registers, DeiT; names of versions 4 and 5."""

from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import regard
from regard.errors import RunError
from regard.weights import convert
from tests.loading import load_classifier
from tests.weights.parity import assert_close, assert_equal, picture, randomise, save_own

SMALL: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "patch_size": 8,
    "num_labels": 5,
}
KINDS = {
    "vit": (transformers.ViTForImageClassification, transformers.ViTConfig, {"intermediate_size": 48}),
    "dinov2": (transformers.Dinov2ForImageClassification, transformers.Dinov2Config, {"mlp_ratio": 2}),
    "registers": (
        transformers.Dinov2WithRegistersForImageClassification,
        transformers.Dinov2WithRegistersConfig,
        {"mlp_ratio": 2, "num_register_tokens": 3},
    ),
    "deit": (transformers.DeiTForImageClassification, transformers.DeiTConfig, {"intermediate_size": 48}),
    "deit_taught": (
        transformers.DeiTForImageClassificationWithTeacher,
        transformers.DeiTConfig,
        {"intermediate_size": 48},
    ),
}


def reference(kind: str, size=(16, 24)):
    model, config, fields = KINDS[kind]
    size = size if kind in ("vit", "deit", "deit_taught") else 24
    theirs = randomise(model(config(**SMALL | fields, image_size=size, attn_implementation="eager")))
    if kind in ("dinov2", "registers"):  # its head also reads the mean of the patches; ours cannot
        theirs.classifier.weight.data[:, 32:] = 0
    return theirs


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("version", [4, 5])
def test_a_model_saved_by_transformers_answers_the_same(kind, version, tmp_path):
    theirs = reference(kind)
    theirs.save_pretrained(tmp_path / "hf")
    if version == 5:  # the names in memory are version 5's; save_pretrained writes version 4's
        state = {name: tensor.contiguous() for name, tensor in theirs.state_dict().items()}
        assert set(state) != set(load_file(tmp_path / "hf" / "model.safetensors"))
        save_file(state, tmp_path / "hf" / "model.safetensors")
    ours = regard.create(weights=tmp_path / "hf", quiet=True).eval()
    assert ours.loaded.format == "hf"
    assert ours.config.eps == theirs.config.layer_norm_eps
    x = picture(16, 24) if "dei" in kind or kind == "vit" else picture(24, 24)
    with torch.no_grad():
        out, expected = ours(x), theirs(x, output_hidden_states=True)
    assert_close(out.logits, expected.logits)
    if kind == "deit_taught":
        assert_close(out.both, torch.stack([expected.cls_logits, expected.distillation_logits], dim=1))
        with torch.no_grad():
            assert_close(ours(x, class_token_only=True).logits, expected.logits)
    last = theirs.base_model.layernorm(expected.hidden_states[-1])
    assert_close(out.tokens, last)


def test_dinov2_at_another_size_resamples_as_transformers_does(tmp_path):
    """As the models with registers do; those without resample without antialiasing, and differ in the third digit."""
    theirs = reference("registers")
    theirs.save_pretrained(tmp_path / "hf")
    ours = regard.create(weights=tmp_path / "hf", quiet=True).eval()
    asked = regard.create(weights=tmp_path / "hf", size=(16, 40), quiet=True).eval()
    assert asked.loaded.changed == ("positions are resampled from 3×3 to 2×5 patches",)
    x = picture(16, 40)
    with torch.no_grad():
        assert_close(ours(x).logits, theirs(x).logits)
        assert_close(asked(x).logits, theirs(x).logits)


@pytest.mark.parametrize("kind", ["vit", "dinov2", "registers", "deit_taught"])
def test_back_to_transformers_every_tensor_is_equal_and_nothing_is_missing(kind, tmp_path):
    theirs = reference(kind)
    theirs.save_pretrained(tmp_path / "hf")
    convert(tmp_path / "hf", tmp_path / "ours.safetensors", to="regard")
    report, _ = convert(tmp_path / "ours.safetensors", tmp_path / "back", to="hf")
    assert report.format == "regard"
    written = load_file(tmp_path / "back" / "model.safetensors")
    assert_equal(written, load_file(tmp_path / "hf" / "model.safetensors"), but=("mask_token",))
    again, info = type(theirs).from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    for field in (
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "layer_norm_eps",
        "patch_size",
        "id2label",
    ):
        assert getattr(again.config, field) == getattr(theirs.config, field)
    x = picture(16, 24) if kind in ("vit", "deit_taught") else picture(24, 24)
    with torch.no_grad():
        assert_close(again.eval()(x).logits, theirs(x).logits)


def test_registers_without_layerscale_are_written_with_ones(tmp_path):
    model = randomise(regard.create("vit_nano", classes=3, size=24, patch=8, registers=2, mlp=128))
    save_own(model, tmp_path / "own.safetensors")
    convert(tmp_path / "own.safetensors", tmp_path / "hf", to="hf")
    theirs = transformers.Dinov2WithRegistersForImageClassification.from_pretrained(tmp_path / "hf").eval()
    with torch.no_grad():
        assert_close(model(picture(24, 24)).logits, theirs(picture(24, 24)).logits)


def test_a_bare_backbone_has_a_head_of_zeros_and_says_so(tmp_path):
    model, config = transformers.ViTModel, transformers.ViTConfig
    fields: dict[str, Any] = {"intermediate_size": 48, "image_size": 16}
    theirs = randomise(model(config(**SMALL, **fields)))
    theirs.save_pretrained(tmp_path / "hf")
    ours = regard.create(weights=tmp_path / "hf", classes=7, quiet=True).eval()
    assert ours.loaded.untrained == ("the head for 7 classes is all zeros: the file has none",)
    assert [line.split(" (")[0] for line in ours.loaded.unused] == ["pooler.dense.bias", "pooler.dense.weight"]
    with torch.no_grad():
        out, expected = ours(picture(16, 16)), theirs(picture(16, 16))
    assert_close(out.tokens, expected.last_hidden_state)
    assert not out.logits.any()


def test_a_head_that_also_reads_the_patches_is_left_out_and_said(tmp_path):
    theirs = randomise(reference("dinov2"), seed=1)
    theirs.save_pretrained(tmp_path / "hf")
    ours = regard.create(weights=tmp_path / "hf", quiet=True)
    assert "mean of the patches" in " ".join(ours.loaded.unused)
    assert "all zeros" in ours.loaded.untrained[0]


def test_predicting_with_a_transformers_folder(tmp_path):
    theirs = reference("vit", size=16)
    theirs.config.id2label = {n: f"kind {n}" for n in range(5)}
    theirs.save_pretrained(tmp_path / "hf")
    (tmp_path / "hf" / "preprocessor_config.json").write_text(
        '{"image_mean": [0.1, 0.2, 0.3], "image_std": [1.0, 2.0, 3.0]}'
    )
    predictor = load_classifier(tmp_path / "hf", device="cpu", quiet=True)
    assert predictor.preparation.mean == (0.1, 0.2, 0.3)
    pixels = torch.rand(3, 16, 16)
    normal = (pixels - torch.tensor([0.1, 0.2, 0.3])[:, None, None]) / torch.tensor([1.0, 2.0, 3.0])[:, None, None]
    with torch.no_grad():
        expected = theirs(normal[None]).logits.softmax(-1)[0]
    answer = predictor.predict(pixels)
    assert answer.label == f"kind {expected.argmax()}"
    assert answer.confidence == pytest.approx(expected.max().item(), abs=1e-5)


def test_a_masked_autoencoder_gives_its_encoder(tmp_path):
    config = transformers.ViTMAEConfig(
        **SMALL | {"image_size": 24, "intermediate_size": 48, "decoder_hidden_size": 16, "decoder_num_hidden_layers": 1,
                   "decoder_num_attention_heads": 2, "decoder_intermediate_size": 16, "mask_ratio": 0.0}
    )  # fmt: skip
    theirs = randomise(transformers.ViTMAEForPreTraining(config))
    theirs.save_pretrained(tmp_path)
    ours = regard.create(weights=tmp_path, quiet=True).eval()
    assert all(line.startswith("decoder.") for line in ours.loaded.unused)
    with torch.no_grad():
        noise = torch.arange(9.0).expand(2, -1)  # nothing is masked, and the order stays
        assert_close(ours(picture(24, 24)).tokens, theirs.vit(picture(24, 24), noise=noise).last_hidden_state)


def test_masked_siamese_networks_are_vits(tmp_path):
    config = transformers.ViTMSNConfig(**SMALL | {"image_size": (16, 24), "intermediate_size": 48})
    theirs = randomise(transformers.ViTMSNForImageClassification(config))
    theirs.save_pretrained(tmp_path)
    ours = regard.create(weights=tmp_path, quiet=True).eval()
    with torch.no_grad():
        assert_close(ours(picture(16, 24)).logits, theirs(picture(16, 24)).logits)


TINY = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48, "image_size": 16}
TINY_SWIN = {"image_size": 16, "patch_size": 4, "embed_dim": 8, "depths": [1], "num_heads": [2], "window_size": 2}
OTHERS = {
    "CLIP": (transformers.CLIPVisionModel, transformers.CLIPVisionConfig, TINY | {"patch_size": 8}),
    "SigLIP": (transformers.SiglipVisionModel, transformers.SiglipVisionConfig, TINY | {"patch_size": 8}),
    "BEiT": (transformers.BeitForImageClassification, transformers.BeitConfig, TINY | {"patch_size": 8}),
    "DINOv3": (transformers.DINOv3ViTModel, transformers.DINOv3ViTConfig, TINY | {"patch_size": 8}),
    "Swin V2": (transformers.Swinv2ForImageClassification, transformers.Swinv2Config, TINY_SWIN),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_model_is_refused_by_its_name(name, tmp_path):
    kind, config, fields = OTHERS[name]
    kind(config(**fields)).save_pretrained(tmp_path)
    with pytest.raises(RunError, match=rf"another model: {name} \(model_type '\w+' in config\.json\)"):
        regard.create(weights=tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(
        RunError, match=rf"known here, but {name}, as its tensors are named|another network: .* as in {name}"
    ):
        regard.create(weights=tmp_path / "model.safetensors")
