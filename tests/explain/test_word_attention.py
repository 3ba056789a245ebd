"""A translator's attention word by word: exact, merged, followed to the source, and kept."""

import base64
import json
import math
import zlib
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from regard.errors import ConfigError, DataError
from regard.explain.word_attention import LONGEST, WordAttention, merge, record_words
from regard.networks.decoding import beam_search, greedy
from regard.nn import Attention
from tests.explain.sentences import HOUSES, TOKENIZERS, sentence, translator
from tests.loading import create_translator


def by_hand(module, inputs: tuple[Tensor, ...], causal: bool) -> Tensor:
    """softmax(q kᵀ / √d) of one sentence in double precision, from what the module was given: (heads, Q, K)."""
    queries, keys = inputs[0][0], inputs[-1][0]
    width = queries.shape[-1]
    weight, bias = module.qkv.weight, module.qkv.bias
    q = (queries @ weight[:width].T + bias[:width]).unflatten(1, (module.heads, -1)).transpose(0, 1)
    k = (keys @ weight[width : 2 * width].T + bias[width : 2 * width]).unflatten(1, (module.heads, -1)).transpose(0, 1)
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if causal:
        scores = scores + torch.full(scores.shape[1:], -math.inf).triu(1)
    return scores.softmax(-1)


@pytest.mark.parametrize("fields", [{"norm": "post"}, {"norm": "pre", "decoder_depth": 3}])
def test_weights_equal_a_plain_softmax_in_every_layer_and_head(fields):
    model, expected = translator(heads=4, depth=2, **fields).train(), {}
    hooks = [
        module.register_forward_hook(
            lambda module, inputs, _, name=name: expected.update(
                {name: by_hand(module, inputs, causal=name.startswith("decoder") and "cross" not in name)}
            )
        )
        for name, module in model.named_modules() if isinstance(module, Attention)
    ]  # fmt: skip
    found = record_words(model, TOKENIZERS, *HOUSES)
    for hook in hooks:
        hook.remove()
    assert model.training, "the model is handed back as it came"
    assert record_words(model, TOKENIZERS, *HOUSES).rollout().equal(found.rollout()), "without dropout"
    layers = {"encoder": 2, "decoder": model.config.decoder_depth or 2, "cross": model.config.decoder_depth or 2}
    for kind, count in layers.items():
        part = "cross" if kind == "cross" else "attention"
        name = f"{'encoder' if kind == 'encoder' else 'decoder'}.%d.{part}"
        exact = torch.stack([expected[name % layer] for layer in range(count)])
        queries, keys = found.sides(kind)
        assert exact.shape == found.weights[kind].shape == (count, 4, len(queries.ids), len(keys.ids))
        assert exact.std() > 0.05, "even weights would agree with anything"
        torch.testing.assert_close(found.weights[kind], exact.float(), atol=1e-6, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("attention", ["dot", "additive"])
def test_an_rnn_shows_its_alignment_alone(attention):
    model, seen = translator("rnn_nano", attention=attention), []
    hook = model.alignment.register_forward_hook(lambda module, inputs, _: seen.append(inputs))
    found = record_words(model, TOKENIZERS, *HOUSES)
    hook.remove()
    states, memory = torch.cat([inputs[0][0] for inputs in seen]), seen[0][2]
    assert len(states) == len(found.target.ids), "one query per word, each a call of its own"
    if attention == "dot":
        scores = states @ memory.words[0].T
    else:
        q, k = states @ model.alignment.query.weight.T, memory.words[0] @ model.alignment.key.weight.T
        scores = (q[:, None] + k[None]).tanh() @ model.alignment.vector
    assert found.kinds == ("cross",)
    torch.testing.assert_close(found.weights["cross"][0, 0], scores.softmax(-1).float(), atol=1e-6, rtol=0)
    torch.testing.assert_close(found.rollout(), found.weights["cross"][0, 0], atol=1e-6, rtol=0)
    with pytest.raises(ConfigError, match="no attention 'encoder'"):
        found.words("encoder")


def test_queries_are_named_for_what_they_write_and_keys_for_what_was_read():
    found = record_words(translator(), TOKENIZERS, "a tree", "ein Baum")
    assert found.words("encoder").queries == found.words("cross").keys == ("a", "tree", "</s>")
    assert found.words("cross").queries == found.words("decoder").queries == ("ein", "Baum", "</s>")
    assert found.words("decoder").keys == ("<s>", "ein", "Baum")
    first = found.tokens("decoder", layer=0).weights[0]
    assert first[0] == 1, "the first word is written with nothing read but the start"
    assert first[1:].eq(0).all()


def test_a_translation_that_is_not_given_is_searched_for():
    model = translator().float().eval()
    source = torch.tensor(TOKENIZERS.source.encode(["a house"], end=True))
    for beams, found in ((1, greedy(model, source)), (3, beam_search(model, source, beams=3))):
        expected = [n for n in found.words[0, 0].tolist() if n != TOKENIZERS.target.pad]
        assert list(record_words(model, TOKENIZERS, "a house", beams=beams).target.ids) == expected
    assert expected[-1] == TOKENIZERS.target.end


def test_words_are_merged_from_their_tokens():
    found = record_words(translator(), TOKENIZERS, *HOUSES)
    assert len(found.source.tokens) > len(found.source.words) == 4
    assert found.target.words == ("zwei", "kleine", "Häuser", "집", "</s>")
    spaced = record_words(translator(), TOKENIZERS, "a 12", "zwei")
    assert spaced.source.tokens == ("a", "␣", "1", "2", "</s>"), "each digit is a token, and so is what is before them"
    assert spaced.source.words == ("a", "12", "</s>")
    tokens, words = found.tokens("cross", 1, 2).weights, found.words("cross", 1, 2).weights
    for row in range(len(found.target.words)):
        for column in range(len(found.source.words)):
            asks = [n for n, group in enumerate(found.target.groups) if group == row]
            looked = [n for n, group in enumerate(found.source.groups) if group == column]
            by_hand = sum(float(tokens[a, b]) for a in asks for b in looked) / len(asks)
            assert float(words[row, column]) == pytest.approx(by_hand, abs=1e-6)
    torch.testing.assert_close(words.sum(1), torch.ones(5))
    mean = torch.stack([found.words("cross", 1, head).weights for head in range(4)]).mean(0)
    torch.testing.assert_close(found.words("cross", 1).weights, mean)


def test_rollout_matches_hand_arithmetic():
    """One encoder layer of two heads, two decoder layers of one, over two words on either side."""
    encoder = [[[[0.5, 0.5], [0.0, 1.0]], [[1.0, 0.0], [0.4, 0.6]]]]
    decoder = [[[[1.0, 0.0], [0.6, 0.4]]], [[[1.0, 0.0], [0.2, 0.8]]]]
    cross = [[[[1.0, 0.0], [0.0, 1.0]]], [[[0.5, 0.5], [0.0, 1.0]]]]
    weights = {k: torch.tensor(v) for k, v in {"encoder": encoder, "decoder": decoder, "cross": cross}.items()}
    flow = translator(depth=1, decoder_depth=2).token_flow()
    found = WordAttention(sentence("a", "b"), sentence("c", "d"), sentence("s", "c"), weights, flow)
    # mean over heads [[.75, .25], [.2, .8]]; with the residual E = [[.875, .125], [.1, .9]]
    # layer 0: S = ½ A E = [[.4375, .0625], [.05, .45]]
    # layer 1: ½ (I + A) = [[1, 0], [.1, .9]]: S = [[.4375, .0625], [.08875, .41125]]
    #          A E = [[.4875, .5125], [.1, .9]]: S = ½ S + ½ A E = [[.4625, .2875], [.094375, .655625]]
    expected = torch.tensor([[0.4625, 0.2875], [0.094375, 0.655625]]) / 0.75
    torch.testing.assert_close(found.rollout(), expected)
    torch.testing.assert_close(found.rollout().sum(1), torch.ones(2))
    torch.testing.assert_close(found.relevance(), expected.mean(0))
    torch.testing.assert_close(found.words("rollout").weights, expected)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_rows_of_a_rollout_sum_to_one(norm):
    found = record_words(translator(norm=norm, depth=3), TOKENIZERS, *HOUSES)
    torch.testing.assert_close(found.rollout().sum(1), torch.ones(len(found.target.ids)))
    assert found.rollout().min() > 0
    assert float(found.relevance().sum()) == pytest.approx(1, abs=1e-5)


def unpacked(record: dict[str, Any]) -> dict[str, Tensor]:
    """The weights of a record by kind: first every row's largest, float32, then shares of it in 255ths."""
    shapes = record["kinds"]
    plain = zlib.decompress(base64.b64decode(record["data"]))
    rows = [math.prod(shape[:3]) for shape in shapes.values()]
    tops = torch.from_numpy(np.frombuffer(plain, "<f4", sum(rows)).copy()).split(rows)
    shares = torch.from_numpy(np.frombuffer(plain, np.uint8, offset=4 * sum(rows)).copy())
    parts = shares.split([math.prod(shape) for shape in shapes.values()])
    return {
        kind: top.reshape(*shape[:3], 1) * part.reshape(shape) / 255
        for (kind, shape), top, part in zip(shapes.items(), tops, parts, strict=True)
    }


def test_kept_weights_come_back_within_half_a_255th():
    found = record_words(translator(), TOKENIZERS, *HOUSES)
    record = json.loads(json.dumps(found.to_json()))
    back = unpacked(record)
    assert list(back) == list(found.kinds)
    for kind, exact in found.weights.items():
        bound = exact.amax(-1, keepdim=True) * (0.5 / 255 + 1e-6)
        assert ((back[kind] - exact).abs() <= bound).all()
    assert record["kinds"]["rollout"] == [1, 1, len(found.target.ids), len(found.source.ids)]
    assert (record["text"], record["translated"]) == HOUSES
    size = len(record["data"])
    assert found.to_json(room=size) == found.to_json()
    assert set(found.to_json(room=size - 1)) == {"text", "translated", "left_out"}


def test_what_cannot_be_shown_is_said():
    with pytest.raises(ConfigError, match="has no attention to show; rnn_attention has"):
        record_words(translator("rnn_plain", depth=1), TOKENIZERS, *HOUSES)
    model = translator()
    with pytest.raises(DataError, match="no text"):
        record_words(model, TOKENIZERS, " ")
    with pytest.raises(DataError, match="too long"):
        record_words(model, TOKENIZERS, "a " * (LONGEST + 1))
    with pytest.raises(ConfigError, match="tokens and the network knows"):
        record_words(create_translator("transformer_nano", vocabulary=100), TOKENIZERS, *HOUSES)
    found = record_words(model, TOKENIZERS, *HOUSES)
    for kind, layer, head in (("crossed", -1, None), ("cross", 9, None), ("cross", 0, 4)):
        with pytest.raises(ConfigError):
            found.words(kind, layer, head)


def test_merging_keeps_rows_of_one():
    weights = torch.rand(5, 4).softmax(-1)
    torch.testing.assert_close(merge(weights, [0, 0, 1, 2, 2], [0, 1, 1, 2]).sum(1), torch.ones(3))
