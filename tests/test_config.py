"""A model's config survives JSON unchanged, and mistakes in it are named."""

import copy
import json
import re

import pytest

from regard.config import change, fit_value, make, to_dict
from regard.errors import ConfigError, RegardError, did_you_mean
from regard.networks.vit.config import ViTConfig


@pytest.mark.parametrize(
    "config",
    [
        ViTConfig(),
        ViTConfig(size=(7, 8, 9), patch=(2, 2, 2), layer_scale=1e-5, pool="mean"),
    ],
)
def test_json_round_trip(config):
    assert make(type(config), json.loads(json.dumps(to_dict(config)))) == config


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"dept": 3}, "no field 'dept'.*did you mean depth"),
        ({"depth": "many"}, "depth cannot be 'many'"),
        ({"depth": 2.5}, "depth cannot be 2.5"),
        ({"depth": True}, "depth cannot be True"),
        ({"rope": 1}, "rope cannot be 1"),
        ({"size": [32, "x"]}, "size cannot be"),
        ({"positions": "learnt"}, "positions cannot be 'learnt'"),
        ({"dropout": None}, "dropout cannot be None"),
    ],
)
def test_wrong_fields_are_named(values, words):
    with pytest.raises(ConfigError, match=r"(?s)" + words):
        make(ViTConfig, values)


def test_whole_numbers_are_fine_where_reals_are_asked_for():
    assert make(ViTConfig, {"dropout": 0}).dropout == 0.0
    assert type(make(ViTConfig, {"dropout": 0}).dropout) is float


def test_change_keeps_the_rest():
    assert change(ViTConfig(depth=3), {"dropout": 0.5}) == ViTConfig(depth=3, dropout=0.5)


def test_an_error_says_what_where_and_what_to_do():
    error = RegardError("it is broken", where="a.png", do="mend it")
    assert str(error) == "it is broken\n  where: a.png\n  to do: mend it"
    moved = copy.copy(error)  # by the protocol that brings it from another process
    assert (type(moved), moved.what, moved.where, moved.do) == (RegardError, "it is broken", "a.png", "mend it")


def test_far_misses_get_the_whole_list():
    assert did_you_mean("zzz", ["vit", "swin"]) == "choose from swin, vit"


def test_what_fits_is_said_in_words_not_in_types():
    for hint, words in {int: "a whole number", bool | None: "True or False", tuple[int, ...] | None: "several"}.items():
        with pytest.raises(ConfigError) as caught:
            fit_value("x", hint, "field", None)
        assert words in str(caught.value)
        assert not re.search(r"tuple|None|int\b|\||Union", str(caught.value))
