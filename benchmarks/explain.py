"""Every explanation method against every check, as the table in docs/methods.md.

Planted causes: a nano ViT is trained here on pictures whose label has one known cause (tests/explain/planted.py).
CIFAR-10: a run that was trained on it (python benchmarks/cifar10.py DATA --keep RUN), and its test images.

    python benchmarks/explain.py                                          # planted causes alone
    python benchmarks/explain.py --run RUN --data DATA --images 60 --write docs/methods.md
"""

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

import regard
from regard.data import open_source
from regard.explain import METHODS, Case
from tests.explain.planted import planted

ABOUT = {
    "attention": ("recorded attention of one layer", "`test_raw_attention_picks_layer_and_head`"),
    "rollout": ("recorded attention of all layers", "`test_rollout_matches_hand_arithmetic`"),
    "gradient_rollout": ("attention and its gradients", "`test_gradient_rollout_matches_hand_arithmetic`"),
    "chefer": (
        "attention and its gradients",
        "`test_relevance_matches_hand_arithmetic`, `test_relevance_equals_autograd_through_materialised_attention`",
    ),
    "grad_cam": ("tokens and their gradients", "`test_grad_cam_equals_its_definition`"),
    "integrated_gradients": (
        "the network, 32 times forward and back",
        "captum: `test_integrated_gradients_against_captum_and_completeness`",
    ),
    "occlusion": ("the network, once a token", "captum: `test_occlusion_against_captum`"),
}


def planted_predictor(folder: str) -> Any:
    pictures, labels, _ = planted(1200, seed=0)
    np.savez(f"{folder}/planted.npz", images=pictures, labels=labels)
    run = regard.train(
        f"{folder}/planted.npz", recipe="small_images", depth=3, epochs=12, batch=32, crop="none", mixup=0.0,
        drop_path=0.0, explain=0, compile=False, out=f"{folder}/run", quiet=True,
    )  # fmt: skip
    return regard.load(run.path)


def sync(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def seconds(predictor: Any, pictures: Iterable[Any], method: str) -> float:
    """Median time of the map alone, without its checks."""
    times = []
    for picture in pictures:
        x = predictor.preparation(predictor._read(picture)[1]).to(predictor.device)
        case = Case(predictor.model, x, lambda z: predictor.model(z).logits[:, 0])
        sync(predictor.device)
        start = time.perf_counter()
        METHODS[method](case)
        sync(predictor.device)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def mean(values: Iterable[float], form: str = "{:.2f}") -> str:
    """The mean and its standard error."""
    array = np.array(list(values), dtype=float)
    error = array.std(ddof=1) / len(array) ** 0.5
    return f"{form.format(array.mean())} ± {form.format(error)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run")
    parser.add_argument("--data")
    parser.add_argument("--images", type=int, default=60)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        small = planted_predictor(folder)
    pictures, _, masks = planted(options.images, seed=99)
    cases: list[tuple[Any, list[Any], Callable[[int], Any]]] = [
        (small, [torch.from_numpy(p)[None] for p in pictures], lambda n: masks[n])
    ]
    if options.run:
        source = open_source(options.data)
        tested = [n for n, s in enumerate(source.samples) if s.split == "test"]
        chosen = tested[:: len(tested) // options.images][: options.images]
        cases.append((regard.load(options.run), [source.read(n)[0] for n in chosen], lambda n: None))
    device = small.device
    machine = (
        torch.cuda.get_device_name() if device.type == "cuda" else f"{platform.machine()} CPU, {os.cpu_count()} cores"
    )
    lines = []
    for method, (reads, exact) in ABOUT.items():
        cells = []
        for predictor, inputs, mask in cases:
            found = [predictor.explain(p, method=method, mask=mask(n)) for n, p in enumerate(inputs)]
            if found[0].location:
                cells.append(mean(e.location.share for e in found))
                cells.append(f"{np.mean([e.location.pointing for e in found]):.0%}")
            cells.append(mean(e.scores.gain for e in found))
            cells.append(f"{np.mean([e.scores.beaten for e in found]):.0%}")
            cells.append(f"{mean(e.likeness for e in found)} ({np.mean([e.badge is not None for e in found]):.0%})")
            cells.append(f"{1e3 * seconds(predictor, inputs[:9], method):.0f}")
        lines.append(f"| `{method}` | {reads} | {' | '.join(cells)} | {exact} |")
        print(lines[-1], flush=True)
    chance = float(masks.float().mean())
    text = page(lines, machine, options.images, chance, cases)
    if options.write:
        options.write.write_text(text, encoding="utf-8")
    print(text)


def page(lines: list[str], machine: str, images: int, chance: float, cases: list[Any]) -> str:
    common = "insertion − deletion | random maps beaten | likeness to random weights (badges) | ms a map"
    header = f"| method | reads | planted: share inside | peak inside | {common}"
    rule = "|---|---|---|---|---|---|---|---|"
    if len(cases) > 1:
        header, rule = f"{header} | CIFAR-10: {common}", rule + "---|---|---|---|"
    where = ", ".join(f"{len(p.classes)} classes, {p.model.token_map().places} patches" for p, _, _ in cases)
    return f"""# Methods and checks

Made by `python benchmarks/explain.py` on {machine}, torch {torch.__version__}; {images} pictures a column, mean and
standard error. Networks: {where}.

**Planted causes**: pictures whose label has one known cause, among decoys; it covers {chance:.0%} of the picture, which
is what a map that knows nothing scores as its share and peak inside. **Insertion − deletion** (`scores.gain`): zero for
a map that knows nothing. **Random maps beaten**: half for such a map. **Likeness**: rank correlation with the map of
the same network with random weights; a badge marks maps above 0.5. **ms a map**: the map alone; the checks of one map
cost one to three hundred forward passes more. **Exact** names the test that holds the method to hand arithmetic or to
an implementation that is not ours.

{header} | exact |
{rule}---|
{chr(10).join(lines)}
"""


if __name__ == "__main__":
    main()
