"""Every explanation method against every check, as the table in docs/methods.md.

Planted causes: a nano ViT is trained here on pictures whose label has one known cause (tests/explain/planted.py).
CIFAR-10: a run that was trained on it (python benchmarks/cifar10.py DATA --keep RUN), and its test images.

    python benchmarks/explain.py                                                      # planted causes alone
    python benchmarks/explain.py --run RUN --data DATA --results benchmarks/results/explain.json
    python benchmarks/explain.py --results benchmarks/results/explain.json --write docs/methods.md
"""

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

import regard
from regard.data import open_source
from regard.explain import METHODS, Case
from regard.weights import Run
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
    "occlusion": ("the network, once per token", "captum: `test_occlusion_against_captum`"),
}


def planted_predictor(folder: str) -> Any:
    pictures, labels, _ = planted(1200, seed=0)
    np.savez(f"{folder}/planted.npz", images=pictures, labels=labels)
    run = regard.train(
        f"{folder}/planted.npz", recipe="small_images", depth=3, epochs=12, batch_size=32, crop="none", mixup=0.0,
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


def mean(values: Iterable[float]) -> str:
    """The mean and its standard error."""
    array = np.array(list(values), dtype=float)
    return f"{array.mean():.2f} ± {array.std(ddof=1) / len(array) ** 0.5:.2f}"


def measure(predictor: Any, pictures: list[Any], masks: Any, method: str) -> dict[str, str]:
    found = [
        predictor.explain(p, method=method, mask=None if masks is None else masks[n]) for n, p in enumerate(pictures)
    ]
    located = [e.location for e in found if e.location]
    where = {
        "share inside": mean(at.share for at in located),
        "peak inside": f"{np.mean([at.pointing for at in located]):.0%}",
    }
    return (where if located else {}) | {
        "insertion − deletion": mean(e.scores.gain for e in found),
        "random maps beaten": f"{np.mean([e.scores.beaten for e in found]):.0%}",
        "rank correlation": mean(e.random_correlation for e in found),
        "badges": f"{np.mean([e.badge is not None for e in found]):.0%}",
        "ms per map": f"{1e3 * seconds(predictor, pictures[:9], method):.0f}",
    }


def table(rows: dict[str, dict[str, str]]) -> str:
    columns = list(next(iter(rows.values())))
    lines = [f"| method | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    return "\n".join(lines + [f"| `{name}` | {' | '.join(row.values())} |" for name, row in rows.items()])


def page(results: dict[str, Any]) -> str:
    about = {name: {"reads": reads, "tested by": exact} for name, (reads, exact) in ABOUT.items()}
    parts = [
        "# Methods and checks",
        "Seven methods explain a prediction. Each is tested against hand arithmetic or an independent implementation:",
        table(about),
        f"The tables were measured by `python benchmarks/explain.py` on {results['machine']}: {results['images']} "
        "pictures per table, mean ± standard error.",
        "## Planted causes",
        f"Pictures whose label has one known cause, among decoys. The cause covers {results['chance']} of the picture. "
        "A random map has the same share of its sum inside, and its peak is inside equally often.",
        table(results["planted"]),
    ]
    if "cifar" in results:
        parts += [
            "## CIFAR-10",
            f"Test images, and a ViT trained as in [cifar10.md](../benchmarks/results/cifar10.md) "
            f"({results['accuracy']} on the test set).",
            table(results["cifar"]),
            *([results["note"]] if "note" in results else []),
        ]
    parts.append(
        "- **Insertion − deletion** (`scores.gain`) is zero on average for a random map. A random map beats half of "
        "the **random maps**.\n"
        "- **Rank correlation** compares with the map of the same network with random weights. A **badge** marks "
        "maps above 0.5, which show the picture and not the network.\n"
        "- **ms per map** is the time of the map alone. Its checks cost one to three hundred forward passes more.\n"
        "- Which method is best depends on the network: read the scores of the map at hand."
    )
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run")
    parser.add_argument("--data")
    parser.add_argument("--images", type=int, default=60)
    parser.add_argument("--results", type=Path, help="JSON to write, or with --write alone to read")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    if not (options.write and options.results and options.results.exists()):
        results = run(options)
        if options.results:
            options.results.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    else:
        results = json.loads(options.results.read_text(encoding="utf-8"))
    if options.write:
        options.write.write_text(page(results), encoding="utf-8")
    else:
        print(page(results))


def run(options: Any) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        small = planted_predictor(folder)
    pictures, _, masks = planted(options.images, seed=99)
    inputs = [torch.from_numpy(p)[None] for p in pictures]
    there = torch.cuda.is_available()
    machine = torch.cuda.get_device_name() if there else f"{platform.machine()} CPU, {os.cpu_count()} cores"
    results: dict[str, Any] = {
        "machine": f"{machine}, torch {torch.__version__}",
        "images": options.images,
        "chance": f"{float(masks.float().mean()):.0%}",
        "planted": {},
    }
    for method in ABOUT:
        results["planted"][method] = measure(small, inputs, masks, method)
        print(method, results["planted"][method], flush=True)
    if options.run:
        source, large = open_source(options.data), regard.load(options.run)
        tested = [n for n, s in enumerate(source.samples) if s.split == "test"]
        chosen = [source.read(n)[0] for n in tested[:: len(tested) // options.images][: options.images]]
        figures = Run.open(options.run).read_json("summary.json")["figures"]
        results |= {"accuracy": f"{figures['accuracy']['value']:.1%}", "cifar": {}}
        for method in ABOUT:
            results["cifar"][method] = measure(large, chosen, None, method)
            print(method, results["cifar"][method], flush=True)
    return results


if __name__ == "__main__":
    main()
