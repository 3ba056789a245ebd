"""A self-supervised start on small data: is it better than training from scratch in about the same time?

Every arm has a budget of `--epochs` supervised epochs, by default as many as `regard train` takes. `scratch` spends all
of them on the default network and recipe. The others spend `--share` on the training images without their labels, then
fine-tune with the same recipe at the rate `--lr`:

- `mae`: `regard.pretrain`. It masks patches only, so the network has a patch stem and sinusoidal positions.
  `mae-scratch` is that network from scratch, to tell the effect of the start from the effect of the stem.
- `dino`: self-distillation (Caron et al., 2021) of the default network. Departures: crops of 4/7 and 2/7 of the side
  of the network's input, no change of hue, no solarisation, the default recipe's optimizer, a teacher that follows
  faster. The head has BatchNorm, as the paper's for ResNets: without it, few steps end in a uniform choice.
- `simmim`: masked pixels (Xie et al., 2022) of the default network. Departure: a learned colour hides patches, since
  the residual stem sees pixels and not tokens.

A pass over the images costs less or more than a supervised epoch. The number of passes is the share of the budget over
this cost, counted in pixels: a forward pass is 1, forward and backward 3. Seconds of both phases are recorded.
Validation chooses the weights; the test images are read once per row, at the end of fine-tuning. Rows are appended to
the file `--out`; those that it holds already are not run again.

    python benchmarks/self_supervised.py DATA --name pets --arms scratch mae mae-scratch dino simmim --seeds 3 --jobs 5
    python benchmarks/self_supervised.py --tiny --out rows.jsonl       # a minute on a CPU, to see that it runs
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import get_ema_multi_avg_fn

import regard
from regard import registry, tasks
from regard.config import to_dict
from regard.console import Progress
from regard.data import Images, Preparation, statistics, to_float
from regard.geometry import grid_of, per_axis
from regard.networks.base import Network
from regard.networks.vit.network import ViT
from regard.nn import patchify
from regard.run.settle import settle
from regard.training.optim import learning_rate, make_optimizers
from regard.weights import Checkpoint, save_checkpoint

RESULTS = Path(__file__).parent / "results" / "self_supervised.jsonl"
ARMS = ("scratch", "mae", "mae-scratch", "dino", "simmim")
FIRST_PHASE = (
    "share", "passes", "lr", "pretrain_lr", "pretrain_decay", "batch_size", "global_size", "local_crops", "prototypes",
    "momentum", "temperature",
)  # fmt: skip
"""Options that do not concern the arms from scratch."""
PATCHES: dict[str, Any] = {"stem": "patch", "positions": "sinusoidal", "rope": False, "pool": "mean"}
MAE: dict[str, Any] = {
    "batch_size": 64, "lr": 1e-3, "warmup": 0.1, "decoder_width": 128, "decoder_depth": 2, "decoder_heads": 4,
}  # fmt: skip
MAE_COST = 0.5
"""Of a pass of `mae`, in supervised epochs: the encoder sees a quarter of the tokens, and the decoder is small."""


def crops(pixels: Tensor, side: int, least: float, most: float) -> Tensor:
    """Random boxes of `least` to `most` of each image's area, half of them mirrored: (B, C, side, side) in 0..1."""
    u = torch.rand(5, len(pixels), 1, device=pixels.device)
    area, ratio = least + (most - least) * u[0], torch.exp((2 * u[1] - 1) * math.log(4 / 3))
    width, height = (area * ratio).sqrt().clamp_max(1), (area / ratio).sqrt().clamp_max(1)
    places = (2 * torch.arange(side, device=pixels.device) + 1) / side - 1
    across = (2 * u[2] - 1) * (1 - width) + torch.where(u[4] < 0.5, -width, width) * places  # (B, side)
    down = (2 * u[3] - 1) * (1 - height) + height * places
    grid = torch.stack([across[:, None].expand(-1, side, -1), down[:, :, None].expand(-1, -1, side)], dim=-1)
    return F.grid_sample(to_float(pixels), grid, align_corners=False)


def vary_colours(x: Tensor) -> Tensor:
    """Brightness, contrast and saturation of 80 %, a fifth grey, half of them more or less blurred."""
    u = torch.rand(6, len(x), 1, 1, 1, device=x.device)
    brightness, contrast, saturation = 1 + (0.8 * u[1:4] - 0.4) * (u[0] < 0.8)
    x = x * brightness
    mean = x.mean((1, 2, 3), keepdim=True)
    x = mean + contrast * (x - mean)
    grey = x.mean(1, keepdim=True)
    x = (grey + saturation * (u[4] >= 0.2) * (x - grey)).clamp(0, 1)
    blurred = x
    for _ in range(2):
        blurred = F.avg_pool2d(blurred, 3, stride=1, padding=1, count_include_pad=False)
    return torch.lerp(x, blurred, (2 * u[5] - 1).clamp_min(0))


class Pretext(Network):
    """What a network learns without labels: a loss of pixels (B, C, H, W), of 0 to 255, and the weights to keep."""

    network: ViT
    cost: float
    """Of a pass over the images, in supervised epochs."""

    def loss(self, pixels: Tensor, done: float) -> Tensor:
        """`done` is the share of all steps made before this one."""
        raise NotImplementedError

    def after_step(self, done: float) -> None:
        pass

    def kept(self) -> ViT:
        return self.network

    def note(self) -> str:
        return ""

    def hidden_layers(self) -> list[nn.Module]:
        return self.network.hidden_layers()


class ProjectionHead(nn.Module):
    """Cosines of projected features with prototypes, in fp32: the temperatures would blow up rounding errors."""

    def __init__(self, width: int, prototypes: int, hidden: int = 1024, bottleneck: int = 256):
        super().__init__()
        self.mlp = nn.Sequential()
        for before, after in ((width, hidden), (hidden, hidden)):
            self.mlp.extend([nn.Linear(before, after, bias=False), nn.BatchNorm1d(after), nn.GELU()])
        self.mlp.append(nn.Linear(hidden, bottleneck))
        self.prototypes = nn.Parameter(torch.randn(prototypes, bottleneck))

    def forward(self, features: Tensor, fixed: bool = False) -> Tensor:
        with torch.autocast(features.device.type, enabled=False):
            prototypes = self.prototypes.detach() if fixed else self.prototypes
            return F.linear(F.normalize(self.mlp(features.float()), dim=-1), F.normalize(prototypes, dim=-1))


class SelfDistillation(Pretext):
    """DINO: the student predicts, from every crop of an image, what its moving average makes of two large crops."""

    def __init__(self, student: ViT, teacher: ViT, preparation: Preparation, options: argparse.Namespace):
        super().__init__()
        self.network, self.teacher, self.preparation = student, teacher, preparation
        self.local = options.local_crops
        self.momentum, self.temperature = options.momentum, options.temperature
        self.head = ProjectionHead(student.config.width, options.prototypes)
        self.teacher_head = ProjectionHead(student.config.width, options.prototypes)
        self.teacher.load_state_dict(student.state_dict())
        self.teacher_head.load_state_dict(self.head.state_dict())
        self.teacher.requires_grad_(False)
        self.teacher_head.requires_grad_(False)
        self.register_buffer("centre", torch.zeros(options.prototypes))
        whole, patch = min(student.config.size), student.config.patch[0]
        half = whole if whole <= 64 else patch * round(whole * 4 / 7 / patch)
        self.sides = options.global_size or half, patch * max(1, round((options.global_size or half) / 2 / patch))
        large, small = (side**2 / math.prod(student.config.size) for side in self.sides)
        self.cost = (2 * large * (3 + 1) + self.local * small * 3) / 3
        self.entropies = torch.zeros(2)

    @torch.no_grad()
    def views(self, pixels: Tensor, side: int, count: int, least: float, most: float) -> Tensor:
        """`count` random views of each image, one after the other: (count · B, C, side, side)."""
        x = torch.cat([crops(pixels, side, least, most) for _ in range(count)])
        return self.preparation.normalised(vary_colours(x))

    def loss(self, pixels: Tensor, done: float) -> Tensor:
        large = self.views(pixels, self.sides[0], 2, 0.3, 1.0)
        features = [self.network(large).features]
        if self.local:
            features.append(self.network(self.views(pixels, self.sides[1], self.local, 0.05, 0.3)).features)
        # The prototypes stay as they are in the first steps, as in the authors' code.
        logs = (self.head(torch.cat(features), fixed=done < 0.02) / 0.1).log_softmax(-1).chunk(2 + self.local)
        targets = self.targets(large).chunk(2)
        pairs = [-(t * s).sum(-1).mean() for i, t in enumerate(targets) for j, s in enumerate(logs) if i != j]
        return torch.stack(pairs).mean()

    @torch.no_grad()
    def targets(self, large: Tensor) -> Tensor:
        """The teacher's centred and sharpened choice of prototypes; the centre follows."""
        cosines = self.teacher_head(self.teacher(large).features)
        targets = ((cosines - self.centre) / self.temperature).softmax(-1)
        self.centre.lerp_(cosines.mean(0), 0.1)
        mean = targets.mean(0, keepdim=True)
        self.entropies = torch.stack([-(p * p.clamp_min(1e-9).log()).sum(-1).mean() for p in (targets, mean)])
        return targets

    @torch.no_grad()
    def after_step(self, done: float) -> None:
        decay = 1 - (1 - self.momentum) * 0.5 * (1 + math.cos(math.pi * done))
        own: list[Tensor] = [*self.teacher.parameters(), *self.teacher_head.parameters()]
        get_ema_multi_avg_fn(decay)(own, [*self.network.parameters(), *self.head.parameters()], 0)

    def kept(self) -> ViT:
        return self.teacher

    def note(self) -> str:
        each, mean = self.entropies.tolist()
        return f", the teacher's entropy {each:.2f}, of its mean over a batch {mean:.2f}"


class MaskedPixels(Pretext):
    """SimMIM: the pixels of hidden patches, by a linear layer from the tokens of an image with these patches blank."""

    def __init__(self, network: ViT, preparation: Preparation, mask: float = 0.6):
        super().__init__()
        self.network, self.preparation, self.mask, self.cost = network, preparation, mask, 1.0
        self.patch = network.config.patch
        self.colour = nn.Parameter(torch.zeros(network.config.channels))
        self.pixels = nn.Linear(network.config.width, network.config.channels * math.prod(self.patch))

    def loss(self, pixels: Tensor, done: float) -> Tensor:
        x = self.preparation.normalised(crops(pixels, min(self.network.config.size), 0.4, 1.0))
        hidden = self.hidden(len(x), grid_of(tuple(x.shape[2:]), self.patch), x.device)
        blank = hidden.repeat_interleave(self.patch[0], 1).repeat_interleave(self.patch[1], 2)
        blank = blank[:, None, : x.shape[2], : x.shape[3]]
        predicted = self.pixels(self.network(torch.where(blank, self.colour[:, None, None], x)).tokens)
        errors = (predicted.float() - patchify(x, self.patch)).abs().mean(-1)
        return (errors * hidden.flatten(1)).sum() / hidden.sum()

    def hidden(self, count: int, grid: tuple[int, ...], device: torch.device) -> Tensor:
        """Which patches are blank, in squares of two by two: (B, *grid)."""
        rows, columns = (-(-side // 2) for side in grid)
        rank = torch.rand(count, rows * columns, device=device).argsort(1).argsort(1)
        squares = (rank < round(self.mask * rows * columns)).unflatten(1, (rows, columns))
        return squares.repeat_interleave(2, 1).repeat_interleave(2, 2)[:, : grid[0], : grid[1]]


def learn(pretext: Pretext, pixels: Tensor, passes: int, options: argparse.Namespace) -> None:
    """So many passes over images that lie on the device, saying how it goes ten times."""
    batch, device = min(options.batch_size, len(pixels)), pixels.device
    optimizers = make_optimizers(pretext, "muon", options.pretrain_lr, options.pretrain_decay)
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    step, steps, begun = 0, passes * (len(pixels) // batch), time.time()
    pretext.train()
    for number in range(1, passes + 1):
        total = torch.zeros((), device=device)
        batches = torch.randperm(len(pixels), device=device).split(batch)[: len(pixels) // batch]
        for chosen in batches:
            for group in groups:
                group["lr"] = learning_rate(step, steps, options.pretrain_lr, 0.1)
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                loss = pretext.loss(pixels[chosen], step / steps)
            loss.backward()
            nn.utils.clip_grad_norm_(pretext.parameters(), 3.0)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            step += 1
            pretext.after_step(step / steps)
            total += loss.detach()
        if number % max(1, passes // 10) == 0 or number == passes:
            at = f"[{options.arm} {options.seed}] pass {number} of {passes}, {time.time() - begun:.0f} s"
            print(f"{at}: loss {float(total) / len(batches):.4f}{pretext.note()}", flush=True)


@torch.no_grad()
def neighbours(network: ViT, known: Tensor, labels: Tensor, asked: Tensor, truth: Tensor, how: Preparation) -> float:
    """Share of the images that their 20 nearest neighbours, weighed by similarity, give the right class."""
    network.eval()
    features = [
        F.normalize(torch.cat([network(how.normalised(to_float(x))).features.float() for x in part.split(128)]), dim=-1)
        for part in (known, asked)
    ]
    near, index = (features[1] @ features[0].T).topk(min(20, len(known)))
    votes = F.one_hot(labels[index]) * (near / 0.07).exp()[..., None]
    return float((votes.sum(1).argmax(1) == truth).float().mean())


def read(images: Images, index: list[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Pixels and labels, on the device."""
    with ThreadPoolExecutor(8) as pool:
        read = list(pool.map(lambda number: images[0, number], index))
    return torch.stack([x for x, *_ in read]).to(device), torch.tensor([label for _, label, _ in read], device=device)


def link(data: Path, dataset: Any, splits: list[str], out: Path) -> Path:
    """The same images in a folder per split and class: both phases then split them alike, with labels or without."""
    source = dataset.source
    for number, (sample, split) in enumerate(zip(source.samples, splits, strict=True)):
        if split in ("train", "val", "test"):
            place = out / split / source.classes[sample.label] / f"{number}-{Path(sample.key).name}"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.symlink_to((data / sample.key).resolve())
    return out


def make_tiny(out: Path) -> Path:
    """Noise with stripes across or down: 24 training images per class, 8 to validate and 8 to test on."""
    from PIL import Image

    draw = np.random.default_rng(0)
    for split, count in (("train", 24), ("val", 8), ("test", 8)):
        for name, axis in (("across", 0), ("down", 1)):
            (out / split / name).mkdir(parents=True)
            for number in range(count):
                stripes = np.expand_dims(120 * (np.arange(32) % 8 < 4), (1 - axis, 2))
                picture = draw.integers(0, 136, (32, 32, 3)) + stripes
                Image.fromarray(picture.astype(np.uint8)).save(out / split / name / f"{number}.png")
    return out


@dataclass
class Setup:
    """The data of one arm, split and linked, the settings that the default recipe has for it, and a folder."""

    folder: Path
    dataset: Any
    splits: list[str]
    config: Any
    data: Path

    @classmethod
    def of(cls, options: argparse.Namespace, folder: Path) -> Self:
        source = make_tiny(folder / "tiny") if options.tiny else options.data
        entry = tasks.find("classification")
        task, asked = entry.load(), {"recipe": "default", "seed": options.seed, "images": options.images}
        dataset = task.open(source, entry.config.of(asked), Progress(quiet=True))
        config, _, _ = settle(entry, task, dataset, asked)
        splits, _ = task.split(dataset, config)
        return cls(folder, dataset, splits, config, link(source, dataset, splits, folder / "data"))

    def part(self, name: str) -> list[int]:
        return [number for number, split in enumerate(self.splits) if split == name]


def mask_patches(options: argparse.Namespace, setup: Setup, budget: int) -> dict[str, Any]:
    """The first phase of `mae`: the weights, and what is recorded."""
    model, passes = setup.config.model, options.passes or round(budget / MAE_COST)
    settings = model.fields() | PATCHES | MAE | {"drop_path": 0.0, "model": model.model, "epochs": passes}
    out = setup.folder / "first"
    made = regard.pretrain(setup.data / "train", out=out, seed=options.seed, explain=0, quiet=True, **settings)
    return {"weights": str(out), "passes": passes, "first_seconds": made.read_json("summary.json")["seconds"]}


def learn_default(options: argparse.Namespace, setup: Setup, budget: int) -> dict[str, Any]:
    """The first phase of `dino` and `simmim`: the weights, and what is recorded."""
    model, fields = setup.config.model.model, setup.config.model.fields()
    classes, device = len(setup.dataset.source.classes), torch.device(setup.config.machine.device)
    torch.manual_seed(options.seed)
    network = registry.build(model, classes=classes, **fields)
    images = Images(setup.dataset, network.config.size, network.config.channels)
    how = Preparation(network.config.size, network.config.channels, *statistics(images, setup.part("train")))
    known, asked = (read(images, setup.part(name), device) for name in ("train", "val"))
    if options.arm == "dino":
        teacher = registry.build(model, classes=classes, **fields | {"drop_path": 0.0})
        pretext: Pretext = SelfDistillation(network, teacher, how, options)
    else:
        pretext = MaskedPixels(network, how)
    pretext.to(device)
    before = neighbours(network, *known, *asked, how)
    passes, begun = options.passes or max(1, round(budget / pretext.cost)), time.time()
    learn(pretext, known[0], passes, options)
    seconds, kept, path = round(time.time() - begun, 1), pretext.kept(), setup.folder / "first.safetensors"
    after = neighbours(kept, *known, *asked, how)
    found = f"{before:.1%} with random weights, {after:.1%} learnt"
    print(f"[{options.arm} {options.seed}] nearest neighbours, validation: {found}", flush=True)
    names = tuple(map(str, range(classes)))
    save_checkpoint(path, Checkpoint(model, to_dict(kept.config), names, how, {}, kept.state_dict()))
    return {"weights": str(path), "passes": passes, "first_seconds": seconds, "neighbours": [before, after]}


def key(arm: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """What tells a row from others."""
    names = ("name", "epochs", "images") + (() if "scratch" in arm else FIRST_PHASE)
    return {"arm": arm, "seed": seed} | {name: getattr(options, name) for name in names}


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Both phases of one arm, and its row."""
    with tempfile.TemporaryDirectory(prefix="regard-") as folder:
        begun = time.time()
        setup = Setup.of(options, Path(folder))
        epochs = options.epochs or setup.config.optim.epochs
        settings: dict[str, Any] = {"epochs": epochs}
        facts: dict[str, Any] = {}
        if options.arm == "mae-scratch":
            settings |= {"model": setup.config.model.model} | setup.config.model.fields() | PATCHES
        elif options.arm != "scratch":
            budget = round(options.share * epochs)
            facts = (mask_patches if options.arm == "mae" else learn_default)(options, setup, budget)
            settings = {"epochs": epochs - budget, "lr": options.lr, "weights": facts.pop("weights")}
        settings |= {"recipe": "default", "seed": options.seed, "explain": 0, "pixel_baseline": False}
        made = regard.train(setup.data, out=setup.folder / "run", quiet=True, **settings)
        summary, config = made.read_json("summary.json"), made.read_json("config.json")
    used = {key: held["value"] for group in config["settings"].values() for key, held in group.items()}
    return {
        "key": key(options.arm, options.seed, options), "split": summary["split"], **summary["figures"]["accuracy"],
        "validation": summary["val_accuracy"], "trained_on": setup.splits.count("train"), "model": used["model"],
        "stem": used.get("stem"), "size": per_axis(used["size"], 2, "size"), "parameters": summary["parameters"],
        "lr": used["lr"], "epochs": used["epochs"], **facts, "seconds": summary["seconds"],
        "wall": round(time.time() - begun, 1), "jobs": options.jobs,
        "machine": torch.cuda.get_device_name() if used["device"] == "cuda" else "CPU",
    }  # fmt: skip


def run_all(options: argparse.Namespace) -> None:
    """Every arm with every seed that the file does not hold yet, each in a process of its own."""
    rows = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    held, begun = [row["key"] for row in rows], time.time()

    def start(arm: str, seed: int) -> None:
        command = [sys.executable, __file__, *sys.argv[1:], "--one", arm, str(seed)]
        left = options.limit - (time.time() - begun)
        try:
            code = subprocess.run(command, timeout=left if math.isfinite(left) else None, check=False).returncode
            print(f"{time.time() - begun:.0f} s: {arm} {seed}: {'done' if code == 0 else 'FAILED'}", flush=True)
        except subprocess.TimeoutExpired:
            print(f"{time.time() - begun:.0f} s: {arm} {seed}: stopped, no time left", flush=True)

    with ThreadPoolExecutor(options.jobs) as pool:
        for seed in range(options.seeds):
            for arm in options.arms:
                if key(arm, seed, options) not in held:
                    pool.submit(start, arm, seed)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?", type=Path)
    parser.add_argument("--name", default="data")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="arms side by side")
    parser.add_argument("--images", type=int, help="training images to use")
    parser.add_argument("--epochs", type=int, help="the whole budget; default: the length of `regard train`")
    parser.add_argument("--share", type=float, default=0.5, help="of the budget for the first phase")
    parser.add_argument("--passes", type=int, help="of the first phase, in place of its share over its cost")
    parser.add_argument("--lr", type=float, default=1e-3, help="of fine-tuning; from scratch it is the recipe's")
    parser.add_argument("--pretrain-lr", type=float, default=1e-3, help="of dino and simmim")
    parser.add_argument("--pretrain-decay", type=float, default=0.1, help="weight decay of dino and simmim")
    parser.add_argument("--batch-size", type=int, default=64, help="images per step of dino and simmim")
    parser.add_argument("--global-size", type=int, help="side of dino's large crops; default: 4/7 of the input's")
    parser.add_argument("--local-crops", type=int, default=4)
    parser.add_argument("--prototypes", type=int, default=4096)
    parser.add_argument("--momentum", type=float, default=0.99, help="of the teacher at the start; it rises to 1")
    parser.add_argument("--temperature", type=float, default=0.04, help="of the teacher; the student's is 0.1")
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds after which runs are stopped")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--tiny", action="store_true", help="a few dozen made-up images and four epochs")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.tiny:
        given.name, given.epochs = "tiny", given.epochs or 4
    elif given.data is None:
        parser.error("give DATA, or --tiny")
    if given.one:
        given.arm, given.seed = given.one[0], int(given.one[1])
        row = json.dumps(run(given))
        with given.out.open("a") as file:
            file.write(row + "\n")
        print(row, flush=True)
    else:
        run_all(given)
