"""Opens any weights file without running anything in it: safetensors, NumPy archives, PyTorch's pickles."""

from __future__ import annotations

import argparse
import json
import pickletools
import re
import warnings
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from regard.config import read_json
from regard.data.arrays import free_memory, member_header, read_member
from regard.errors import RunError, did_you_mean

MOST_ENTRIES = 20_000
"""Largest number of tensors or archive members; the largest ViTs have about two thousand."""
SURE = 2**30
"""Bytes an archive may always unpack to; beyond that, no more than twenty times its own size."""
MOST_VALUES = 10_000_000
"""Largest number of plain values in a pickle, each counted as often as it is referred to."""
OLD_PICKLES = 5
"""In a file of PyTorch's before 1.6: a number, a version, the system, the values, the names of their storages."""
MOST_SHARED = 4
"""Times that tensors may share the same memory, as tied layers do."""

# Where training scripts put the weights among other things; the first that is there is taken.
CONTAINERS = ("state_dict", "model", "model_state_dict", "teacher", "student", "module", "model_ema", "state_dict_ema")
FOLDER_FILES = (
    "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json",
)  # fmt: skip
"""What a folder of weights holds, as transformers writes it: one of these, and a config.json."""


@dataclass(frozen=True)
class Opened:
    """A weights file's tensors by their own names, and what else is known about it."""

    path: Path
    tensors: dict[str, Tensor] = field(repr=False)
    metadata: dict[str, str] = field(default_factory=dict)
    """The text in a safetensors header."""
    settings: dict[str, Any] = field(default_factory=dict)
    """The config.json beside it, where that describes a model, or the same in its header."""
    preprocessor: dict[str, Any] = field(default_factory=dict)
    """The preprocessor_config.json beside it, or the same in its header."""
    left: tuple[str, ...] = ()
    """Entries of the file beside the weights (an optimizer, a step count, other weights), in words."""

    @property
    def timm_settings(self) -> dict[str, Any]:
        """What timm says about the images of a published model."""
        stored = self.settings.get("pretrained_cfg", self.settings)  # older files have one level
        return stored if isinstance(stored, dict) and isinstance(stored.get("input_size"), list) else {}


def open_file(path: Path) -> Opened:
    """Tensors of a file, or of the files that an index lists."""
    if not path.is_file():
        near = did_you_mean(path.name, [p.name for p in path.parent.glob("*")]) if path.parent.is_dir() else None
        raise RunError("there is no such file or run", where=path, do=near)
    _refuse_texts(path)
    if path.name.endswith(".index.json"):
        values, metadata = _read_shards(path), {}
    else:
        _check_archives([path])
        values, metadata = _read(path)
    tensors, left = _unwrap(values, path)
    settings = _beside(path, "config.json")
    if not {"model_type", "pretrained_cfg", "architecture"} & settings.keys():  # not a model's config.json
        settings = _in_header(metadata, "settings", path)
    preprocessor = _beside(path, "preprocessor_config.json") or _in_header(metadata, "preprocessor", path)
    return Opened(path, tensors, metadata, settings, preprocessor, left)


def _refuse_texts(path: Path) -> None:
    """What a download often leaves in place of a file of weights."""
    with path.open("rb") as file:
        start = file.read(256).lstrip().lower()
    if start.startswith(b"version https://git-lfs"):
        what = "the file is a git-LFS pointer, not the weights it stands for"
        raise RunError(what, where=path, do="run `git lfs pull` in its repository, or download the file itself")
    if start.startswith((b"<!doctype html", b"<html")):
        what = "the file is a web page (HTML), not weights"
        raise RunError(what, where=path, do="download the file itself; a site may ask to log in first")


def _in_header(metadata: dict[str, str], name: str, path: Path) -> dict[str, Any]:
    """What our own converted files say in their headers, in the words of the files that may lie beside them."""
    try:
        value = json.loads(metadata.get(name, "{}"))
    except (ValueError, RecursionError):
        raise RunError(f"the {name} in the file's header are damaged", where=path) from None
    return value if isinstance(value, dict) else {}


def _beside(path: Path, name: str) -> dict[str, Any]:
    beside = path.with_name(name)
    value = read_json(beside) if beside.is_file() else {}
    return value if isinstance(value, dict) else {}


def _read(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Read a file by its contents; the ending of its name is not trusted."""
    with path.open("rb") as file:
        start = file.read(9)
    archive, pickled = zipfile.is_zipfile(path), start[:1] == b"\x80" and start[8:] != b"{"
    if path.suffix == ".safetensors" and (archive or pickled):
        what = "the file is damaged or in disguise: it is called .safetensors and holds a pickle, which can run code"
        raise RunError(f"{what}: refused", where=path, do="do not trust this file")
    if archive:
        if any(member.filename.endswith(".npy") for member in _members(path)):
            return _read_npz(path), _comment(path)
        return _read_torch(path, mapped=True), {}
    if pickled:
        return _read_torch(path, mapped=False), {}
    if start[:2] == b"PK" or path.suffix == ".npz":
        raise RunError("the archive is damaged: its list of contents is missing", where=path, do="download it again")
    return _read_safetensors(path)


def _read_safetensors(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        what = f"the file is damaged, or holds no weights: {error}"
        raise RunError(what, where=path, do="download it again, or give a file of weights") from None


def _read_shards(index: Path) -> dict[str, Any]:
    """The files that an index names, which must lie beside it."""
    stored = read_json(index)
    names = stored.get("weight_map") if isinstance(stored, dict) else None
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise RunError("the index has no weight_map of file names", where=index)
    parts = [index.parent / name for name in sorted(set(names.values()))]
    for name in set(names.values()):
        if Path(name).name != name:
            raise RunError(f"the index points outside its folder: {name!r}", where=index, do="do not trust this file")
        if not (index.parent / name).is_file():
            raise RunError(f"a part is missing: {name}", where=index, do="put all parts in one folder")
    _check_archives(parts)
    values: dict[str, Any] = {}
    for part in parts:
        more = _read(part)[0]
        if twice := sorted(map(str, set(values) & set(more))):
            raise RunError(f"{twice[0]!r} is in more than one part, also in {part.name}", where=index)
        values |= more
    lacking = sorted(set(names) - set(values))
    if lacking:
        raise RunError(f"the parts lack {len(lacking)} tensors of the index, such as {lacking[0]!r}", where=index)
    return values


def _members(path: Path) -> list[zipfile.ZipInfo]:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.infolist()
    except Exception as error:  # hostile bytes make a reader fail in any way at all
        raise RunError(f"the archive is damaged: {error}", where=path) from None


def _check_archives(paths: list[Path]) -> None:
    """Refuse zip bombs before anything is unpacked: archives whose contents are far larger than the files."""
    archives = [path for path in paths if zipfile.is_zipfile(path)]
    members = [member for path in archives for member in _members(path)]
    size, total = sum(path.stat().st_size for path in archives), sum(member.file_size for member in members)
    if len(members) > MOST_ENTRIES or total > max(SURE, 20 * size):
        what = f"{size:,} bytes of archives would unpack to {len(members):,} files, {total:,} bytes"
        raise RunError(what, where=archives[0], do="do not trust this file")
    if any(member.compress_type for member in members) and total > (room := free_memory()):
        what = f"the archives unpack to {total:,} bytes, and {room:,} bytes of memory are free"
        raise RunError(what, where=archives[0], do="free memory, or use a machine with more")


def _read_npz(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                if not member.filename.endswith(".npy"):
                    continue
                try:
                    member_header(archive, member)
                except ValueError as error:
                    raise RunError(str(error), where=path, do="do not trust this file") from None
                values[member.filename.removesuffix(".npy")] = _from_numpy(read_member(archive, member))
    except RunError:
        raise
    except Exception as error:  # as above
        raise RunError(f"the archive is damaged: {error}", where=path) from None
    return values


def _comment(path: Path) -> dict[str, str]:
    """What our own converted archives say in their comment; of others' comments nothing is read."""
    with zipfile.ZipFile(path) as archive:
        try:
            stored = json.loads(archive.comment or b"{}")
        except (ValueError, RecursionError):
            return {}
    about = stored if isinstance(stored, dict) else {}
    return {name: about[name] for name in ("settings", "preprocessor") if isinstance(about.get(name), str)}


def _from_numpy(array: np.ndarray) -> Any:
    if array.dtype.kind == "V" and array.dtype.itemsize == 2:  # how NumPy keeps JAX's bfloat16
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy()) if array.dtype.kind in "fiub" else str(array)


def _read_torch(path: Path, mapped: bool) -> dict[str, Any]:
    """PyTorch's files, by `torch.load(weights_only=True)`: tensors and plain containers only."""
    try:
        if mapped:
            with zipfile.ZipFile(path) as archive:
                if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
                    raise RunError("PyTorch writes no compressed archives: the file is not one", where=path)
                for member in archive.infolist():
                    if member.filename.endswith(".pkl"):
                        _require_plain(archive.open(member), path)
        else:
            with path.open("rb") as file:
                for _ in range(OLD_PICKLES):
                    _require_plain(file, path)
        allowed = torch.serialization.safe_globals([argparse.Namespace])  # settings beside the weights: plain values
        with allowed, warnings.catch_warnings(action="ignore"):
            values = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except RunError:
        raise
    except Exception as error:  # hostile bytes make an unpickler fail in any way at all
        wanted = re.search(r"(?:GLOBAL|global:?|class) ([\w.]+\.[\w.]+)", str(error))
        if wanted and "nsupported" in str(error):
            raise RunError(
                f"the file asks to call {wanted.group(1)}, which is running code: refused",
                where=path,
                do="do not trust it; if it is yours, save model.state_dict() alone, best as .safetensors",
            ) from None
        if "TorchScript" in str(error):
            raise RunError(
                "a TorchScript archive holds code: refused", where=path, do="save its state_dict()"
            ) from None
        raise RunError(
            "the file is damaged, or holds more than tensors and plain values, which may be code: refused",
            where=path,
            do="download it again; if it is yours, save model.state_dict() alone, best as .safetensors",
        ) from None
    if not isinstance(values, dict):
        raise RunError(f"the file holds a {type(values).__name__}, not a dictionary of tensors", where=path)
    return values


def _require_plain(file: IO[bytes], path: Path) -> None:
    """Refuse a pickle that holds far more than its bytes: tuples of the same tuples, each level twice the one below.

    To use one as a key, or to print it, takes as long as all it stands for. The pickle is not run: what each
    instruction would take from the stack and put there is counted.
    """
    sizes: list[int] = []
    marks: list[int] = []
    memo: dict[int, int] = {}
    for code, argument, _ in pickletools.genops(file):
        if code.name == "MARK":
            marks.append(len(sizes))
            continue
        if code.name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            memo[len(memo) if argument is None else int(argument)] = sizes[-1]
            continue
        if code.name in ("GET", "BINGET", "LONG_BINGET"):
            sizes.append(memo[int(argument or 0)])
            continue
        first = marks.pop() if pickletools.markobject in code.stack_before else len(sizes)
        first -= sum(kind not in (pickletools.markobject, pickletools.stackslice) for kind in code.stack_before)
        if first < 0:
            raise ValueError("the stack of the pickle is empty")
        taken, sizes = sizes[first:], sizes[:first]
        size = 1 + sum(taken)
        if size > MOST_VALUES:
            what = f"the file is small and stands for more than {MOST_VALUES:,} values: refused"
            raise RunError(what, where=path, do="do not trust this file")
        sizes += [size] * len(code.stack_after)


def _unwrap(values: dict[str, Any], path: Path) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """The dictionary of tensors inside whatever a training script put around it."""
    left: list[str] = []
    for _ in range(3):
        inner = next((name for name in CONTAINERS if isinstance(values.get(name), dict)), None)
        if inner is None:
            break
        left += [_in_words(name, value) for name, value in values.items() if name != inner]
        values = values[inner]
    values, others = _choose_teacher(values)
    left += others
    tensors = {str(name): value for name, value in values.items() if isinstance(value, Tensor)}
    left += [_in_words(name, value) for name, value in values.items() if str(name) not in tensors]
    if not tensors or len(tensors) > MOST_ENTRIES:
        held = ", ".join(map(repr, list(values)[:5])) or "nothing"
        raise RunError(f"the file holds {len(tensors)} tensors; at its top are {held}", where=path)
    for name, tensor in tensors.items():
        plain = tensor.layout == torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized
        if not plain or tensor.nbytes > tensor.untyped_storage().nbytes():
            raise RunError(f"{name!r} is no plain tensor: {tensor.layout}, shape {tuple(tensor.shape)}", where=path)
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors.values()}
    held, claimed = sum(storages.values()), sum(tensor.nbytes for tensor in tensors.values())
    if claimed > MOST_SHARED * held:
        what = f"the tensors share memory: {claimed:,} bytes of them lie in {held:,}"
        raise RunError(what, where=path, do="do not trust this file; if it is yours, save a copy of each tensor")
    return tensors, tuple(left)


def _choose_teacher(values: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Of a teacher and a student in one dictionary the teacher, as among CONTAINERS; and the others in words."""
    names = {match: [n for n in values if str(n).startswith(f"{match}.")] for match in ("teacher", "student")}
    chosen = next((match for match, own in names.items() if own), None)
    if chosen is None:
        return values, []
    groups: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        if name not in names[chosen]:
            groups.setdefault(str(name).partition(".")[0], {})[name] = value
    mine = {str(name).removeprefix(f"{chosen}."): values[name] for name in names[chosen]}
    return mine, [_in_words(name, group) for name, group in groups.items()]


def _in_words(name: Any, value: Any) -> str:
    """Describe an unused entry of the file; training scripts often store averaged weights there."""
    for _ in range(2):
        if isinstance(value, dict):
            value = next((value[key] for key in CONTAINERS if isinstance(value.get(key), dict)), value)
    tensors = [held for held in value.values() if isinstance(held, Tensor)] if isinstance(value, dict) else []
    if not tensors:
        return f"{name} (no weights)"
    count = sum(tensor.numel() for tensor in tensors)
    return f"{name} ({count:,} numbers in tensors of their own: to use these, save that entry alone in a file)"
