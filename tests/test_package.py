"""What holds for the package as a whole: layers, laziness, one attention, docstrings that run."""

import ast
import doctest
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import regard
from regard import registry

ROOT = Path(regard.__file__).parent


def test_layers_import_downward_only():
    from importlinter.cli import lint_imports

    assert lint_imports(config_filename=str(ROOT.parents[1] / "pyproject.toml"), no_cache=True) == 0


def test_every_module_stands_in_a_layer():
    text = (ROOT.parents[1] / "pyproject.toml").read_text()
    for path in ROOT.iterdir():
        if path.name not in ("__init__.py", "__main__.py", "__pycache__"):
            assert f"regard.{path.stem}" in text, f"{path.name} is in no layer"


def run(*words: str) -> str:
    """A program that runs the command line and survives its exit."""
    return (
        f"import sys; sys.argv = ['regard', *{words!r}]; from regard.cli import main\n"
        "try: main()\nexcept SystemExit: pass"
    )


@pytest.mark.parametrize(
    "code",
    [
        "import regard; regard.__version__; dir(regard)",
        run("--help"),
        run("train", "--help"),
        run("models"),
        "from regard import registry; [registry.configure(name) for name in registry.MODELS]",
    ],
)
def test_light_things_do_not_import_torch(code):
    check = code + "\nimport sys; heavy = {'torch', 'numpy', 'matplotlib'} & set(sys.modules); assert not heavy, heavy"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_configs_name_the_family_that_the_registry_finds_them_in():
    for name, entry in registry.MODELS.items():
        assert registry.config_class(name).family == entry.family


def test_only_one_module_computes_attention():
    """Nothing outside nn/attention.py calls the fused kernel or a softmax over products of queries and keys."""
    allowed = {"tasks/classification.py"}  # class probabilities
    for path in ROOT.rglob("*.py"):
        name = path.relative_to(ROOT).as_posix()
        if name == "nn/attention.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            called = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
            assert called != "scaled_dot_product_attention", name
            assert called not in ("softmax", "Softmax", "MultiheadAttention") or name in allowed, name


def test_nothing_can_run_code_from_a_file():
    for path in ROOT.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for word in ("import pickle", "allow_pickle=True", "eval(", "exec("):
            assert word not in text.replace(".eval(", ""), f"{path.name}: {word}"
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.load":
                assert path.name == "files.py", f"{path.name} opens PyTorch files by itself"
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load":
                safe = [ast.unparse(k.value) for k in node.keywords if k.arg == "weights_only"]
                assert safe == ["True"], f"{path.name} lets a file run code"


MODULES = [m.name for m in pkgutil.walk_packages(regard.__path__, "regard.") if not m.name.endswith("__main__")]


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
