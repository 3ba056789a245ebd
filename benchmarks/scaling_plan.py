"""The plan for 1,024 GPUs in docs/scaling.md, worked out: memory, traffic, time and failures. Nothing is measured here.

    python benchmarks/scaling_plan.py

Symbols: P parameters, t tokens a GPU holds at once, w width, m hidden width of the MLP, s GPUs that share one copy.
"""

from dataclasses import dataclass
from math import log2, sqrt

GPUS, NODE = 1024, 8
PEAK = 989.4e12  # bf16 operations a second of an H100 or H200, dense (NVIDIA's data sheet)
NVLINK = 450e9  # bytes a second each way; the 900 GB/s of the data sheet are both ways together
NETWORK = 50e9  # bytes a second each way and GPU: 400 Gb/s InfiniBand, one adapter a GPU
REACHED = 0.8  # of these rates, by large messages: assumed
HIDDEN = 0.8  # of computing time, under which traffic can run: assumed
IMAGES_A_SECOND = 1222  # of ViT-L/16 trained on one H200 (benchmarks/results/vit_speed.md): measured in an earlier run
STEP_LATENCY = 5e-6  # seconds a hop between nodes: assumed

FAILURES, DAYS, FAILING_GPUS = 419, 54, 16384  # unexpected interruptions of Llama 3 405B (its Table 5)
WRITING = 2e9  # bytes a second that a GPU's process writes to the shared disk: assumed
RESTART = 600  # seconds from a failure to the first new step: assumed

WEIGHT, GRADIENT, ADAM, AVERAGE = 4, 4, 8, 4  # bytes a parameter, all fp32
GATHERED, REDUCED = 2, 4  # bytes a parameter on the way: weights as bf16, gradients as fp32


@dataclass(frozen=True)
class Model:
    name: str
    width: int
    depth: int
    mlp: int
    patch: int
    size: int = 224
    classes: int = 1000

    @property
    def tokens(self) -> int:
        return (self.size // self.patch) ** 2 + 1

    @property
    def block(self) -> int:
        """Parameters of one: four projections, the MLP, two norms."""
        w, m = self.width, self.mlp
        return 4 * w * (w + 1) + 2 * w * m + m + w + 4 * w

    @property
    def parameters(self) -> int:
        w = self.width
        outside = (3 * self.patch**2 + 1) * w + w + self.tokens * w + 2 * w + (w + 1) * self.classes
        return self.depth * self.block + outside

    @property
    def operations(self) -> float:
        """Of training on an image: 2 a weight and token, 4tw a token and block in attention; backward twice that."""
        forward = self.tokens * self.depth * (2 * self.block + 4 * self.tokens * self.width)
        return 3 * forward


@dataclass(frozen=True)
class Plan:
    """`shard` GPUs share one copy, `batch` images a GPU and step in `pieces`, activations kept or made again."""

    model: Model
    shard: int
    batch: int
    pieces: int
    again: bool
    samples: float

    def state(self) -> float:
        """Bytes of weights, gradients, Adam and average on a GPU."""
        return self.model.parameters * (WEIGHT + GRADIENT + ADAM + AVERAGE) / self.shard

    def gathered(self) -> float:
        """Bytes of two whole blocks (one computed, one on its way) and of one's gradients."""
        return 0 if self.shard == 1 else self.model.block * (2 * GATHERED + REDUCED)

    def activations(self) -> float:
        """Bytes. In bf16 a block keeps the inputs of norms, QKV and MLP; Q, K and V; attention; 2m of the MLP."""
        m, tokens = self.model, self.batch // self.pieces * self.model.tokens
        block = tokens * (16 * m.width + 4 * m.mlp)
        return tokens * 2 * m.width * m.depth + block if self.again else block * m.depth

    def memory(self) -> float:
        return self.state() + self.gathered() + self.activations()

    def inside(self) -> float:
        """Bytes into a GPU over NVLink, a step: each piece gathers weights twice and scatters gradients once."""
        near = min(self.shard, NODE)
        if near == 1:  # whole copies: gradients are still summed in the node first, and handed out last
            return self.model.parameters * REDUCED * 2 * (NODE - 1) / NODE
        return self.pieces * self.model.parameters * (2 * GATHERED + REDUCED) * (near - 1) / near

    def outside(self) -> float:
        """Bytes into a GPU over the network, a step, with the eight adapters of a node sharing its load."""
        nodes, each = self.shard // NODE, self.model.parameters / NODE
        gathering = self.pieces * each * (2 * GATHERED + REDUCED) * (nodes - 1) / nodes if nodes > 1 else 0
        copies = GPUS // max(self.shard, NODE)
        summing = 2 * each / max(nodes, 1) * REDUCED * (copies - 1) / copies
        return gathering + summing

    def waiting(self) -> float:
        """Seconds of hops a step: rings of a copy that spans nodes (gather, gather, scatter), trees that sum copies."""
        rings = 3 * self.pieces * (self.shard - 1) if self.shard > NODE else 0
        hops = rings + 2 * log2(GPUS / max(self.shard, NODE))
        return self.model.depth * hops * STEP_LATENCY

    def computing(self) -> float:
        return self.batch * self.model.operations * (4 / 3 if self.again else 1) / (PEAK * alone())

    def seconds(self) -> float:
        """Of a step: computing, and of the traffic what cannot hide, at least the first block's share of it."""
        exposed = 0.0
        for traffic, cover in (
            (self.inside() / (NVLINK * REACHED), self.computing()),
            (self.outside() / (NETWORK * REACHED) + self.waiting(), self.computing() * 2 / 3),
        ):
            exposed += max(traffic - HIDDEN * cover, traffic / self.model.depth)
        return self.computing() + exposed

    def share(self) -> float:
        """Of the peak that goes into the model (MFU): what is computed again does not count."""
        return self.batch * self.model.operations / (PEAK * self.seconds())

    def saving(self) -> float:
        """Seconds to write the state: weights, Adam and average, by the GPUs of one copy."""
        return self.model.parameters * (WEIGHT + ADAM + AVERAGE) / max(self.shard, 1) / WRITING

    def interval(self) -> float:
        """Young's and Daly's, to first order."""
        return sqrt(2 * self.saving() * between_failures())

    def lost(self) -> float:
        """Share of time: saving, work done again, restarts."""
        every, mean = self.interval(), between_failures()
        return self.saving() / every + every / (2 * mean) + RESTART / mean

    def hours(self) -> float:
        return self.samples / (GPUS * self.batch) * self.seconds() / (1 - self.lost()) / 3600


def alone() -> float:
    """Share of the peak on one GPU, from the measured ViT-L/16."""
    return IMAGES_A_SECOND * LARGE.operations / PEAK


def between_failures() -> float:
    """Seconds between two, for as many GPUs as here."""
    return DAYS * 86400 * FAILING_GPUS / FAILURES / GPUS


def enough_tokens(rate: float, part: float) -> float:
    """Tokens a GPU needs for gathering a block (`part` of it over this link) to hide under computing it."""
    return GATHERED * part * PEAK * alone() / (2 * rate * REACHED)


LARGE = Model("ViT-L/16", 1024, 24, 4096, 16)
HUGE = Model("ViT-H/14", 1280, 32, 5120, 14)
GIANT = Model("ViT-22B", 6144, 48, 24576, 14)
JFT = 14 * 303e6  # images that the ViT paper's ViT-H/14 saw
LONG = 177_000 * 65_536  # and ViT-22B
PLANS = [
    Plan(HUGE, 1, 32, 1, False, JFT),
    Plan(HUGE, 8, 32, 1, False, JFT),
    Plan(HUGE, 1024, 32, 1, False, JFT),
    Plan(GIANT, 8, 64, 1, True, LONG),
    Plan(GIANT, 8, 64, 4, False, LONG),
    Plan(GIANT, 16, 64, 2, True, LONG),
    Plan(GIANT, 1024, 64, 1, True, LONG),
]


def table() -> str:
    def row(name: str, cells: list[str]) -> str:
        return f"| {name} | " + " | ".join(cells) + " |"

    def giga(value: float) -> str:
        return f"{value / 1e9:.1f}"

    names = [f"{p.model.name}, {p.shard}" for p in PLANS]
    lines = [row("model, GPUs per copy", names), "|---" * (len(PLANS) + 1) + "|"]
    lines += [
        row("parameters, millions", [f"{p.model.parameters / 1e6:,.0f}" for p in PLANS]),
        row("images per GPU × micro-batches", [f"{p.batch // p.pieces} × {p.pieces}" for p in PLANS]),
        row("batch", [f"{p.batch * GPUS:,}" for p in PLANS]),
        row("checkpointing", ["yes" if p.again else "no" for p in PLANS]),
        row("weights, gradients, Adam, average, GB", [giga(p.state()) for p in PLANS]),
        row("gathered blocks, GB", [giga(p.gathered()) for p in PLANS]),
        row("activations, GB", [giga(p.activations()) for p in PLANS]),
        row("total memory, GB", [giga(p.memory()) for p in PLANS]),
        row("over NVLink per step, GB", [giga(p.inside()) for p in PLANS]),
        row("its time, s", [f"{p.inside() / NVLINK / REACHED:.3f}" for p in PLANS]),
        row("over InfiniBand per step, GB", [giga(p.outside()) for p in PLANS]),
        row("its time, s", [f"{p.outside() / NETWORK / REACHED:.3f}" for p in PLANS]),
        row("latency between nodes, s", [f"{p.waiting():.3f}" for p in PLANS]),
        row("computation, s", [f"{p.computing():.3f}" for p in PLANS]),
        row("step, s", [f"{p.seconds():.3f}" for p in PLANS]),
        row("share of peak (MFU)", [f"{p.share():.0%}" for p in PLANS]),
        row("images per second and GPU", [f"{p.batch / p.seconds():,.0f}" for p in PLANS]),
        row("saving, s", [f"{p.saving():.1f}" for p in PLANS]),
        row("save every, minutes", [f"{p.interval() / 60:.0f}" for p in PLANS]),
        row("lost to saving and failures", [f"{p.lost():.1%}" for p in PLANS]),
        row("training, hours", [f"{p.hours():,.1f}" for p in PLANS]),
    ]
    return "\n".join(lines)


def figures() -> str:
    return "\n".join([
        f"- share of the peak on one GPU: {IMAGES_A_SECOND:,} images/s × {LARGE.operations / 1e9:.0f} billion "
        f"operations / {PEAK / 1e12:.0f} TFLOP/s = {alone():.0%}",
        f"- time between failures: {DAYS} days × {FAILING_GPUS:,} / {FAILURES} / {GPUS:,} = "
        f"{between_failures() / 3600:.1f} hours",
        f"- tokens per GPU at which gathering overlaps computing: {enough_tokens(NVLINK, 7 / 8):,.0f} over NVLink, "
        f"{enough_tokens(NETWORK, 1 / 8):,.0f} over InfiniBand (an image has {HUGE.tokens})",
    ])  # fmt: skip


if __name__ == "__main__":
    print(figures(), table(), sep="\n\n")
