"""DETR both ways with transformers, in its own and timm's names of the backbone, and in the authors' names."""

import json
import re
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

import regard
from regard.errors import ConfigError, RunError
from regard.networks.base import Network
from regard.weights import convert
from tests.weights.parity import assert_close, assert_equal, save_own, scene, spread

STAGES = ["stage1", "stage2", "stage3", "stage4"]


def reference(kind: str = "bottleneck", **changes) -> Any:
    widths = [8, 16, 32, 64] if kind == "basic" else [32, 64, 128, 256]
    shape: dict[str, Any] = {
        "embedding_size": 8, "hidden_sizes": widths, "depths": [2, 1, 1, 2], "layer_type": kind, "out_features": STAGES,
    }  # fmt: skip
    backbone = transformers.ResNetConfig(**shape)
    fields: dict[str, Any] = {
        "use_timm_backbone": False, "backbone_config": backbone,
        "d_model": 32, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "num_queries": 7, "num_labels": 5,
    }  # fmt: skip
    config = transformers.DetrConfig(**fields | changes)
    return spread(transformers.DetrForObjectDetection(config))


def dilate(theirs: Any) -> Any:
    """DC5 as torchvision's `replace_stride_with_dilation` does it, which the authors call: the last stage's stride
    becomes 1, and its 3 × 3 convolutions after the first block's are dilated."""
    first, *rest = theirs.model.backbone.model.encoder.stages[-1].layers
    for convolution in (first.shortcut.convolution, first.layer[1].convolution):
        convolution.stride = (1, 1)
    for unit in rest:
        unit.layer[1].convolution.dilation = unit.layer[1].convolution.padding = (2, 2)
    return theirs


def panoptic() -> Any:
    config = reference(encoder_attention_heads=8, decoder_attention_heads=8).config
    theirs: Any = spread(transformers.DetrForSegmentation(config))
    with torch.no_grad():  # what tells queries apart is small: their attention, among many features
        theirs.bbox_attention.q_proj.weight.mul_(4)
        theirs.mask_head.conv1.conv.weight[:, -8:] *= 100
        for module in theirs.mask_head.modules():
            if isinstance(module, torch.nn.GroupNorm):
                module.weight.add_(1.0)
        for stage in theirs.mask_head.fpn_stages:
            stage.fpn_adapter.weight.mul_(0.1)
    return theirs


def assert_masks(ours: Network, theirs: Any) -> None:
    x, mask = masked(97, 130)
    with torch.no_grad():
        out, expected = ours(x, mask), theirs(x, pixel_mask=mask.long())
    assert expected.pred_masks.std(1).max() > 0.01, "queries with the same mask prove nothing"
    assert_close(out.masks, expected.pred_masks)
    assert_close(out.boxes, expected.pred_boxes)
    assert_close(out.logits, expected.logits)


def timm_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A file of version 4 with timm's backbone, as the hub's COCO checkpoints: written down by hand from timm."""
    renamed = {}
    for name, tensor in state.items():
        new = name.replace("embedder.embedder.convolution", "conv1").replace("embedder.embedder.normalization", "bn1")
        new = re.sub(r"encoder\.stages\.(\d)\.layers\.(\d)\.", lambda m: f"layer{int(m[1]) + 1}.{m[2]}.", new)
        new = new.replace("shortcut.convolution", "downsample.0").replace("shortcut.normalization", "downsample.1")
        new = re.sub(r"layer\.(\d)\.convolution", lambda m: f"conv{int(m[1]) + 1}", new)
        new = re.sub(r"layer\.(\d)\.normalization", lambda m: f"bn{int(m[1]) + 1}", new)
        renamed[new] = tensor
    return renamed


def authors_names(file: dict[str, Tensor]) -> dict[str, Tensor]:
    """The authors' names, by transformers' own conversion script (convert_detr_to_pytorch.py) read backward.

    `file` has the names of a file of transformers. Queries, keys and values are one matrix, in this order.
    """
    names = {
        r"^model\.backbone\.conv_encoder\.model\.": "backbone.0.body.",
        r"^model\.(encoder|decoder)\.layers": r"transformer.\1.layers",
        r"^model\.decoder\.layernorm": "transformer.decoder.norm",
        r"^model\.input_projection": "input_proj",
        r"^model\.query_position_embeddings": "query_embed",
        r"^class_labels_classifier": "class_embed",
        r"^bbox_predictor": "bbox_embed",
        r"\.fc(\d)\.": r".linear\1.",
        r"\.encoder_attn\.": ".multihead_attn.",
        r"\.self_attn_layer_norm": ".norm1",
        r"\.encoder_attn_layer_norm": ".norm2",
        r"(\.encoder\..*)\.final_layer_norm": r"\1.norm2",
        r"(\.decoder\..*)\.final_layer_norm": r"\1.norm3",
    }
    state: dict[str, Tensor] = {}
    for name, tensor in timm_names(file).items():
        for pattern, replacement in names.items():
            name = re.sub(pattern, replacement, name)
        state[name] = tensor
    for name in [name for name in state if ".q_proj." in name]:
        parts = [state.pop(name.replace(".q_proj.", f".{part}_proj.")) for part in "qkv"]
        state[name.replace(".q_proj.", ".in_proj_")] = torch.cat(parts)
    return state


def masked(height: int, width: int) -> tuple[Tensor, Tensor]:
    """Two pictures of different sizes, padded to one."""
    mask = torch.ones(2, height, width, dtype=torch.bool)
    mask[1, height * 2 // 3 :] = False
    mask[1, :, width // 2 :] = False
    return scene(height, width) * mask[:, None], mask


def saved(theirs: Any, folder) -> dict[str, Tensor]:
    theirs.save_pretrained(folder)
    return load_file(folder / "model.safetensors")


def assert_answers(ours: Network, theirs: Any, size: tuple[int, int] = (97, 130)) -> None:
    """Outputs of every decoder block. `auxiliary_loss=True` is not used: transformers then feeds a block the
    normalised output of the one before, which neither the paper nor the authors' code does."""
    x, mask = masked(*size)
    with torch.no_grad():
        for given in ((x, mask), (x,)):
            out = ours(*given)
            pixels = {"pixel_mask": given[1].long()} if len(given) > 1 else {}
            expected = theirs(x, **pixels, output_hidden_states=True)
            assert expected.logits.std(1).max() > 0.03, "queries that answer the same prove nothing"
            assert_close(out.logits, expected.logits)
            assert_close(out.boxes, expected.pred_boxes)
            assert_close(out.features, expected.last_hidden_state)
            assert_close(out.tokens, expected.encoder_last_hidden_state)
            states = theirs.model.decoder.layernorm(torch.stack(expected.decoder_hidden_states[1:]))
            assert len(states) == 1 + len(out.auxiliary_boxes) == 3
            assert_close(out.auxiliary_logits, theirs.class_labels_classifier(states)[:-1])
            assert_close(out.auxiliary_boxes, theirs.bbox_predictor(states).sigmoid()[:-1])


@pytest.mark.parametrize("kind", ["basic", "bottleneck"])
def test_a_model_saved_by_transformers_answers_the_same(kind, tmp_path):
    theirs = reference(kind)
    theirs.save_pretrained(tmp_path / "hf")
    ours = regard.create(weights=tmp_path / "hf", quiet=True).eval()
    assert (ours.loaded.format, ours.loaded.unused) == ("hf", ())
    assert (ours.config.kind, ours.config.heads, ours.config.frozen_norms) == (kind, 4, True)
    assert_answers(ours, theirs)


def test_version_fives_names_in_memory_answer_the_same(tmp_path):
    theirs = reference()
    state = theirs.state_dict()
    assert any(".o_proj." in name for name in state)
    assert "model.backbone.model.embedder.embedder.convolution.weight" in state
    torch.save(state, tmp_path / "five.bin")
    ours = regard.create(weights=tmp_path / "five.bin", heads=4, quiet=True).eval()
    assert_answers(ours, theirs)


@pytest.mark.parametrize("counted", [False, True])
def test_timms_backbone_names_as_on_the_hub(counted, tmp_path):
    theirs = reference()
    state = timm_names(saved(theirs, tmp_path / "hf"))
    if counted:  # some published files have such counters
        state["model.backbone.conv_encoder.model.layer2.0.downsample.1.num_batches_tracked"] = torch.tensor(3)
    save_file(state, tmp_path / "timm.safetensors")
    ours = regard.create(weights=tmp_path / "timm.safetensors", heads=4, quiet=True).eval()
    assert ours.loaded.format == "hf"
    assert_answers(ours, theirs)


def test_the_authors_names_both_ways(tmp_path):
    theirs = reference()
    state = authors_names(saved(theirs, tmp_path / "hf"))
    torch.save({"model": state}, tmp_path / "detr.pth")
    ours = regard.create(weights=tmp_path / "detr.pth", heads=4, quiet=True).eval()
    assert ours.loaded.format == "detr"
    assert_answers(ours, theirs)
    save_own(ours, tmp_path / "own.safetensors")
    convert(tmp_path / "own.safetensors", tmp_path / "back.safetensors", to="detr")
    assert_equal(load_file(tmp_path / "back.safetensors"), state)
    again = regard.create(weights=tmp_path / "back.safetensors", quiet=True)
    assert again.config == ours.config


def published_keys(blocks: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the authors' detr-r50 and detr-r101 .pth, from their modules and torchvision's ResNet."""
    shapes: dict[str, tuple[int, ...]] = {}

    def norm(name: str, channels: int) -> None:
        shapes.update({f"{name}.{part}": (channels,) for part in ("weight", "bias", "running_mean", "running_var")})

    def linear(name: str, after: int, before: int) -> None:
        shapes.update({f"{name}.weight": (after, before), f"{name}.bias": (after,)})

    body, before = "backbone.0.body", 64
    shapes[f"{body}.conv1.weight"] = (64, 3, 7, 7)
    norm(f"{body}.bn1", 64)
    for stage, count in enumerate(blocks, start=1):
        inner = 64 * 2 ** (stage - 1)
        for unit in range(count):
            at = f"{body}.layer{stage}.{unit}"
            for number, (shape, channels) in enumerate(
                (((inner, before, 1, 1), inner), ((inner, inner, 3, 3), inner), ((4 * inner, inner, 1, 1), 4 * inner)),
                start=1,
            ):
                shapes[f"{at}.conv{number}.weight"] = shape
                norm(f"{at}.bn{number}", channels)
            if unit == 0:
                shapes[f"{at}.downsample.0.weight"] = (4 * inner, before, 1, 1)
                norm(f"{at}.downsample.1", 4 * inner)
            before = 4 * inner
    for stack, attentions, norms in (("encoder", ["self_attn"], 2), ("decoder", ["self_attn", "multihead_attn"], 3)):
        for layer in range(6):
            at = f"transformer.{stack}.layers.{layer}"
            for attention in attentions:
                shapes[f"{at}.{attention}.in_proj_weight"] = (768, 256)
                shapes[f"{at}.{attention}.in_proj_bias"] = (768,)
                linear(f"{at}.{attention}.out_proj", 256, 256)
            linear(f"{at}.linear1", 2048, 256)
            linear(f"{at}.linear2", 256, 2048)
            for number in range(1, norms + 1):
                shapes.update({f"{at}.norm{number}.{part}": (256,) for part in ("weight", "bias")})
    shapes.update({f"transformer.decoder.norm.{part}": (256,) for part in ("weight", "bias")})
    shapes |= {"input_proj.weight": (256, 2048, 1, 1), "input_proj.bias": (256,), "query_embed.weight": (100, 256)}
    linear("class_embed", 92, 256)
    for layer, after in enumerate((256, 256, 4)):
        linear(f"bbox_embed.layers.{layer}", after, 256)
    return shapes


@pytest.mark.parametrize(("name", "blocks"), [("detr_r50", (3, 4, 6, 3)), ("detr_r101", (3, 4, 23, 3))])
def test_the_published_files_have_these_names_and_shapes(name, blocks):
    from regard.weights.detr import ORIGINAL_DETR

    with torch.device("meta"):
        model = regard.create(name, frozen_norms=True)
    written, unknown = ORIGINAL_DETR.write(model.state_dict(), model.config)
    assert not unknown
    assert {key: tuple(t.shape) for key, t in written.items()} == published_keys(blocks)


def test_a_dilated_last_stage_answers_as_the_authors(tmp_path):
    theirs = reference()
    state = authors_names(saved(theirs, tmp_path / "hf"))
    torch.save({"model": state}, tmp_path / "dc5.pth")
    ours = regard.create(weights=tmp_path / "dc5.pth", heads=4, dilated=True, quiet=True).eval()
    assert_answers(ours, dilate(theirs))
    plain = regard.create(weights=tmp_path / "dc5.pth", heads=4, quiet=True)
    assert any("not dilated" in line for line in plain.loaded.assumed)
    save_own(ours, tmp_path / "own.safetensors")
    with pytest.raises(ConfigError, match="cannot represent a dilated ResNet of this shape"):
        convert(tmp_path / "own.safetensors", tmp_path / "back", to="hf")


@pytest.mark.parametrize("kind", ["basic", "bottleneck"])
def test_back_to_transformers_every_tensor_of_a_detr_is_equal(kind, tmp_path):
    theirs = reference(kind)
    before = saved(theirs, tmp_path / "hf")
    convert(tmp_path / "hf", tmp_path / "ours.safetensors", to="regard", size=(97, 130))
    convert(tmp_path / "ours.safetensors", tmp_path / "back", to="hf")
    assert_equal(load_file(tmp_path / "back" / "model.safetensors"), before)
    again, info = type(theirs).from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    for field in ("d_model", "encoder_layers", "decoder_layers", "num_queries", "id2label", "encoder_ffn_dim"):
        assert getattr(again.config, field) == getattr(theirs.config, field)
    x, mask = masked(97, 130)
    with torch.no_grad():
        assert_close(again.eval()(x, pixel_mask=mask.long()).pred_boxes, theirs(x, pixel_mask=mask.long()).pred_boxes)
    assert regard.create(weights=tmp_path / "back", quiet=True).config.size == (97, 130)
    processor = json.loads((tmp_path / "back" / "preprocessor_config.json").read_text())
    assert processor["size"] == {"shortest_edge": 97, "longest_edge": 130}


def test_other_classes_replace_the_class_head_only_and_it_is_said(tmp_path):
    theirs = reference()
    theirs.save_pretrained(tmp_path / "hf")
    ours = regard.create(weights=tmp_path / "hf", classes=2, quiet=True).eval()
    assert "the head for 2 classes is all zeros: the file's is for 5" in ours.loaded.untrained[0]
    assert "the file's head" in ours.loaded.unused[0]
    x, mask = masked(64, 96)
    with torch.no_grad():
        out, expected = ours(x, mask), theirs(x, pixel_mask=mask.long())
    assert out.logits.shape == (2, 7, 3)
    assert not out.logits.any()
    assert_close(out.boxes, expected.pred_boxes)


def test_a_file_without_its_class_head_loads_too(tmp_path):
    """Fine-tuning recipes delete it from the authors' file."""
    theirs = reference()
    state = authors_names(saved(theirs, tmp_path / "hf"))
    del state["class_embed.weight"], state["class_embed.bias"]
    torch.save({"model": state}, tmp_path / "detr.pth")
    ours = regard.create(weights=tmp_path / "detr.pth", heads=4, classes=2, quiet=True)
    assert "the file has none" in ours.loaded.untrained[0]


def test_missing_and_extra_tensors_are_listed_by_the_files_own_names(tmp_path):
    state = authors_names(saved(reference(), tmp_path / "hf"))
    for name in ("bbox_embed.layers.1.bias", "transformer.decoder.layers.2.multihead_attn.in_proj_bias"):
        torch.save({"model": {key: t for key, t in state.items() if key != name}}, tmp_path / "lacks.pth")
        with pytest.raises(RunError, match=re.escape(f"{name}: not in the file")):
            regard.create(weights=tmp_path / "lacks.pth", heads=4, quiet=True)
    torch.save({"model": state | {"transformer.level_embed": torch.zeros(4, 32)}}, tmp_path / "more.pth")
    with pytest.raises(RunError, match=r"transformer\.level_embed: not in the model"):
        regard.create(weights=tmp_path / "more.pth", heads=4, quiet=True)
    torch.save({"model": state | {"query_embed.weight": torch.zeros(7, 16)}}, tmp_path / "odd.pth")
    with pytest.raises(RunError, match=r"here, .* in the file"):
        regard.create(weights=tmp_path / "odd.pth", heads=4, quiet=True)


@pytest.mark.parametrize(
    "setting", [{"position_embedding_type": "learned"}, {"activation_function": "gelu"}, {"decoder_ffn_dim": 64}]
)
def test_settings_that_are_another_network_are_refused(setting, tmp_path):
    reference().save_pretrained(tmp_path / "hf")
    path = tmp_path / "hf" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | setting))
    with pytest.raises(RunError, match=next(iter(setting)).removeprefix("decoder_")):
        regard.create(weights=tmp_path / "hf", quiet=True)


def test_heads_and_dilation_of_a_name_must_be_the_files(tmp_path):
    model = spread(regard.create("detr_nano", classes=3, frozen_norms=True))
    save_own(model, tmp_path / "own.safetensors")
    with pytest.raises(RunError, match="heads: 4 here, 8 in the file"):
        regard.create(weights=tmp_path / "own.safetensors", heads=4, quiet=True)
    with pytest.raises(RunError, match="dilated: False here, True in the file"):
        regard.create(weights=tmp_path / "own.safetensors", dilated=False, quiet=True)


def test_norms_can_be_trained_and_fixed_again(tmp_path):
    theirs = reference()
    theirs.save_pretrained(tmp_path / "hf")
    live = regard.create(weights=tmp_path / "hf", frozen_norms=False, quiet=True).eval()
    assert "the backbone's batch norms are trained" in live.loaded.changed
    assert all(p.requires_grad for p in live.parameters())
    assert_answers(live, theirs)
    save_own(live, tmp_path / "live.safetensors")
    fixed = regard.create(weights=tmp_path / "live.safetensors", frozen_norms=True, quiet=True).eval()
    assert_answers(fixed, theirs)
    convert(tmp_path / "live.safetensors", tmp_path / "back.safetensors", to="detr")
    assert_equal(load_file(tmp_path / "back.safetensors"), authors_names(load_file(tmp_path / "hf/model.safetensors")))


def test_grey_input_sums_the_first_convolution(tmp_path):
    theirs = reference()
    theirs.save_pretrained(tmp_path / "hf")
    ours = regard.create(weights=tmp_path / "hf", channels=1, quiet=True).eval()
    grey = scene(64, 96)[:, :1]
    with torch.no_grad():
        assert_close(ours(grey).boxes, theirs(grey.expand(-1, 3, -1, -1)).pred_boxes)


def test_our_own_files_come_back(tmp_path):
    model = spread(regard.create("detr_nano", classes=3))
    regard.save(model, tmp_path / "m.safetensors", classes=("cat", "dog", "tree"))
    again = regard.create(weights=tmp_path / "m.safetensors", quiet=True)
    assert again.config == model.config
    assert_equal(again.state_dict(), model.state_dict())
    with pytest.raises(ConfigError, match="timm weights cannot represent a DETR"):
        convert(tmp_path / "m.safetensors", tmp_path / "t.safetensors", to="timm")


def test_a_panoptic_model_of_transformers_both_ways(tmp_path):
    theirs = panoptic()
    before = saved(theirs, tmp_path / "hf")
    ours = regard.create(weights=tmp_path / "hf", quiet=True).eval()
    assert (ours.config.masks, ours.loaded.unused) == (True, ())
    assert_masks(ours, theirs)
    convert(tmp_path / "hf", tmp_path / "back", to="hf")
    assert_equal(load_file(tmp_path / "back" / "model.safetensors"), before)
    again, info = type(theirs).from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert_masks(ours, again.eval())
    torch.save(theirs.state_dict(), tmp_path / "five.bin")  # version 5's names
    assert_masks(regard.create(weights=tmp_path / "five.bin", quiet=True).eval(), theirs)


def test_a_panoptic_model_of_the_authors_both_ways(tmp_path):
    theirs = panoptic()
    file = saved(theirs, tmp_path / "hf")
    inner = authors_names({n.removeprefix("detr."): t for n, t in file.items() if n.startswith("detr.")})
    head = {name: t for name, t in file.items() if name.startswith(("mask_head.", "bbox_attention."))}
    state = {f"detr.{name}": t for name, t in inner.items()} | head
    assert {f"mask_head.lay{n}.weight" for n in range(1, 6)} | {"bbox_attention.q_linear.weight"} <= set(head)
    torch.save({"model": state}, tmp_path / "panoptic.pth")
    ours = regard.create(weights=tmp_path / "panoptic.pth", quiet=True).eval()
    assert_masks(ours, theirs)
    save_own(ours, tmp_path / "own.safetensors")
    convert(tmp_path / "own.safetensors", tmp_path / "back.safetensors", to="detr")
    assert_equal(load_file(tmp_path / "back.safetensors"), state)
    del state["mask_head.gn5.bias"]
    torch.save({"model": state}, tmp_path / "lacks.pth")
    with pytest.raises(RunError, match=r"mask_head\.gn5\.bias: not in the file"):
        regard.create(weights=tmp_path / "lacks.pth", quiet=True)


def test_modern_mode_comes_back_and_takes_other_classes_but_has_no_other_names(tmp_path):
    modern = {"classification": "focal", "two_stage": True, "denoising": 2, "box_bias": True, "norm": "pre"}
    model = spread(regard.create("detr_nano", classes=3, **modern))
    save_own(model, tmp_path / "m.safetensors")
    same = regard.create(weights=tmp_path / "m.safetensors", quiet=True)
    assert_equal(same.state_dict(), model.state_dict())
    other = regard.create(weights=tmp_path / "m.safetensors", classes=2, quiet=True)
    for name in ("head", "anchors.proposer.head"):
        assert not other.get_parameter(f"{name}.weight").any()
        torch.testing.assert_close(other.get_parameter(f"{name}.bias").sigmoid(), torch.full((2,), 0.01))
    assert other.get_parameter("anchors.denoiser.labels.weight").shape == (2, 64)
    assert any("classes of proposals" in line for line in other.loaded.lines())
    with pytest.raises(ConfigError, match="cannot represent a DETR with norm"):
        convert(tmp_path / "m.safetensors", tmp_path / "out.safetensors", to="detr")
    with pytest.raises(RunError, match="norm: post here, pre in the file"):
        regard.create(weights=tmp_path / "m.safetensors", norm="post", quiet=True)
