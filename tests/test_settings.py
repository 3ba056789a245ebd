"""Settings: groups with flat, unique names, ranges that refuse, and JSON that gives the same settings back."""

import json
import math
import subprocess
import sys
from collections import Counter
from dataclasses import fields
from typing import Any

import pytest

from regard import config, registry, tasks
from regard.errors import ConfigError, RunError
from regard.run.settle import check_settings
from regard.setting_groups import Machine
from regard.settings import RunConfig

every_task = pytest.mark.parametrize("task", tasks.TASKS, ids=lambda entry: entry.name)
IMAGES, TEXT = tasks.find("classification").config, tasks.find("translation").config


@every_task
def test_flat_names_are_unique(task):
    """Over the groups of a task, and against every field of the models that it may train."""
    names = [entry.name for _, entry, _ in task.config.entries()]
    assert len(names) == len(set(names))
    assert not set(names) & task.config.shape_fields().keys()


@every_task
def test_a_name_is_in_the_same_group_in_all_tasks(task):
    for other in tasks.TASKS:
        theirs = {entry.name: group for group, entry, _ in other.config.entries()}
        for group, entry, _ in task.config.entries():
            assert theirs.get(entry.name, group) == group, entry.name


@every_task
def test_every_setting_has_a_help_text_and_a_default_within_its_range(task):
    for _, entry, _ in task.config.entries():
        assert entry.metadata["help"].endswith("."), entry.name
    task.config()


def test_settings_need_no_torch():
    code = (
        "import sys, regard.tasks as t; [(e.config(), e.recipes) for e in t.TASKS]; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_flat_settings_find_their_group():
    config: Any = IMAGES.of(lr=0.5, batch_size="auto", flip=False, loss="bce", size=32, seed=3)
    assert (config.optim.lr, config.data.batch_size, config.augment.flip) == (0.5, "auto", False)
    assert (config.task.loss, config.general.seed, config.model.shape) == ("bce", 3, {"size": 32})
    assert config.flat()["size"] == 32
    changed = config.change({"lr": 1, "patch": 4})
    assert (changed.optim.lr, changed.model.shape) == (1.0, {"size": 32, "patch": 4})
    assert changed.change({"lr": 0.5, "patch": None}).model.fields() == config.model.fields()
    assert config.optim.lr == 0.5, "the old one is as it was"


@every_task
def test_every_number_is_held_to_its_range(task):
    """Just outside each bound is refused by name; the bound itself is not."""
    tried = 0
    for _, entry, _ in task.config.entries():
        least, most, below, above = entry.metadata["range"]
        if above is not None:
            with pytest.raises(ConfigError, match=f"{entry.name}="):
                task.config.of({entry.name: above})
            tried += 1
        whole = isinstance(entry.default, int) or entry.default is None
        step = 1 if whole else 1e-9
        for wrong in ([least - step] if least is not None else []) + ([most + step] if most is not None else []):
            with pytest.raises(ConfigError, match=f"{entry.name}="):
                task.config.of({entry.name: wrong})
            tried += 1
        if below is not None:
            with pytest.raises(ConfigError, match=f"{entry.name}="):
                task.config.of({entry.name: below})
            tried += 1
        if most is not None:
            assert task.config.of({entry.name: most}).flat()[entry.name] == most
    assert tried > 15


@every_task
def test_what_is_not_a_number_is_refused(task):
    reals = [entry.name for _, entry, kind in task.config.entries() if kind is float]
    assert len(reals) > 8
    for name in reals:
        for value in (math.nan, math.inf, -math.inf):
            with pytest.raises(ConfigError, match=f"{name}="):
                task.config.of({name: value})


@pytest.mark.parametrize(
    ("config", "values", "words"),
    [
        (IMAGES, {"epoch": 3}, "classification has no setting 'epoch'.*did you mean epochs"),
        (IMAGES, {"beam_size": 4}, "classification has no setting 'beam_size'"),
        (IMAGES, {"learning_rate": 4}, "it is called lr"),
        (TEXT, {"mixup": 0.2}, "translation has no setting 'mixup'"),
        (TEXT, {"shard": True}, "translation has no setting 'shard'"),
        (TEXT, {"patch": 4}, "translation has no setting 'patch'"),
        (tasks.find("pretraining").config, {"maks": 0.5}, "did you mean mask"),
        (tasks.find("pretraining").config, {"mixup": 0.2}, "pretraining has no setting 'mixup'"),
        (IMAGES, {"classes": 3}, "no setting 'classes'"),
        (IMAGES, {"shape": {}}, "no setting 'shape'"),
        (IMAGES, {"epochs": "many"}, "epochs cannot be 'many'"),
        (IMAGES, {"epochs": True}, "epochs cannot be True"),
        (IMAGES, {"flip": 1}, "flip cannot be 1"),
        (IMAGES, {"lr": None}, "lr cannot be None"),
        (IMAGES, {"batch_size": "large"}, "batch_size cannot be 'large'"),
        (IMAGES, {"size": [32, "x"]}, "size cannot be"),
        (IMAGES, {"positions": "learnt"}, "positions cannot be 'learnt'"),
        (IMAGES, {"holdout": 0.0}, "nothing to choose and test on"),
        (IMAGES, {"compile": True, "checkpointing": True}, "choose one"),
        (IMAGES, {"shard": True, "compile": True}, "choose one"),
        (IMAGES, {"lora": 2, "freeze": 1, "weights": "w"}, "choose one"),
        (IMAGES, {"freeze": 1}, "random weights"),
    ],
)
def test_wrong_settings_are_named(config, values, words):
    with pytest.raises(ConfigError, match=r"(?s)" + words):
        config.of(values)


@pytest.mark.parametrize(
    ("task", "settings", "words"),
    [
        ("classification", {"model": "resnet_nano", "patch": 2}, "resnet_nano has no patch.*these can be set: .*width"),
        ("classification", {"model": "mlp", "heads": 2}, "mlp has no heads.*depth"),
        ("classification", {"model": "resnet_nano", "checkpointing": True}, "cannot recompute"),
        ("classification", {"model": "mlp_nano", "low_res": 0.5}, "inputs of one size"),
        ("classification", {"model": "transformer_nano"}, "not for classification: it takes texts.*vit_s16"),
        ("translation", {"model": "rnn_nano", "heads": 2}, "rnn_nano has no heads"),
        ("translation", {"model": "transformer_nano", "cell": "gru"}, "transformer_nano has no cell"),
        ("translation", {"model": "vit_nano"}, "not for translation: it takes images.*transformer_base"),
        ("classification", {"model": "vit_nanno"}, "did you mean vit_nano"),
        ("classification", {"steps": 3, "epochs": 2}, "both steps and epochs"),
    ],
)
def test_what_a_model_does_not_have_is_refused(task, settings, words):
    with pytest.raises(ConfigError, match=r"(?s)" + words):
        check_settings(tasks.find(task), settings)


@every_task
def test_weights_that_are_not_there_are_refused_by_their_flag(task, tmp_path):
    for _, entry, _ in task.config.entries():
        if flag := entry.metadata["weights"]:
            with pytest.raises(RunError, match=rf"there are no such weights(?s:.*)give {flag} a file"):
                check_settings(task, {entry.name: str(tmp_path / "none.npz")})
    named = {entry.name for _, entry, _ in task.config.entries() if entry.metadata["weights"]}
    assert named == {"weights", "teacher"} & task.config.names()


TRAINED = {entry.config.predicts for entry in tasks.TASKS}


@pytest.mark.parametrize("name", [n for n in registry.MODELS if registry.config_class(n).predicts in TRAINED])
def test_the_own_fields_of_every_model_can_be_set(name):
    predicts = registry.config_class(name).predicts
    config = next(entry.config for entry in tasks.TASKS if entry.config.predicts == predicts)
    own = {f.name for f in fields(registry.config_class(name))}
    assert config.shape_fields(name).keys() == own - config.not_shape
    assert own & config.not_shape, "what the data decides is a field of it"


@every_task
def test_json_round_trip(task):
    """Values and their origins, those of recipes and of shapes included; tuples come back as tuples."""
    for recipe in task.recipes.values():
        shape = {"size": (32, 48)} if task.config.takes == "image" else {"width": 64}
        config = recipe().change({**shape, "seed": 7, "dropout": None})
        origins = {name: "flag" if name == "seed" else "recipe" for name in config.flat()}
        stored = json.loads(json.dumps(config.to_json(origins)))
        assert stored.keys() == config.groups().keys()
        assert stored["general"]["seed"] == {"value": 7, "origin": "flag"}
        assert task.config.from_json(stored, "config.json") == (config, origins)


@pytest.mark.parametrize(
    ("task", "settings"),
    [
        ("pretraining", {"label_column": None, "label_pattern": None, "mixup": 0.0}),
        ("regression", {"label_column": None, "label_pattern": None}),
        ("survival", {"label_column": None, "label_pattern": None, "mixup": 0.0, "cutmix": 0.0, "mixup_off": 0.0}),
        ("multilabel", {"label_pattern": None}),
    ],
)
def test_a_run_of_a_version_that_wrote_more_settings_is_read(task, settings):
    """They are no settings of this task now, nor shown; then they were, and could only be off."""
    config = tasks.find(task).config
    assert not settings.keys() & config.names()
    stored = config.of(seed=3).to_json(dict.fromkeys(config().flat(), "default"))
    stored["data"] = stored["data"] | {name: {"value": value, "origin": "auto"} for name, value in settings.items()}
    assert config.from_json(stored, "config.json")[0] == config.of(seed=3)
    for name in settings:
        for entry in ({"value": "x", "origin": "auto"}, {"value": None, "origin": "flag"}):
            with pytest.raises(ConfigError, match=f"{task} has no setting '{name}'"):
                config.from_json(stored | {"data": stored["data"] | {name: entry}}, "config.json")


def test_damaged_json_is_an_error_that_says_where():
    config = IMAGES()
    stored = json.loads(json.dumps(config.to_json(dict.fromkeys(config.flat(), "default"))))
    for damage, words in (
        ({"optim": {"lr": {"value": "fast", "origin": "flag"}}}, "lr cannot be 'fast'"),
        ({"optim": {"lr": 3}}, "damaged"),
        ({"optim": {"lr": {"value": 0.1}}}, "damaged"),
        ({"optim": 3}, "damaged"),
        ({"optimiser": {}}, "no group 'optimiser'"),
        ({"optim": {"speed": {"value": 1, "origin": "flag"}}}, "no setting 'speed'"),
    ):
        with pytest.raises(ConfigError, match=f"(?s){words}.*config.json"):
            IMAGES.from_json(stored | damage, "config.json")


def test_a_group_alone_checks_itself():
    with pytest.raises(ConfigError, match="save_every"):
        Machine(save_every=-1.0)
    with pytest.raises(ConfigError, match="timeout"):
        RunConfig.of(timeout=0.0)


def test_every_kind_of_model_has_one_task_for_public_weights():
    kinds = {registry.config_class(name).predicts for name in registry.MODELS}
    assert sorted(entry.config.predicts for entry in tasks.TASKS if entry.public_weights) == sorted(kinds)
    assert tasks.for_weights("", "vit_b16").name == "classification"
    assert tasks.for_weights("regression", "vit_b16").name == "regression"


def test_fields_of_models_are_settings_of_the_tasks_that_train_them():
    for entry in tasks.TASKS:
        assert ("queries" in entry.config.names()) == (entry.config.predicts == "boxes")
        assert "width" in entry.config.names()


def test_the_types_of_settings_are_resolved_once(monkeypatch):
    resolved, real = Counter[type](), config.get_type_hints
    monkeypatch.setattr(config, "get_type_hints", lambda cls: resolved.update([cls]) or real(cls))
    config.type_hints.cache_clear()
    for model in ("vit_nano", "resnet_nano"):
        IMAGES.of(model=model, size=16, lr=0.1, drop_path=0.1).check_model({"size": 16, "drop_path": 0.1})
    assert set(resolved.values()) == {1}
