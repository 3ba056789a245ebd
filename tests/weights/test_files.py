"""Files that would harm: code in pickles, archives that explode, shapes that lie, weights of something else."""

import io
import json
import os
import pickle
import re
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import regard
from regard.errors import RegardError, RunError
from regard.networks.vit.config import ViTConfig
from regard.networks.vit.network import ViT
from regard.weights import convert, files
from regard.weights.files import open_file
from regard.weights.load import find_file
from regard.weights.vit import write_names
from regard.weights.vit_names import GOOGLE, HF, TIMM
from tests.weights.parity import randomise

FIELDS = {"size": (24, 24), "patch": (8, 8), "width": 64, "depth": 2, "heads": 1, "mlp": 96, "classes": 5}


class Payload:
    """What unpickles to a call: a file appears if anything runs it."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.system, (f"touch {self.mark}",)


def model(**fields) -> ViT:
    return randomise(ViT(ViTConfig(**FIELDS | fields)))


def timm_state(**fields) -> dict[str, torch.Tensor]:
    ours = model(**fields)
    return write_names(ours.state_dict(), ours.config, TIMM)[0]


def save_arrays(path: Path, arrays: dict[str, Any]) -> None:
    np.savez(path, **arrays)


@pytest.fixture
def mark(tmp_path):
    """The file that running the payload would make; it must never be."""
    path = tmp_path / "it ran".replace(" ", "_")
    yield path
    assert not path.exists(), "code of a file was run"


@pytest.mark.parametrize("ending", [".pth", ".pt", ".bin", ".ckpt", ".npz", ".safetensors"])
@pytest.mark.parametrize("kind", ["archive", "legacy", "bare"])
def test_a_pickle_that_runs_code_is_refused_in_any_file(ending, kind, mark, tmp_path):
    path = tmp_path / f"weights{ending}"
    if kind == "bare":
        path.write_bytes(pickle.dumps({"model": Payload(mark)}))
    else:
        torch.save({"model": timm_state(), "x": Payload(mark)}, path, _use_new_zipfile_serialization=kind == "archive")
    for use in (lambda file: regard.create(weights=file), regard.load):
        with pytest.raises(RunError, match=r"posix\.system, which is running code: refused|damaged") as caught:
            use(path)
    if kind != "bare" or ending == ".safetensors":
        assert "refused" in str(caught.value)
        assert "do not trust" in str(caught.value)


def test_a_pickle_inside_an_npz_is_refused(mark, tmp_path):
    save_arrays(tmp_path / "w.npz", {"embedding/kernel": np.array([Payload(mark)], dtype=object)})
    with pytest.raises(RunError, match=r"'embedding/kernel' is a pickle, which can run code: refused"):
        regard.create(weights=tmp_path / "w.npz")


def test_plain_settings_beside_the_weights_are_no_danger(tmp_path):
    """Training scripts keep an argparse.Namespace beside the weights."""
    import argparse

    torch.save({"model": timm_state(), "args": argparse.Namespace(lr=0.1), "epoch": 3}, tmp_path / "w.pth")
    made = regard.create(weights=tmp_path / "w.pth", quiet=True)
    assert made.loaded.unused == ("args (no weights)", "epoch (no weights)")


@pytest.mark.parametrize("ending", [".pth", ".npz", ".safetensors"])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 0.99])
def test_a_truncated_file_is_damaged(ending, share, tmp_path):
    path, state = tmp_path / f"w{ending}", timm_state()
    if ending == ".npz":
        save_arrays(path, {name: tensor.numpy() for name, tensor in state.items()})
    elif ending == ".pth":
        torch.save(state, path)
    else:
        save_file(state, path)
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(RunError, match="damaged"):
        regard.create(weights=path)


def npy_header(shape: tuple[int, ...]) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return file.getvalue()


def test_an_array_that_claims_a_huge_shape_is_refused_before_memory_is_asked_for(tmp_path):
    with zipfile.ZipFile(tmp_path / "w.npz", "w") as archive:
        archive.writestr("cls.npy", npy_header((1_000_000, 1_000_000)) + b"\0" * 16)
    with pytest.raises(RunError, match="'cls' claims the shape"):
        regard.create(weights=tmp_path / "w.npz")


def test_an_archive_that_unpacks_to_far_more_than_it_is_is_refused(tmp_path):
    with (
        zipfile.ZipFile(tmp_path / "w.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("cls.npy", "w", force_zip64=True) as member,
    ):
        member.write(npy_header((2**28 + 2**20,)))
        for _ in range(257):
            member.write(bytes(2**22))
    assert (tmp_path / "w.npz").stat().st_size < 2**23
    with pytest.raises(RunError, match=r"would unpack to 1 files, 1,\d{3},\d{3},\d{3} bytes"):
        regard.create(weights=tmp_path / "w.npz")


def test_a_tensor_larger_than_its_storage_is_refused(tmp_path):
    torch.save({"cls_token": torch.zeros(1).expand(10**6, 10**6)}, tmp_path / "w.pth")
    with pytest.raises(RunError, match="'cls_token' is no plain tensor"):
        regard.create(weights=tmp_path / "w.pth")


def test_any_length_of_header_is_no_pickle(tmp_path):
    """A safetensors file opens with the length of its header, which may begin like a pickle."""
    state, seen = timm_state(depth=1), set()
    for n in range(40):
        save_file(state, tmp_path / f"{n}.safetensors", metadata={"note": "x" * 8 * n})
        seen.add((tmp_path / f"{n}.safetensors").read_bytes()[0])
        assert regard.create(weights=tmp_path / f"{n}.safetensors", quiet=True).loaded.format == "timm"
    assert 0x80 in seen


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "a/b.safetensors"])
def test_an_index_that_points_outside_its_folder_is_refused(name, tmp_path):
    index = tmp_path / "hf" / "model.safetensors.index.json"
    index.parent.mkdir()
    save_file(timm_state(), tmp_path / "secret.safetensors")
    index.write_text(json.dumps({"weight_map": {"cls_token": name}}))
    with pytest.raises(RunError, match="points outside its folder"):
        regard.create(weights=tmp_path / "hf")


def test_weights_in_parts_are_put_together(tmp_path):
    state, folder = timm_state(), tmp_path / "parts"
    folder.mkdir()
    names = sorted(state)
    parts = {"a.safetensors": names[:9], "b.safetensors": names[9:]}
    for part, held in parts.items():
        save_file({name: state[name] for name in held}, folder / part)
    index = {"weight_map": {name: part for part, held in parts.items() for name in held}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert set(open_file(find_file(folder)).tensors) == set(state)
    (folder / "b.safetensors").unlink()
    with pytest.raises(RunError, match=r"a part is missing: b\.safetensors"):
        regard.create(weights=folder)


def test_another_architecture_gets_the_list_of_what_differs(tmp_path):
    vgg = {"features.0.weight": torch.zeros(4, 3, 3, 3), "classifier.0.weight": torch.zeros(4, 4)}
    torch.save(vgg, tmp_path / "r.pth")
    with pytest.raises(RunError) as caught:
        regard.create(weights=tmp_path / "r.pth")
    for words in (
        "no Vision Transformer",
        "not in the file",
        "features.0.weight: not in the model",
        "formats tried: regard, google, torchvision, hf, dinov2, timm",
    ):
        assert words in str(caught.value)


def test_a_relative_of_vit_gets_the_list_of_what_differs(tmp_path):
    """Query and key norms change every answer: a file with them must not load as if they were not there."""
    state = timm_state()
    del state["blocks.1.attn.qkv.bias"]
    save_file(state | {"blocks.0.attn.q_norm.weight": torch.ones(64)}, tmp_path / "w.safetensors")
    with pytest.raises(RunError) as caught:
        regard.create(weights=tmp_path / "w.safetensors")
    assert "blocks.1.attn.qkv.bias: not in the file" in str(caught.value)
    assert "blocks.0.attn.q_norm.weight: not in the model" in str(caught.value)


def test_another_size_than_the_named_model_gets_the_list_of_what_differs(tmp_path):
    save_file(timm_state(), tmp_path / "w.safetensors")
    with pytest.raises(RunError) as caught:
        regard.create("vit_ti16", weights=tmp_path / "w.safetensors")
    assert "class_token: (1, 192) here, (1, 64) in the file" in str(caught.value)
    assert "more" in str(caught.value)
    with pytest.raises(RunError, match=r"blocks\.2\.norm1\.weight: not in the file"):
        regard.create("vit_nano", weights=tmp_path / "w.safetensors", mlp=96, patch=8, heads=1)
    with pytest.raises(RunError, match=r"blocks\.0\.mlp\.up\.weight: \(192, 64\) here, \(96, 64\) in the file"):
        regard.create("vit3d_nano", weights=tmp_path / "w.safetensors")  # inflated, but not of its sizes
    regard.save(regard.create("vit3d_nano", classes=3, size=16), tmp_path / "v.safetensors")
    with pytest.raises(RunError, match="vit_nano takes inputs of 2 axes, the file's model of 3"):
        regard.create("vit_nano", weights=tmp_path / "v.safetensors")
    with pytest.raises(RegardError, match="did you mean vit_nano"):
        regard.create("vit_nanno", weights=tmp_path / "w.safetensors")


def test_what_shapes_do_not_show_is_compared_too(tmp_path):
    """The same numbers in other heads or patches answer something else."""
    ours = model(heads=4)
    tensors, _ = write_names(ours.state_dict(), ours.config, GOOGLE)
    save_arrays(tmp_path / "w.npz", {name: tensor.numpy() for name, tensor in tensors.items()})
    assert regard.create(weights=tmp_path / "w.npz", quiet=True).config.heads == 4
    with pytest.raises(RunError, match="heads: 8 here, 4 in the file"):
        regard.create(weights=tmp_path / "w.npz", heads=8)
    with pytest.raises(RunError, match=r"patch: \(16, 4\) here, \(8, 8\) in the file"):
        regard.create(weights=tmp_path / "w.npz", patch=(16, 4))


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int64, torch.bool, torch.float8_e4m3fn])
def test_quantised_weights_are_refused(dtype, tmp_path):
    """Their scale is not read: as plain numbers they would answer nonsense."""
    ours, path = model(), tmp_path / "w.safetensors"
    for target, name in ((TIMM, "blocks.1.norm2.bias"), (HF, "encoder.layer.1.attention.attention.key.weight")):
        state, _ = write_names(ours.state_dict(), ours.config, target)
        save_file(state | {name: state[name].to(dtype)}, path)
        message = f"1 weights are not floating-point.*{re.escape(name)} \\({str(dtype)[6:]}\\)(.|\n)*quantised"
        with pytest.raises(RunError, match=message):
            regard.create(weights=path, heads=1)


def test_whole_numbers_that_are_not_used_do_no_harm(tmp_path):
    save_file(timm_state() | {"decoder_pred.bias": torch.ones(5, dtype=torch.int64)}, tmp_path / "w.safetensors")
    made = regard.create(weights=tmp_path / "w.safetensors", quiet=True)
    assert made.loaded.unused == ("decoder_pred.bias (5 numbers)",)


@pytest.mark.parametrize("second", ["module.norm.weight", "blocks.01.norm1.bias"])
def test_one_tensor_under_two_names_is_an_error_that_names_both(second, tmp_path):
    first = second.replace("module.", "").replace("01", "1")
    state = timm_state()
    torch.save(state | {second: state[first] + 1}, tmp_path / "w.pth")
    with pytest.raises(RunError, match=re.escape(f"{second} (a second {first}): not in the model")):
        regard.create(weights=tmp_path / "w.pth")


def test_tensors_that_are_views_of_one_another_are_refused_before_they_are_copied(tmp_path):
    state = timm_state()
    memory = torch.zeros(max(tensor.numel() for tensor in state.values()))
    views = {name: memory[: tensor.numel()].view(tensor.shape) for name, tensor in state.items()}
    torch.save(views, tmp_path / "w.pth")
    assert (tmp_path / "w.pth").stat().st_size < 80_000
    with pytest.raises(RunError, match=r"the tensors share memory: 288,788 bytes of them lie in 49,152"):
        regard.create(weights=tmp_path / "w.pth")
    flat = torch.cat([tensor.flatten() for tensor in state.values()])  # all parameters in one storage: harmless
    apart = torch.split(flat, [tensor.numel() for tensor in state.values()])
    torch.save({n: part.view(state[n].shape) for n, part in zip(state, apart, strict=True)}, tmp_path / "flat.pth")
    assert regard.create(weights=tmp_path / "flat.pth", quiet=True).config.depth == 2


def test_a_tensor_without_numbers_is_refused(tmp_path):
    torch.save(timm_state() | {"norm.weight": torch.empty(64, device="meta")}, tmp_path / "w.pth")
    with pytest.raises(RunError, match=r"'norm\.weight' is no plain tensor"):
        regard.create(weights=tmp_path / "w.pth")


def test_an_empty_kernel_is_a_difference(tmp_path):
    save_file(timm_state() | {"patch_embed.proj.weight": torch.zeros(64, 3, 0, 8)}, tmp_path / "w.safetensors")
    with pytest.raises(RunError, match=r"patch_embed\.proj\.weight: \(64, 3, 0, 8\) in the file"):
        regard.create(weights=tmp_path / "w.safetensors")


def test_parts_that_together_unpack_to_far_more_than_they_are_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "SURE", 2**20)
    for name in "abc":
        arrays: dict[str, Any] = {name: np.zeros(100_000, np.float32)}
        np.savez_compressed(tmp_path / f"{name}.npz", **arrays)
        assert set(open_file(tmp_path / f"{name}.npz").tensors) == {name}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {name: f"{name}.npz" for name in "ab"}}))
    assert set(open_file(index).tensors) == {"a", "b"}
    index.write_text(json.dumps({"weight_map": {name: f"{name}.npz" for name in "abc"}}))
    with pytest.raises(RunError, match=r"would unpack to 3 files, 1,200,\d{3} bytes"):
        open_file(index)


def test_a_tensor_in_two_parts_is_an_error(tmp_path):
    for name, tensors in (("a", timm_state()), ("b", {"x": torch.zeros(2), "norm.bias": torch.zeros(64)})):
        save_file(tensors, tmp_path / f"{name}.safetensors")
    index = {"weight_map": {"norm.bias": "a.safetensors", "x": "b.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(RunError, match=r"'norm\.bias' is in more than one part, also in b\.safetensors"):
        regard.create(weights=tmp_path)


def npz_with(path: Path, header: bytes | None = None, **bytes_at: int) -> Path:
    """An archive of one array, whose .npy header or bytes are then spoilt."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        if header is None:
            file = io.BytesIO()
            np.save(file, np.random.default_rng(0).normal(size=2000).astype(np.float32))
            archive.writestr("cls.npy", file.getvalue())
        else:
            archive.writestr("cls.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(64))
    spoilt = bytearray(path.read_bytes())
    for where, value in bytes_at.items():
        at = {"flag": 6, "list_flag": spoilt.rfind(b"PK\x01\x02") + 8, "stream": 37}[where]
        spoilt[at] = value
        if where == "stream":
            spoilt[at : at + 2000] = bytes([value]) * 2000
    path.write_bytes(spoilt)
    return path


SPOILT = {
    "unbalanced": {"header": b"{'descr': '<f4', 'fortran_order': False, 'shape': (16, }".ljust(117) + b"\n"},
    "damaged": {"stream": 0xFF},
    "encrypted": {"flag": 1, "list_flag": 1},
}


@pytest.mark.parametrize("kind", SPOILT)
def test_a_spoilt_npz_is_damaged(kind, tmp_path):
    with pytest.raises(RunError, match="the archive is damaged"):
        regard.create(weights=npz_with(tmp_path / "w.npz", **SPOILT[kind]))


def test_a_stray_file_beside_a_run_leaves_it_a_run(run_folder, tmp_path):
    shutil.copytree(run_folder, tmp_path / "run")
    (tmp_path / "run" / "copy.safetensors").write_bytes(b"")
    (tmp_path / "run" / "notes.bin").write_bytes(b"")
    assert regard.create(weights=tmp_path / "run", quiet=True).loaded.format == "regard"
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.raises(RunError, match=r"the folder holds no weights(.|\n)*model\.safetensors"):
        regard.create(weights=tmp_path / "run")


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused(bad, tmp_path):
    state = timm_state()
    state["blocks.1.norm2.bias"][3] = bad
    save_file(state, tmp_path / "w.safetensors")
    with pytest.raises(RunError, match=r"1 tensors hold NaN or infinity, such as blocks\.1\.norm2\.bias"):
        regard.create(weights=tmp_path / "w.safetensors")


def test_a_shape_that_no_transform_takes_is_a_difference_not_a_crash(tmp_path):
    ours = model()
    arrays = {name: t.numpy() for name, t in write_names(ours.state_dict(), ours.config, GOOGLE)[0].items()}
    for name in list(arrays):
        for shape in ((3,), (2, 2, 2), ()):
            save_arrays(tmp_path / "w.npz", arrays | {name: np.ones(shape, np.float32)})
            with pytest.raises(RegardError):
                regard.create(weights=tmp_path / "w.npz")


NONSENSE = (
    '{"model_type": "vit", "hidden_act": "relu"}',
    '{"model_type": "vit", "image_size": "x"}',
    '{"model_type": "vit", "num_attention_heads": 0}',
    '{"model_type": "vit", "layer_norm_eps": 0}',
    '{"model_type": "vit", "layer_norm_eps": -1e-6}',
    '{"model_type": "vit", "layer_norm_eps": NaN}',
    '{"model_type": "vit", "layer_norm_eps": 1' + "0" * 400 + "}",
    '{"model_type": "vit", "image_size": ' + "9" * 5000 + "}",
    '{"model_type": ' + "[" * 100_000,
    '{"model_type": "' + "x" * 2**24 + '"}',
    '{"model_type": "vit"',
    "[]",
)


@pytest.mark.parametrize("settings", NONSENSE, ids=lambda text: text[:60])
def test_a_config_beside_the_file_that_makes_no_sense(settings, tmp_path):
    ours = model()
    save_file(write_names(ours.state_dict(), ours.config, HF)[0], tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(settings)
    if settings == "[]":
        assert regard.create(weights=tmp_path, quiet=True).config.width == 64
    else:
        with pytest.raises(RegardError):
            regard.create(weights=tmp_path, quiet=True)


def test_a_convert_never_writes_over_and_refuses_before_reading(tmp_path):
    save_file(timm_state(), tmp_path / "w.safetensors")
    before = (tmp_path / "w.safetensors").read_bytes()
    with pytest.raises(RunError, match="exists already"):
        convert(tmp_path / "nothing.pth", tmp_path / "w.safetensors", to="timm")
    assert (tmp_path / "w.safetensors").read_bytes() == before
    with pytest.raises(RegardError, match=r"written as a \.npz file"):
        convert(tmp_path / "w.safetensors", tmp_path / "w.pth", to="google")
    with pytest.raises(RegardError, match="did you mean timm"):
        convert(tmp_path / "w.safetensors", tmp_path / "x.safetensors", to="tim")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "git-LFS pointer(.|\n)*git lfs pull"),
        ("<!DOCTYPE html>\n<html><body>Log in</body></html>", "web page"),
        ("\n<html>404</html>", "web page"),
    ],
)
@pytest.mark.parametrize("name", ["w.safetensors", "w.npz", "w.pth", "model.safetensors.index.json"])
def test_what_a_download_left_is_called_what_it_is(text, message, name, tmp_path):
    (tmp_path / name).write_text(text)
    for use in (lambda file: regard.create(weights=file), regard.load):
        with pytest.raises(RunError, match=message):
            use(tmp_path / name)


@pytest.mark.parametrize("old", [True, False])
def test_a_key_of_nested_tuples_is_refused_before_it_is_hashed(tmp_path, old):
    """A few kilobytes whose hash takes 2 ** 200 steps: tuples of two of the same, 200 levels of them."""
    path, text = tmp_path / "w.pt", b"X\x03\x00\x00\x00KEY"
    torch.save({"KEY": 1, "a": torch.zeros(2)}, path, _use_new_zipfile_serialization=not old)
    levels = [(1000 + n).to_bytes(4, "little") for n in range(200)]
    deep = b")" + b"".join(b"r" + n + b"j" + n + b"\x86" for n in levels)
    if old:
        assert path.read_bytes().count(text) == 1
        path.write_bytes(path.read_bytes().replace(text, deep))
    else:
        with zipfile.ZipFile(path) as archive:
            members = {member.filename: archive.read(member) for member in archive.infolist()}
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in members.items():
                archive.writestr(name, data.replace(text, deep))
    with pytest.raises(RunError, match="stands for more than"):
        open_file(path)
