"""Both ways with timm: its own files, its published hybrids, and Google's .npz through its loader."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

timm = pytest.importorskip("timm")

from timm.layers import HybridEmbed  # noqa: E402  # pyright: ignore[reportMissingImports]
from timm.models._hub import save_config_for_hf  # noqa: E402  # pyright: ignore[reportMissingImports]
from timm.models.eva import Eva  # noqa: E402  # pyright: ignore[reportMissingImports]
from timm.models.resnetv2 import ResNetV2  # noqa: E402  # pyright: ignore[reportMissingImports]
from timm.models.vision_transformer import VisionTransformer  # noqa: E402  # pyright: ignore[reportMissingImports]
from timm.models.vision_transformer_hybrid import _resnetv2  # noqa: E402  # pyright: ignore[reportMissingImports]

import regard  # noqa: E402
from regard.errors import RunError  # noqa: E402
from regard.networks.resnet.bit import HybridStem  # noqa: E402
from regard.networks.vit import network as vit  # noqa: E402
from regard.registry import MODELS  # noqa: E402
from regard.weights import convert  # noqa: E402
from tests.loading import load_classifier  # noqa: E402
from tests.weights.parity import assert_close, assert_equal, picture, randomise  # noqa: E402

SMALL = {"patch_size": 8, "embed_dim": 32, "depth": 3, "num_heads": 4, "mlp_ratio": 2, "num_classes": 5}
KINDS = {
    "plain": {},
    "layer scale": {"init_values": 0.1},
    "registers": {"init_values": 0.1, "reg_tokens": 2, "no_embed_class": True},
    "mean": {"class_token": False, "global_pool": "avg", "fc_norm": False},
}


def reference(kind: str, **fields) -> VisionTransformer:
    return randomise(VisionTransformer(**SMALL | {"img_size": (16, 24)} | KINDS.get(kind, {}) | fields))


@pytest.fixture
def small_resnet(monkeypatch):
    """The hybrid with one, two and one bottlenecks: the same code, a fortieth of the time."""
    monkeypatch.setitem(vit.STEMS, "r50", partial(HybridStem, blocks=(1, 2, 1)))


def hybrid(**fields) -> VisionTransformer:
    embed = partial(HybridEmbed, backbone=_resnetv2(layers=(1, 2, 1)))
    fields = {"img_size": (32, 80), "patch_size": 1, "embed_layer": embed} | fields
    model = randomise(VisionTransformer(**SMALL | fields))
    model.patch_embed.proj.weight.data.mul_(0.1)  # tokens of size one, which 1e-5 is said of
    return model


@pytest.mark.parametrize("ending", [".safetensors", ".pth"])
@pytest.mark.parametrize("kind", KINDS)
def test_both_ways_on_a_rectangle(kind, ending, tmp_path):
    theirs, path = reference(kind), tmp_path / f"theirs{ending}"
    state = theirs.state_dict()
    save_file(state, path) if ending == ".safetensors" else torch.save({"state_dict": state, "epoch": 3}, path)
    ours = regard.create(weights=path, heads=4, size=(16, 24), quiet=True).eval()
    assert ours.loaded.format == "timm"
    assert ours.loaded.changed == ()
    with torch.no_grad():
        assert_close(ours(picture(16, 24)).logits, theirs(picture(16, 24)))
        assert_close(ours(picture(16, 24)).tokens, theirs.forward_features(picture(16, 24)))
    convert(path, tmp_path / "back.safetensors", to="timm", heads=4, size=(16, 24))
    back = load_file(tmp_path / "back.safetensors")
    assert_equal(back, state)
    theirs.load_state_dict(back, strict=True)


@pytest.mark.parametrize(
    "fields", [{"no_embed_class": True}, {"reg_tokens": 2}, {"reg_tokens": 2, "init_values": 0.1}], ids=str
)
def test_positions_for_more_or_fewer_prefix_tokens_are_folded_in(fields, tmp_path):
    theirs = reference("plain", img_size=(16, 32), **fields)
    save_file(theirs.state_dict(), tmp_path / "theirs.safetensors")
    ours = regard.create(weights=tmp_path / "theirs.safetensors", heads=4, size=(16, 32), quiet=True).eval()
    with torch.no_grad():
        assert_close(ours(picture(16, 32)).logits, theirs(picture(16, 32)))


def test_distilled_deit(tmp_path):
    from timm.models.deit import VisionTransformerDistilled  # pyright: ignore[reportMissingImports]

    theirs = randomise(VisionTransformerDistilled(**SMALL | {"img_size": 16, "weight_init": "skip"}))
    torch.save({"model": theirs.state_dict()}, tmp_path / "deit.pth")
    ours = regard.create(weights=tmp_path / "deit.pth", heads=4, quiet=True).eval()
    assert ours.config.distilled
    assert not ours.config.registers
    with torch.no_grad():
        assert_close(ours(picture(16, 16)).logits, theirs(picture(16, 16)))
        theirs.set_distilled_training(True)
        assert_close(ours(picture(16, 16)).both, torch.stack(theirs.train()(picture(16, 16)), dim=1))
    convert(tmp_path / "deit.pth", tmp_path / "back.safetensors", to="timm", heads=4)
    assert_equal(load_file(tmp_path / "back.safetensors"), theirs.state_dict())


@pytest.mark.parametrize("fields", [{}, {"reg_tokens": 2}, {"reg_tokens": 2, "no_embed_class": True}], ids=str)
def test_mean_pooling_beside_a_class_token(fields, tmp_path):
    """Only config.json says it; timm writes that."""
    theirs = reference("plain", global_pool="avg", fc_norm=False, **fields)
    theirs.pretrained_cfg = {"architecture": "vit_base_patch16_224", "input_size": (3, 16, 24)}
    save_file(theirs.state_dict(), tmp_path / "model.safetensors")
    names = [f"name {n}" for n in range(5)]
    save_config_for_hf(theirs, tmp_path / "config.json", {"label_names": names}, {"num_heads": 4})
    ours = load_classifier(tmp_path, quiet=True)
    with torch.no_grad():
        assert_close(ours.model(picture(16, 24)).logits, theirs(picture(16, 24)))
    assert ours.classes == tuple(names)


@pytest.mark.parametrize("name", ["vit_medium_patch16_gap_240", "vit_*siglip_gap*", "vit_*_quickgelu_224", "vit_giga*"])
def test_what_no_tensor_shows_is_refused_by_the_architectures_name(name):
    """Another activation; and heads of other than 64, which no shape tells."""
    from timm.layers import GELUTanh  # pyright: ignore[reportMissingImports]

    from regard.weights.timm_config import stored_arguments
    from regard.weights.vit import LARGER

    for full in timm.list_models(name):
        with torch.device("meta"):
            theirs = timm.create_model(full, depth=1)
        plain = isinstance(theirs.blocks[0].mlp.act, torch.nn.GELU) and not isinstance(
            theirs.blocks[0].mlp.act, GELUTanh
        )
        about = {"architecture": full}
        if not plain:
            with pytest.raises(regard.RegardError, match="is not known here"):
                stored_arguments(about, Path("config.json"))
        else:
            stored_arguments(about, Path("config.json"))
            shape = (theirs.embed_dim, theirs.blocks[0].mlp.fc1.out_features)
            known = {(w, m): heads for w, _, heads, m in LARGER.values()}
            assert theirs.blocks[0].attn.num_heads == known.get(shape, theirs.embed_dim // 64), full


def test_mean_pooling_before_the_norm_is_refused(tmp_path):
    theirs = reference("plain", global_pool="avg")
    save_file(theirs.state_dict(), tmp_path / "theirs.safetensors")
    with pytest.raises(
        regard.RegardError, match=r"norm\.weight: not in the file(.|\n)*fc_norm\.weight: not in the model"
    ):
        regard.create(weights=tmp_path / "theirs.safetensors", heads=4, size=(16, 24))


def test_timms_published_models_are_ours():
    """Names and shapes of real variants, on no memory: every tensor finds its place."""
    from regard.weights.vit_names import TIMM

    names = {"vit_base_patch16_224": "vit_b16", "vit_base_patch32_224": "vit_b32", "deit_tiny_patch16_224": "vit_ti16",
             "vit_huge_patch14_224": "vit_h14", "vit_base_r50_s16_224": "vit_r50_b16"}  # fmt: skip
    for theirs, ours in names.items():
        with torch.device("meta"):
            reference, model = timm.create_model(theirs, num_classes=1000), regard.create(ours)
            assert sum(p.numel() for p in reference.parameters()) == MODELS[ours].parameters
            written, unknown = TIMM.write(model.state_dict(), model.config)
        assert not unknown
        assert {k: v.shape for k, v in written.items()} == {k: v.shape for k, v in reference.state_dict().items()}


@pytest.mark.parametrize("size", [(32, 80), (24, 71)])
def test_the_hybrid_both_ways(size, small_resnet, tmp_path):
    """A size that is no multiple of 16 too: TensorFlow's padding gives the odd pixel to the end."""
    theirs = hybrid(dynamic_img_size=True)
    save_file(theirs.state_dict(), tmp_path / "theirs.safetensors")
    ours = regard.create(weights=tmp_path / "theirs.safetensors", heads=4, size=(32, 80), quiet=True).eval()
    assert (ours.config.stem, ours.config.patch) == ("r50", (16, 16))
    with torch.no_grad():
        expected = theirs.patch_embed(picture(*size)).flatten(1, 2)
        assert_close(ours.patches(picture(*size)), expected)
        if size == (32, 80):
            assert_close(ours(picture(*size)).logits, theirs(picture(*size)))
    convert(tmp_path / "theirs.safetensors", tmp_path / "back.safetensors", to="timm", heads=4, size=(32, 80))
    assert_equal(load_file(tmp_path / "back.safetensors"), theirs.state_dict())


def test_the_whole_resnet_of_the_hybrid():
    """All sixteen bottlenecks, as published."""
    theirs = randomise(HybridEmbed(_resnetv2((3, 4, 9)), img_size=32, embed_dim=16))
    theirs.proj.weight.data.mul_(0.02)
    assert isinstance(theirs.backbone, ResNetV2)
    from regard.weights.vit_names import TIMM

    state, unknown = TIMM.read({f"patch_embed.{k}": v for k, v in theirs.state_dict().items()})
    assert not unknown
    ours = HybridStem((16, 16), 3, 16)
    state = {k.removeprefix("patches."): v.flatten(1) if k == "patches.project.weight" else v for k, v in state.items()}
    ours.load_state_dict(state)
    with torch.no_grad():
        assert_close(ours(picture(32, 32)), theirs(picture(32, 32)))


@pytest.mark.parametrize("big_vision", [False, True])
@pytest.mark.parametrize("kind", ["plain", "mean", "hybrid"])
def test_googles_npz_through_timms_loader(kind, big_vision, small_resnet, tmp_path):
    """Our file, their loader, one answer; read back, the same bits; big_vision's names too."""
    theirs, size = (hybrid(), (32, 80)) if kind == "hybrid" else (reference(kind), (16, 24))
    save_file(theirs.state_dict(), tmp_path / "theirs.safetensors")
    path = tmp_path / "ours.npz"
    convert(tmp_path / "theirs.safetensors", path, to="google", heads=4, size=size)
    if big_vision:
        path = as_big_vision(path, tmp_path / "big_vision.npz")
    other = hybrid() if kind == "hybrid" else reference(kind)
    randomise(other, seed=1)
    other.load_pretrained(str(path))
    assert_equal(other.state_dict(), theirs.state_dict())
    ours = regard.create(weights=path, size=size, quiet=True).eval()  # its kernels say how many heads
    assert (ours.loaded.format, ours.config.heads) == ("google", 4)
    with torch.no_grad():
        assert_close(ours(picture(*size)).logits, other(picture(*size)))
    convert(path, tmp_path / "back.safetensors", to="timm", size=size)
    assert_equal(load_file(tmp_path / "back.safetensors"), theirs.state_dict())


def as_big_vision(path, out):
    """The same arrays under the names of Google's later code, as timm's loader expects them."""
    swaps = {
        "Transformer/posembed_input/pos_embedding": "pos_embedding",
        "MultiHeadDotProductAttention_1": "MultiHeadDotProductAttention_0",
        "MlpBlock_3": "MlpBlock_0",
        "LayerNorm_2": "LayerNorm_1",
    }
    with np.load(path) as stored:
        arrays = {name: stored[name] for name in stored.files}
    for old, new in swaps.items():
        arrays = {name.replace(old, new): array for name, array in arrays.items()}
    np.savez(out, **{f"params/{name}": array for name, array in arrays.items()})
    return out


def test_original_files_with_an_optimizer_prefix(tmp_path):
    theirs = reference("plain", img_size=16)
    save_file(theirs.state_dict(), tmp_path / "theirs.safetensors")
    convert(tmp_path / "theirs.safetensors", tmp_path / "ours.npz", to="google", heads=4)
    with np.load(tmp_path / "ours.npz") as stored:
        np.savez(tmp_path / "opt.npz", **{f"opt/target/{name}": stored[name] for name in stored.files})
    other = randomise(reference("plain", img_size=16), seed=1)
    other.load_pretrained(str(tmp_path / "opt.npz"))
    ours = regard.create(weights=tmp_path / "opt.npz", quiet=True).eval()
    with torch.no_grad():
        assert_close(ours(picture(16, 16)).logits, other(picture(16, 16)))


def test_dinov2_as_timm_reads_facebooks_names(tmp_path):
    """Our file in Facebook's names, through timm's own converter of those."""
    from timm.models.vision_transformer import checkpoint_filter_fn  # pyright: ignore[reportMissingImports]

    fields = KINDS["registers"] | {"img_size": 24}
    theirs = reference("plain", **fields)
    save_file(theirs.state_dict(), tmp_path / "theirs.safetensors")
    convert(tmp_path / "theirs.safetensors", tmp_path / "fb.safetensors", to="dinov2", heads=4)
    facebook = load_file(tmp_path / "fb.safetensors")
    assert {"mask_token", "register_tokens"} <= set(facebook)
    other = randomise(reference("plain", **fields, num_classes=0), seed=1)
    other.load_state_dict(checkpoint_filter_fn(facebook, other), strict=True)
    ours = regard.create(weights=tmp_path / "fb.safetensors", heads=4, quiet=True).eval()
    assert ours.loaded.format == "dinov2"
    with torch.no_grad():
        assert_close(ours(picture(24, 24)).tokens, other.forward_features(picture(24, 24)))


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_its_resnets_both_ways(name, tmp_path):
    theirs = randomise(timm.create_model(name, num_classes=5))
    save_file(theirs.state_dict(), tmp_path / "r.safetensors")
    ours = regard.create(name, weights=tmp_path / "r.safetensors", quiet=True).eval()
    with torch.no_grad():
        assert_close(ours(picture(64, 48)).logits, theirs(picture(64, 48)))
    convert(tmp_path / "r.safetensors", tmp_path / "back.safetensors", to="timm")
    assert_equal(load_file(tmp_path / "back.safetensors"), theirs.state_dict())


def test_its_bit_both_ways(tmp_path):
    with torch.device("meta"):
        published = timm.create_model("resnetv2_50x1_bit", num_classes=1000)
    assert sum(p.numel() for p in published.parameters()) == MODELS["bit_r50x1"].parameters
    theirs = randomise(timm.create_model("resnetv2_50x1_bit", num_classes=5))
    save_file(theirs.state_dict(), tmp_path / "r.safetensors")
    ours = regard.create(weights=tmp_path / "r.safetensors", quiet=True).eval()
    assert (ours.loaded.format, ours.config.kind) == ("timm", "bit")
    with torch.no_grad():
        assert_close(ours(picture(64, 48)).logits, theirs(picture(64, 48)))
    convert(tmp_path / "r.safetensors", tmp_path / "back.safetensors", to="timm")
    assert_equal(load_file(tmp_path / "back.safetensors"), theirs.state_dict())


EVA_02 = {"qkv_fused": False, "swiglu_mlp": True, "use_rot_pos_emb": True, "ref_feat_shape": (2, 2)}


@pytest.mark.parametrize(
    ("fields", "more"), [({}, ""), (EVA_02, ""), (EVA_02 | {"scale_mlp": True}, r".*a gated MLP \(SwiGLU\)")]
)
def test_eva_is_refused_by_its_name(fields, more, tmp_path):
    torch.save(Eva(**SMALL | {"img_size": 16} | fields).state_dict(), tmp_path / "eva.pt")
    with pytest.raises(RunError, match=rf"another network: .*as in EVA{more}"):
        regard.create(weights=tmp_path / "eva.pt", heads=4)
