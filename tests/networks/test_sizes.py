"""Every network says from which size on it sees something, and refuses smaller inputs."""

import pytest
import torch

import regard
from regard.errors import ConfigError
from regard.tasks.classification.settings import Config
from regard.tasks.classification.task import Task
from regard.tasks.small_data import require_useful_size


@pytest.mark.parametrize(("name", "size", "least", "words"), [
    ("vit_s16", 7, 16, "7 × 7 pixels is smaller than one patch, 16 × 16"),
    ("vit_nano", (32, 3), 4, "32 × 3 pixels is smaller than one patch, 4 × 4"),
    ("vit3d_nano", (16, 16, 7), 8, "16 × 16 × 7 pixels is smaller than one patch, 8 × 8 × 8"),
    ("swin_t", (3, 32), 4, "3 × 32 pixels is smaller than one patch, 4 × 4"),
    ("resnet_nano", 7, 8, "7 × 7 pixels is smaller than what a ResNet can halve three times, 8 × 8"),
    ("bit_r50x1", (64, 7), 8, "64 × 7 pixels is smaller than what a ResNet"),
])  # fmt: skip
def test_a_size_too_small_to_see_anything_is_refused(name, size, least, words):
    with pytest.raises(ConfigError, match=words) as caught:
        regard.create(name, classes=2, size=size)
    assert f"give --size at least {least}" in str(caught.value)
    with torch.device("meta"):
        model = regard.create(name, classes=2, size=least)
        x = torch.zeros(1, model.config.channels, *model.config.size)
        assert model.eval()(x).logits.shape == (1, 2)


def test_training_refuses_it_too_and_enlarges_pictures_that_are_smaller_than_a_patch():
    digits = regard.check("digits", quiet=True)
    assert Task.from_data(Config.of(model="vit_nano"), digits)["size"] == (8, 8)
    assert Task.from_data(Config.of(model="vit_s16"), digits)["size"] == (224, 224)
    assert Task.from_data(Config.of(model="vit_s16", patch=2), digits)["size"] == (8, 8)
    for size in (7, (32, 7)):
        with pytest.raises(ConfigError, match="smaller than one patch"):
            Task.from_data(Config.of(model="vit_s16", size=size), digits)


@pytest.mark.parametrize(("model", "size", "words", "least"), [
    ("vit_nano", 7, "7 × 7 pixels shows too little of images of 20 × 20", "8 × 8"),
    ("swin_nano", (16, 7), "16 × 7 pixels shows too little", "8 × 8"),
    ("vit_nano16", 16, "16 × 16 pixels has one patch only", "32 × 32"),
])  # fmt: skip
def test_training_refuses_a_size_that_shows_nothing_of_the_pictures(
    picture_folder, tmp_path, model, size, words, least
):
    with pytest.raises(ConfigError, match=words) as caught:
        regard.train(picture_folder, model=model, size=size, epochs=1, out=tmp_path / "run", quiet=True)
    assert f"give --size at least {least}" in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_pictures_that_are_as_small_themselves_keep_their_size():
    require_useful_size((6, 6), (2, 2), (6, 6))
    with pytest.raises(ConfigError, match="too little"):
        require_useful_size((6, 6), (2, 2), (20, 20))
