"""Parameter counts of the zoo's models against published ones."""

import pytest

from planner.errors import GraphError
from planner.models import build
from tests.models.test_language_models import parameters

GPT = {"vocabulary": 50257, "sequence": 1024, "batch": 1}


@pytest.mark.parametrize(
    ("name", "options", "count"),
    [
        ("alexnet", {}, 61_100_840),
        # 138 357 544 with the convolutions' 4224 biases
        ("vgg-16", {}, 138_353_320),
        # 25 557 032 with the last layer's 1000 biases
        ("wresnet-50-1", {}, 25_556_032),
        ("transformer-12-768", GPT, 124_439_808),
        # Llama 3.1 8B, as its published weights count
        ("llama-32-4096", {"batch": 1, "groups": 8, "hidden": 14336, "vocabulary": 128256}, 8_030_261_248),
    ],
)
def test_published_counts(name, options, count):
    assert parameters(build(name, **options)) == count


@pytest.mark.parametrize(
    ("name", "options", "published", "tolerance"),
    [
        # "GPT-3 175B"; its heads are 128 wide, which changes no weight's size
        ("transformer-96-12288", {"vocabulary": 50257, "sequence": 2048, "batch": 1, "heads": 96}, 175e9, 0.003),
        # Attention is all you need, Table 3, big: 213 million with fixed positions and 37000 tokens
        ("encoder-decoder-6-1024", {"vocabulary": 37000, "sequence": 256, "batch": 1}, 213e6, 0.01),
    ],
)
def test_rounded_counts(name, options, published, tolerance):
    assert parameters(build(name, **options)) == pytest.approx(published, rel=tolerance)


@pytest.mark.parametrize("options", [{"heads": 3}, {"heads": 4, "groups": 3}])
def test_heads_that_do_not_divide(options):
    with pytest.raises(GraphError, match="heads must have an even width and divide 32, and groups must divide heads"):
        build("llama-1-32", **options)


@pytest.mark.parametrize("width", [7, 100_002])
def test_heads_of_a_width_that_cannot_be(width):
    with pytest.raises(GraphError, match=f"option head_size: must be even and from 2 to 16384, found {width}"):
        build("llama-1-32", heads=2, head_size=width)
    assert build("llama-1-32", heads=2, head_size=16384).tensors["l0.attention.mixed"].shape[-1] == 16384


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"capacity": 0.0}, "option capacity: must be above 0, found 0.0"),
        ({"chosen_experts": 5}, "option chosen_experts: must be from 1 to 4, found 5"),
    ],
)
def test_experts_that_cannot_be(options, message):
    with pytest.raises(GraphError, match=message):
        build("llama-1-32", heads=2, experts=4, **options)


def test_a_classifier_is_its_backbone_embedding_and_classes():
    convolutions = parameters(build("wresnet-50-1")) - 2048 * 1000
    assert parameters(build("classifier-360232")) == convolutions + 2048 * 512 + 512 * 360_232
