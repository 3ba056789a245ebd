"""Settings survive JSON unchanged, and mistakes in them are named."""

import copy
import json

import pytest

from regard.config import RunConfig, change, make, to_dict
from regard.errors import ConfigError, RegardError, did_you_mean
from regard.networks.vit.config import ViTConfig


@pytest.mark.parametrize(
    "config",
    [
        ViTConfig(),
        ViTConfig(size=(7, 8, 9), patch=(2, 2, 2), layer_scale=1e-5, pool="mean"),
        RunConfig(),
        RunConfig(size=(32, 48), patch=4, lr=0.1, flip=False, positions="none"),
    ],
)
def test_json_round_trip(config):
    assert make(type(config), json.loads(json.dumps(to_dict(config)))) == config


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"epoch": 3}, "no field 'epoch'.*did you mean epochs"),
        ({"epochs": "many"}, "epochs cannot be 'many'"),
        ({"epochs": 2.5}, "epochs cannot be 2.5"),
        ({"epochs": True}, "epochs cannot be True"),
        ({"flip": 1}, "flip cannot be 1"),
        ({"size": [32, "x"]}, "size cannot be"),
        ({"positions": "learnt"}, "positions cannot be 'learnt'"),
        ({"lr": None}, "lr cannot be None"),
    ],
)
def test_wrong_settings_are_named(values, words):
    with pytest.raises(ConfigError, match=r"(?s)" + words):
        make(RunConfig, values)


def test_whole_numbers_are_fine_where_reals_are_asked_for():
    assert make(RunConfig, {"lr": 1}).lr == 1.0


def test_change_keeps_the_rest():
    assert change(RunConfig(epochs=3), {"lr": 0.5}) == RunConfig(epochs=3, lr=0.5)


def test_an_error_says_what_where_and_what_to_do():
    error = RegardError("it is broken", where="a.png", do="mend it")
    assert str(error) == "it is broken\n  where: a.png\n  to do: mend it"
    moved = copy.copy(error)  # by the protocol that brings it from another process
    assert (type(moved), moved.what, moved.where, moved.do) == (RegardError, "it is broken", "a.png", "mend it")


def test_far_misses_get_the_whole_list():
    assert did_you_mean("zzz", ["vit", "swin"]) == "choose from swin, vit"
