"""A search that is recorded, or only kept: the answers of `beam_search`, for every batch."""

import pytest
import torch

from regard.errors import ConfigError
from regard.networks import recorded
from regard.networks.decoding import beam_search
from regard.networks.recorded import RecordedSearch
from tests.loading import create_translator

OPTIONS = {"beams": 3, "best": 2, "ratio": 0.5, "constant": 6}


def batches(device: str) -> list[torch.Tensor]:
    """Of two shapes, which take turns; with padding."""
    generator = torch.Generator().manual_seed(0)
    made = [torch.randint(3, 20, (4, length), generator=generator) for length in (5, 8, 5, 8, 5)]
    for source in made:
        source[0, -2:], source[1:, -1], source[0, -3] = 0, 2, 2
    return [source.to(device) for source in made]


def check(kind: str, device: str) -> RecordedSearch:
    torch.manual_seed(0)
    model = create_translator(kind, vocabulary=20, width=16, depth=2).to(device)
    search = RecordedSearch(model, **OPTIONS)
    found = [(search(source), beam_search(model, source, **OPTIONS)) for source in batches(device)]
    for own, expected in found:  # all at the end: a later batch must not write over an earlier answer
        assert torch.equal(own.words, expected.words)
        torch.testing.assert_close(own.scores, expected.scores, rtol=1e-4, atol=1e-4)
    assert len({str(own.words.tolist()) for own, _ in found}) == len(found)
    return search


@pytest.mark.parametrize("kind", ["transformer_nano", "rnn_nano"])
def test_every_batch_gets_the_answer_of_a_search_of_its_own(kind):
    assert check(kind, "cpu").model.training  # as it was


def test_only_so_many_shapes_are_kept(monkeypatch):
    monkeypatch.setattr(recorded, "MAX_SHAPES", 1)
    search = check("transformer_nano", "cpu")
    assert [shape[1] for shape in search.searches] == [5]


def test_only_so_much_is_kept(monkeypatch):
    monkeypatch.setattr(recorded, "MAX_BYTES", 1)
    search = check("transformer_nano", "cpu")
    assert [shape[1] for shape in search.searches] == [5]
    words, depth, width = 5 * 0.5 + 6, 2, 16
    assert (
        next(iter(search.searches.values()))[0].state.nbytes() > 2 * depth * 4 * 3 * int(words) * width * 4
    )  # keys and values


def test_what_cannot_be_searched_is_refused():
    model = create_translator("transformer_nano", vocabulary=20)
    with pytest.raises(ConfigError, match="best=5 does not fit beams=3"):
        RecordedSearch(model, beams=3, best=5)
    with pytest.raises(ConfigError, match="reward short sentences"):
        RecordedSearch(model, penalty=-1.0)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["transformer_nano", "rnn_nano"])
def test_a_recorded_step_gives_the_same_on_a_gpu(kind):
    search = check(kind, "cuda")
    assert all(type(getattr(play, "__self__", None)).__name__ == "CUDAGraph" for _, play in search.searches.values())
