"""What holds for the package as a whole: layers, tasks, laziness, one attention, docstrings that run."""

import ast
import doctest
import importlib
import json
import pkgutil
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import regard
from regard import registry
from regard.tasks import TASKS

ROOT = Path(regard.__file__).parent


def test_the_package_that_is_tested_lies_beside_these_tests():
    """Otherwise documents of one copy would be held to the flags of another."""
    assert Path(__file__).resolve().parents[1] / "src" / "regard" == ROOT


def test_layers_import_downward_only():
    from importlinter.cli import lint_imports

    assert lint_imports(config_filename=str(ROOT.parents[1] / "pyproject.toml"), no_cache=True) == 0


def test_every_module_stands_in_a_layer():
    text = (ROOT.parents[1] / "pyproject.toml").read_text()
    for path in ROOT.iterdir():
        if path.name not in ("__init__.py", "__main__.py", "__pycache__"):
            assert f"regard.{path.stem}" in text, f"{path.name} is in no layer"


NAMED_FREELY = ("tasks/__init__.py", "networks/detr/config.py")
"""The table of tasks; and DETR's, a field of which is called classification. The demos' table and studies about one
task belong here once they name one."""


NAMES = "|".join(entry.name for entry in TASKS)
SPOKEN = re.compile(rf"\btasks[./]({NAMES})\b|\bfor ({NAMES})\b|\b({NAMES}):", re.IGNORECASE)
"""A task's folder; and help or an error that says something for one task."""


def named_tasks(text: str, place: str = "module.py") -> set[str]:
    """The tasks that a module asks for: by name, by folder, by command, or in what it tells users of one of them.

    A name among other words is no task: most of them are words of English.
    """
    tasks, found, tree = {entry.name for entry in TASKS}, set[str](), ast.parse(text)
    own = ["regard", *Path(place).parts[:-1]]
    statements = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= tasks & {node.value}
            spoken = SPOKEN.findall(node.value) if id(node) not in statements else []  # docstrings describe
            found |= {name.lower() for names in spoken for name in names if name}
        if isinstance(node, ast.Compare | ast.match_case):
            found |= commanded(node)
        imported: list[list[str]] = []
        if isinstance(node, ast.Import):
            imported = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = own[: len(own) - node.level + 1] if node.level else []
            imported = [[*above, *(node.module or "").split("."), alias.name] for alias in node.names]
        for words in imported:
            words = [word for word in words if word]
            if words[:2] == ["regard", "tasks"]:
                found |= tasks.intersection(words[2:3])
    return found


def commanded(node: ast.Compare | ast.match_case) -> set[str]:
    """The tasks of a command that something is compared with: what is called a command, or what only one task has."""
    inside = list(ast.walk(node if isinstance(node, ast.Compare) else node.pattern))
    words = {part.value for part in inside if isinstance(part, ast.Constant)}
    called = {getattr(part, "attr", getattr(part, "id", "")) for part in inside}
    by_command = {command: [e.name for e in TASKS if e.command == command] for command in {e.command for e in TASKS}}
    return {
        name
        for command, names in by_command.items()
        if command in words and ("command" in called or len(names) == 1)
        for name in names
    }


def test_no_module_outside_a_tasks_folder_names_it():
    for path in ROOT.rglob("*.py"):
        place = path.relative_to(ROOT)
        own = {place.parts[1]} if place.parts[0] == "tasks" else set()
        if place.as_posix() not in NAMED_FREELY:
            named = named_tasks(path.read_text(encoding="utf-8"), place.as_posix())
            assert named <= own, f"{place} names {', '.join(named - own)}"


@pytest.mark.parametrize(
    "text",
    [
        "if task.name == 'translation': pass",
        "if task.name in ('translation', 'other'): pass",
        "import regard.tasks.translation.settings",
        "def f():\n    from regard.tasks.translation.task import Task",
        "from regard.tasks import translation",
        "from .tasks import translation",
        "from .tasks.translation import task",
        "import_module('regard.tasks.translation.task')",
        "import_module(f'regard.tasks.translation.{name}')",
        "open('src/regard/tasks/translation/task.py')",
        "help = 'Run folder; for translation also another folder.'",
        "help = 'Files. For translation: sentences.'",
        "error = 'name the column (translation: --source)'",
    ],
)
def test_a_named_task_is_seen(text):
    assert named_tasks(text) == {"translation"}
    assert not named_tasks(text.replace("translation", "images"))


@pytest.mark.parametrize(
    "text", ["if command == 'pretrain': pass", "if 'pretrain' in words: pass", "match c:\n case 'pretrain': pass"]
)
def test_a_tasks_own_command_is_seen(text):
    assert named_tasks(text) == {"pretraining"}


def test_a_task_is_seen_where_others_are_asked_about_too():
    assert len(named_tasks("if entry.command != 'train': pass")) == len(TASKS) - 1
    assert named_tasks("from ..translation import task", "tasks/survival/task.py") == {"translation"}
    assert named_tasks("from . import translation", "tasks/images.py") == {"translation"}


@pytest.mark.parametrize(
    "text",
    [
        "if part == 'train': pass",
        "what = 'give one reference for every translation'",
        "fields = {'pretrain': run}",
        '"""The report of translation: BLEU."""',
        "from .metrics import translation",
    ],
)
def test_words_of_english_are_no_tasks(text):
    assert not named_tasks(text)


LIGHT = """
import sys
from importlib.util import find_spec
{code}
heavy = {{"torch", "numpy", "matplotlib"}} & set(sys.modules)
assert not heavy, heavy
"""


@pytest.mark.parametrize(
    "code",
    [
        "import regard; regard.__version__; dir(regard)",
        "from regard import registry; [registry.configure(name) for name in registry.MODELS]",
        "from regard.tasks import TASKS; [(entry.config.of(), entry.recipes) for entry in TASKS]",
    ],
)
def test_light_things_do_not_import_torch(code):
    done = subprocess.run([sys.executable, "-c", LIGHT.format(code=code)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


ANSWERS = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from regard.cli import main

answers = []
for words in json.loads(sys.argv[1]):
    sys.argv, out = ["regard", *words], io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(out):
            main()
        code = 0
    except SystemExit as exit_:
        code = exit_.code or 0
    heavy = sorted({"torch", "numpy", "matplotlib"} & set(sys.modules))
    assert not heavy, (words, heavy)
    answers.append([code, out.getvalue()])
print(json.dumps(answers))
"""


def answers(commands: list[list[str]], place: Path) -> list[tuple[int, str]]:
    """Exit code and words of each command, in one process that must not import torch."""
    words = [sys.executable, "-c", ANSWERS, json.dumps(commands)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=place)
    assert done.returncode == 0, done.stderr
    return [(code, text) for code, text in json.loads(done.stdout)]


def test_help_does_not_import_torch(tmp_path):
    commands = [["--help"], ["models"], ["train", "--help"], ["train", "digits", "--help-all"]]
    commands += [["train", "dates", "--help-all"], ["pretrain", "--help"], ["check", "--help"], ["explain", "--help"]]
    for code, text in answers(commands, tmp_path):
        assert code == 0
        assert len(text.splitlines()) > 10


REFUSED = {
    "trian digits": "did you mean train",
    "train digits --epoch 3": "there is no flag --epoch here",
    "train digits --lr fast": "lr cannot be 'fast'",
    "train digits --lr -1": "lr=-1.0 is too small",
    "train digits --epochs 1 --steps 1": "both steps and epochs",
    "train nowhere": "there is no such data",
    "train digits --model vit_nanno": "did you mean vit_nano",
    "train digits --recipe digit": "did you mean digits",
    "train digits --from nowhere.npz": "there are no such weights",
    "train digits --teacher nowhere.npz": "give --teacher a file of weights, or a run",
    "train digits --beam-size 2": "translation has it",
    "train digits --model rnn_nano": "digits holds images, and translation (rnn_nano translates) takes texts",
    "train digits --learning-rate 1": "it is called --lr",
    "train digits --arch vit_nano": "it is called --model",
    "train digits --imgsz 8": "it is called --size",
    "train digits --ray 2 --seeds 2 --out zz": "does not go with --seeds",
    "train digits --ray 2 --jobs 3 --retrain 4 --out zz": "does not go with --jobs or --retrain",
    "train digits --xyzzy 8": "see regard train --help",
    "train digits --flip False": "a switch takes no value: give --NAME or --no-NAME",
    "train digits --size 1": "size=1 leaves no image to see",
    "train dates --patch 2": "translation has no setting 'patch'",
    "train dates --model vit_nano --vocabulary 9": "has no setting 'vocabulary'",
    "train digits --model resnet_nano --patch 2": "resnet_nano has no patch",
    "pretrain digits --mixup 0.2": "there is no flag --mixup here",
    "pretrain digits --model transformer_nano": "transformer_nano is not for pretraining",
    "pretrain digits --model resnet_nano": "resnet_nano is no ViT",
    "pretrain digits --model vit_nano --head mlp": "--head has no effect",
    "check nowhere": "there is no such data",
    "check digits --lr 1": "there is no flag --lr here",
    "study data-size": "needs data",
    "study positions digits --parts x": "--parts is for `regard study attention` and `regard study ablation`",
    "study positions digits --quick": "--quick is for `regard study attention`",
    "resume nowhere": "there is no such run",
    "eval nowhere digits": "there is no such run",
    "eval run nowhere": "there is no such data",
    "pretrain digits --label-column a": "there is no flag --label-column here",
    "train digits --column age --label-column a": "regression has no setting 'label_column'",
    "train digits --column age --label-pattern a": "regression has no setting 'label_pattern'",
    "train digits --time days --event died --label-column a": "survival has no setting 'label_column'",
    "train digits --time days --event died --mixup 0.2": "survival has no setting 'mixup'",
    "train digits --label-column a,b --label-pattern a": "multilabel has no setting 'label_pattern'",
    "train digits --model vit_nano --shift 0.1": "--shift is for volumes, and vit_nano takes pictures",
    "train digits --model vit_nano --spacing 1": "--spacing is for volumes, and vit_nano takes pictures",
    "eval run digits --column age": "--column is not for classification",
    "eval run digits --mirror --corruptions": "corruptions are measured without mirror images",
    "eval run digits --beam-size 2": "--beam-size is not for classification",
    "explain run a.png --method attentions": "method cannot be 'attentions'",
    "explain run a.png --layer 1 --method rollout": "--layer is for the method attention",
    "explain run a.png --no-identity": "--identity is for the method rollout",
    "explain run a.png --out a.xyz": "pictures are not written as .xyz",
    "demo nothing": "there is no demo called 'nothing'",
    "demo digits --epochs 0": "epochs=0 is too small",
    "demo digits --seed -1": "seed=-1 is too small",
    "train digits --seeds 0": "'0' is not a whole number of at least 1",
    "train digits --folds 3 --seeds 2": "folds and seeds are given",
    "train digits --jobs 2": "jobs is for several folds",
    "train digits --dry-run --seeds 2": "a dry run is of one seed",
    "compare": "the following arguments are required: runs",
    "compare run": "there is nothing to compare with",
    "landscape run --points 4": "give --points an odd number",
    "landscape run --points 1": "give --points at least 3",
    "landscape run --span -1": "give --span more than 0",
    "landscape run --split test": "split cannot be 'test'",
    "inspect run --out x.txt": "pictures are not written as .txt",
    "inspect run --excite-head 1": "--excite-head takes pairs of numbers",
    "probe run digits --methods foo": "there is no probe 'foo'",
    "probe run digits --draws 0": "draws=0 is too small",
    "probe run digits --shots 1,x": "--shots 1,x are not numbers",
    "probe run dates": "probes need images with labels",
    "convert nowhere out --to foo": "invalid choice: 'foo'",
    "study data-size nowhere": "there is no such data",
    "study data-size digits --sizes x": "sizes=x are not whole numbers",
    "study data-size digits --models nope": "there is no model called 'nope'",
    "study norm digits --jobs 0": "'0' is not a whole number of at least 1",
    "study resolution nowhere digits": "there is no such run",
    "study batch-norm --sizes 2,x": "sizes=2,x are not whole numbers",
    "study batch-norm --sizes 0,2": "sizes=0,2 are not whole numbers of at least 1",
    "study receptive-field --models nope": "there is no model called 'nope'",
    "study transfer digits --models nope": "there is no model called 'nope'",
    "study transfer nowhere --models vit_nano": "there is no such data",
    "study transfer-size digits nowhere": "there is no such data",
    "study transfer-size digits digits --sizes x": "sizes=x are not whole numbers",
    "predict nowhere a.png": "there is no such run",
    "predict run a.png --best 2": "--best is not for classification",
    "predict run a.png --out a.xlsx": "end --out in .csv or .json",
    "predict run a.png --top 1 --out a.csv": "--top is for printed predictions",
    "explain run a.png --kind cross": "--kind is not for classification",
    "explain folds a.csv --out a.png": "--out is for pictures of one run",
    "inspect nowhere": "there is no such run",
    "probe nowhere digits": "there is no such run",
    "probe run digits --methods linear --shots 1 --draws 3": "--shots is for the probe few_shot",
    "probe run digits --methods few_shot,linear --neighbours 3": "--neighbours is for the probe neighbours",
    "report nowhere": "there is no such run",
    "compare nowhere run": "there is no such run",
    "convert nowhere out.npz --to google": "there is no such run",
}


def test_refusals_come_before_torch(tmp_path):
    """A folder that says it is a run of classification is enough to refuse what classification does not have."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text('{"data": "digits", "task": "classification", "settings": {}}')
    (tmp_path / "run" / "splits.csv").write_text("")
    (tmp_path / "folds").mkdir()
    (tmp_path / "folds" / "folds.json").write_text('{"task": "classification"}')
    given = answers([line.split() for line in REFUSED], tmp_path)
    for (line, words), (code, text) in zip(REFUSED.items(), given, strict=True):
        assert code == 2, (line, text)
        assert words in text, (line, text)
        assert "Traceback" not in text
    assert {path.name for path in tmp_path.iterdir()} == {"run", "folds"}


def test_configs_name_the_family_that_the_registry_finds_them_in():
    for name, entry in registry.MODELS.items():
        assert registry.config_class(name).family == entry.family


def test_only_one_module_computes_attention():
    """Nothing outside nn/attention.py calls a fused kernel or a softmax over products of queries and keys.

    The kernel for windows has a module of its own, which only nn/attention.py may name.
    """
    allowed = {
        "tasks/classification/loss.py",
        "tasks/objects/loss.py",
        "networks/detr/modern.py",
    }  # class probabilities
    for path in ROOT.rglob("*.py"):
        name = path.relative_to(ROOT).as_posix()
        if name == "nn/attention.py":
            continue
        text = path.read_text(encoding="utf-8")
        if name != "nn/window_kernel.py":
            matching = name in ("tasks/objects/matching.py", "tasks/objects/matching_kernel.py")  # no attention
            for word in ("window_kernel", "window_attention", "exp2", *(() if matching else ("triton",))):
                assert word not in text, f"{name}: {word}"
        for node in ast.walk(ast.parse(text)):
            called = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
            assert called != "scaled_dot_product_attention", name
            assert called != "softmax_scores" or name == "nn/tape.py", name
            assert called not in ("softmax", "Softmax", "MultiheadAttention") or name in allowed, name


def test_nothing_can_run_code_from_a_file():
    for path in ROOT.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for word in (r"import pickle\b", "allow_pickle=True"):  # pickletools only reads
            assert not re.search(word, text), f"{path.name}: {word}"
        for node in ast.walk(ast.parse(text)):
            assert not (isinstance(node, ast.Name) and node.id in ("eval", "exec")), f"{path.name}: {node.lineno}"
            if isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.load":
                assert path.name == "files.py", f"{path.name} opens PyTorch files by itself"
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load":
                safe = [ast.unparse(k.value) for k in node.keywords if k.arg == "weights_only"]
                assert safe == ["True"], f"{path.name} lets a file run code"


MODULES = [
    m.name
    for m in pkgutil.walk_packages(regard.__path__, "regard.")
    if not m.name.endswith("__main__") and (find_spec("triton") or not m.name.endswith("_kernel"))
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name, tmp_path):
    module = importlib.import_module(name)
    result = doctest.testmod(module, extraglobs={"tmp": tmp_path}, optionflags=doctest.ELLIPSIS)
    assert result.failed == 0


def test_every_module_says_what_it_is_for():
    for path in ROOT.rglob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), path


def test_public_names_exist_and_are_documented():
    for name in regard.__all__:
        value = getattr(regard, name)
        assert name == "__version__" or value.__doc__, name
    with pytest.raises(AttributeError):
        regard.nothing  # noqa: B018
