"""Every explanation method against every check, as the table in docs/methods.md.

Planted causes: a nano ViT and a nano Swin are trained here on pictures whose label has one known cause
(tests/explain/planted.py).
Digits: another one on the embedded hand-written digits, by their recipe, with fewer epochs.
CIFAR-10: a run that was trained on it (python benchmarks/cifar10.py DATA --keep RUN), and its test images.

    python benchmarks/explain.py                                                      # planted causes and digits
    python benchmarks/explain.py --run RUN --data DATA --results benchmarks/results/explain.json
    python benchmarks/explain.py --results benchmarks/results/explain.json --write docs/methods.md
"""

import argparse
import json
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
from regard.explain import DEFAULT, METHODS, Case
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
        "the network, 32 to 256 times forward and back",
        "captum: `test_integrated_gradients_against_captum_and_completeness`",
    ),
    "occlusion": ("the network, once per token of the last stage", "captum: `test_occlusion_against_captum`"),
}


NETWORKS: dict[str, dict[str, Any]] = {"vit_nano": {"depth": 3}, "swin_nano": {}}
"""Networks for the planted causes, and their fields."""


def planted_predictor(folder: str, model: str) -> Any:
    pictures, labels, _ = planted(1200, seed=0)
    np.savez(f"{folder}/planted.npz", images=pictures, labels=labels)
    run = regard.train(
        f"{folder}/planted.npz", model=model, recipe="plain", epochs=12, batch_size=32, crop="none", mixup=0.0,
        drop_path=0.0, explain=0, compile=False, out=f"{folder}/{model}", quiet=True, **NETWORKS[model],
    )  # fmt: skip
    return regard.load(run.path)


def digits_predictor(folder: str) -> tuple[Any, str]:
    """A network, and its accuracy."""
    run = regard.train("digits", epochs=40, explain=0, compile=False, out=f"{folder}/digits", quiet=True)
    return regard.load(run.path), f"{run.read_json('summary.json')['figures']['accuracy']['value']:.1%}"


def test_images(data: str, run: str | Path, count: int) -> list[Any]:
    """Images of a run's test split, at even distances."""
    source, rows = open_source(data), Run.open(run).read_rows("splits.csv")
    tested = {row["name"] for row in rows if row["split"] == "test"}
    index = [n for n, sample in enumerate(source.samples) if sample.key in tested]
    return [source.read(n)[0] for n in index[:: len(index) // count][:count]]


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
    made = [
        predictor.explain(p, method=method, mask=None if masks is None else masks[n]) for n, p in enumerate(pictures)
    ]
    located = [e.location for e in made if e.location]
    where = {}
    if located:
        inside = f"{np.mean([at.pointing for at in located]):.0%}"
        where = {"share inside": mean(at.share for at in located), "peak inside": inside}
    # A map that is the same everywhere has no scores: it gains nothing and beats as many random maps as it loses to.
    errors = [e.completeness_error for e in made if e.completeness_error is not None]
    return where | {
        "insertion − deletion": mean(e.scores.gain if e.scores else 0.0 for e in made),
        "random maps beaten": f"{np.mean([e.scores.beaten if e.scores else 0.5 for e in made]):.0%}",
        "trusted": f"{np.mean([e.trusted for e in made]):.0%}",
        "likeness": mean(e.random_correlation or 0.0 for e in made),
        "badges": f"{np.mean([e.badge is not None for e in made]):.0%}",
        "completeness error": f"{max(errors):.1%}" if errors else "–",
        "ms per map": f"{1e3 * seconds(predictor, pictures[:9], method):.0f}",
    }


def table(rows: dict[str, dict[str, str]]) -> str:
    columns = list(next(iter(rows.values())))
    lines = [f"| method | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    return "\n".join(lines + [f"| `{name.split()[0]}` | {' | '.join(row.values())} |" for name, row in rows.items()])


def side_by_side(results: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Rows of the planted causes: each method on each network."""
    return {
        f"{method} {network}": {"network": f"`{network}`"} | results[f"planted {network}"][method]
        for method in ABOUT
        for network in NETWORKS
    }


WITHOUT_ATTENTION = """\
The last three suit networks without attention too. A ResNet's Grad-CAM is the original's, on the cells of its
last feature map (captum: `test_grad_cam_of_a_resnet_against_captum`); a fully connected network has no such
cells, and integrated gradients and occlusion alone are offered for it. The other four say so and name those
that make sense."""
FLOW = """\
**How attention is followed.** A network describes its layers in order (`token_flow`): which tokens a layer of attention
reads (all, a window, another sentence), and which tokens merge into one. `rollout`, `gradient_rollout` and `chefer`
start with what the head reads (the class token, or the mean over the last tokens) and walk that list backward
([`explain/flow.py`](../src/regard/explain/flow.py)). In a layer of attention, a part of each token's share moves by the
method's weights, averaged over heads, and a part stays; a merged token's share is divided evenly among the tokens it
was made of. Attention to padding has no place: relevance drops it, rollouts share it out among the window's tokens
([LOG.md](LOG.md)).
ViT, Swin (in 2D and 3D) and the translators use the same walk; it is held to full token × token matrices multiplied out
(`test_followed_shares_equal_full_matrices_multiplied`).

Where the tokens of a network merge, a method's map has the tokens of one stage. The three that follow attention, and
integrated gradients, have the first stage's, the finest. Grad-CAM and occlusion have the last stage's: those are the
tokens that the head reads, and each covered token costs a forward pass. `attention` has the tokens of its layer. In a
layer with windows it is the mean over the layer's tokens, each of which attends within its window. Every map is scored
on its own tokens."""
MEANING = """\
**Insertion − deletion** (`scores.gain`) is zero for a map that knows nothing, and such a map beats half of the
**random maps**. A map is **trusted** (`trusted`) if it gains 0.01 and two deviations of random maps, has no
badge, and is complete to 5 %. What is tested is the map that is shown: evidence against the target is left out
of both. **Likeness** is the rank correlation with the map of the same network with random weights; a **badge**
marks maps above 0.5, which show the picture and not the network. **Completeness error** is how far integrated
gradients are from adding up to the score, at worst: their steps are doubled, from 32 to at most 256, until it
is below 1 %. **ms per map** is the map alone; its checks cost two to five hundred forward passes more."""


def page(results: dict[str, Any]) -> str:
    about = {name: {"reads": reads, "held to": exact} for name, (reads, exact) in ABOUT.items()}
    results = results | {"planted": side_by_side(results)}
    right = ", ".join(f"`{network}` {share}" for network, share in results["planted_accuracy"].items())
    sets = {
        "planted": (
            "Planted causes",
            f"Pictures whose label has one known cause, among decoys. It covers {results['chance']} of the picture: a "
            "map that knows nothing has that share of itself, and as often its peak, inside. "
            f"Accuracy on other such pictures: {right}.",
        ),
        "digits": ("Digits", f"Test images of the embedded digits ({results['digits_accuracy']} accuracy)."),
        "cifar": (
            "CIFAR-10",
            "Test images, and a ViT trained as in [cifar10.md](../benchmarks/results/cifar10.md) "
            f"({results.get('accuracy')} on the test set).",
        ),
    }
    parts = [
        "# Methods and checks",
        "Seven ways to explain a prediction, each held to hand arithmetic or to an implementation that is not ours:",
        table(about),
        WITHOUT_ATTENTION,
        FLOW,
        f"What follows was measured by `python benchmarks/explain.py` on {results['machine']}: {results['images']} "
        f"pictures per table, mean and standard error{results.get('times', '')}.",
    ]
    for name, (title, text) in sets.items():
        if name in results:
            parts += [f"## {title}", text, table(results[name])]
    parts += [MEANING, "## Which one", choice(results)]
    return "\n\n".join(parts) + "\n"


def choice(results: dict[str, Any]) -> str:
    """What the tables say of the default, whatever that is."""
    lines, first = [], True
    planted_sets = [(f"planted {network}", f"planted causes, `{network}`") for network in NETWORKS]
    for name, title in (*planted_sets, ("digits", "digits"), ("cifar", "CIFAR-10")):
        if name not in results:
            continue
        gains = {method: row["insertion − deletion"] for method, row in results[name].items()}
        ranked = sorted(gains, key=lambda method: -float(gains[method].split()[0]))
        first = first and ranked[0] == DEFAULT
        next_best = ranked[1] if ranked[0] == DEFAULT else ranked[0]
        place = f"place {ranked.index(DEFAULT) + 1} of {len(ranked)}"
        lines.append(f"- {title}: {gains[DEFAULT]}, {place}; `{next_best}` has {gains[next_best]}.")
    claim = "gains most on every set of this page" if first else "does not gain most on every set of this page"
    return "\n".join([
        f"The default is `{DEFAULT}`: it suits every network, and its completeness is a check of its own. It {claim}:",
        "", *lines, "",
        "Which method is best depends on the network: read the scores of the map at hand.",
    ])  # fmt: skip


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
        small = {network: planted_predictor(folder, network) for network in NETWORKS}
        figures = {network: Run.open(f"{folder}/{network}").read_json("summary.json")["figures"] for network in small}
        digits, accuracy = digits_predictor(folder)
        numerals = test_images("digits", f"{folder}/digits", options.images)
    pictures, _, masks = planted(options.images, seed=99)
    there = torch.cuda.is_available()
    threads = torch.get_num_threads()
    cpu = f"{platform.machine()} CPU, {threads} thread{'s' * (threads != 1)}"
    machine = torch.cuda.get_device_name() if there else cpu
    results: dict[str, Any] = {
        "machine": f"{machine}, torch {torch.__version__}",
        "images": options.images,
        "chance": f"{float(masks.float().mean()):.0%}",
        "planted_accuracy": {network: f"{figure['accuracy']['value']:.1%}" for network, figure in figures.items()},
        "digits_accuracy": accuracy,
    }
    tensors = [torch.from_numpy(p)[None] for p in pictures]
    sets: dict[str, Any] = {f"planted {network}": (small[network], tensors, masks) for network in NETWORKS}
    sets["digits"] = digits, numerals, None
    if options.run:
        sets["cifar"] = regard.load(options.run), test_images(options.data, options.run, options.images), None
        figures = Run.open(options.run).read_json("summary.json")["figures"]
        results["accuracy"] = f"{figures['accuracy']['value']:.1%}"
    for name, (predictor, given, known) in sets.items():
        results[name] = {}
        for method in ABOUT:
            results[name][method] = measure(predictor, given, known, method)
            print(name, method, results[name][method], flush=True)
    return results


if __name__ == "__main__":
    main()
