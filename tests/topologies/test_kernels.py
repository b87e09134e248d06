"""Products and convolutions by size and shape: worked by hand, and as properties."""

from dataclasses import replace
from math import prod

import pytest
from hypothesis import given, settings, strategies as st

from tests.simulator.programs import device_type
from topologies import Kernel, Product, TopologyError, load_topology, parse_topology
from topologies.kernels import Attention, Rates, Window, product_s, transformed
from topologies.schema import Products, Winograd

DEVICES = {"gk210": load_topology("p2.8xlarge").devices[0], "p100-sxm2-16gb": load_topology("dgx-1-p100").devices[0]}
ITEM_BYTES = 4

HOW = Products(units=4, tiles=((8, 8), (4, 4)), tile_edge=0, depth=2)
RATES = Rates(category_flop_per_s=4.0, matmul_flop_per_s=8.0, bytes_per_s=1e30, item_bytes=4)

extents = st.integers(1, 700)


def kernel(m, n, k, *, batch=1, window=None, category="matmul"):
    touched = ITEM_BYTES * batch * (m * k + k * n + m * n)
    return Kernel(category, "float32", 2.0 * batch * m * n * k, touched, Product(batch, m, n, k, window))


def convolution(images, channels, filters, pixels, taps):
    window = Window((taps, taps), pixels, "k", "m", dense=True)
    return kernel(images * prod(pixels), filters, channels * taps**2, window=window, category="convolution")


def flop_per_s(device, done):
    return done.operations / device.kernel_s(done)


@pytest.mark.parametrize(
    ("product", "seconds"),
    [
        # one unit makes 1 flop/s; a tile of 8 x 8 is 128 flop per term of the sum, and 2 terms for starting and ending
        (Product(1, 16, 16, 10), 128 * 12),  # four tiles of 8 x 8: one wave
        (Product(4, 8, 8, 10), 128 * 12),  # as a batch
        (Product(1, 24, 16, 10), 32 * 12 * 6),  # 24 tiles of 4 x 4 in six waves, rather than six of 8 x 8 in two
        (Product(1, 9, 8, 10), 32 * 12 * 2),  # six tiles of 4 x 4 in two waves
        (Product(1, 8, 8, 10), 32 * 12),  # four tiles of 4 x 4
        (Product(1, 4, 4, 10), 32 * (3 + 2)),  # one tile of 4 x 4, its sum split over the four units
    ],
)
def test_tiles_and_waves_by_hand(product, seconds):
    assert product_s(HOW, product, RATES) == pytest.approx(seconds)


def test_libraries_before_a_year_attain_less_and_use_no_tensor_cores_for_unaligned_rows():
    device = load_topology("dgx-a100").devices[0]
    assert device.with_libraries(2022) is device
    early = device.with_libraries(2021)
    assert early.attained("bfloat16") == device.spec.products.earlier.share * device.attained("bfloat16")
    assert early.attained("float32") == device.attained("float32")
    assert early.spec.products.unaligned[0] * early.attained("float16") == pytest.approx(device.attained("float32"))


def test_small_tiles_read_more_by_hand():
    # edges of 8 cost 1 + 4 / 8 + 4 / 8 = 2, of 4 cost 3: tiles of 4 x 4 are half as quick again per operation
    how = Products(units=4, tiles=((8, 8), (4, 4)), tile_edge=4, depth=0)
    assert product_s(how, Product(1, 16, 16, 10), RATES) == pytest.approx(128 * 10)
    assert product_s(how, Product(1, 8, 8, 1), RATES) == pytest.approx(32 * 3 / 2)


def test_winograd_by_hand():
    # F(2 x 2, 3 x 3): 16 products; of 6 x 6 pixels 3 x 3 pieces, of 9 taps none is left in the sum
    window = Window((3, 3), (6, 6), "k", "m", dense=True)
    product = Product(1, 2 * 36, 8, 5 * 9, window)
    by = Winograd(window=3, outputs=2)
    assert transformed(by, product) == Product(16, 2 * 9, 8, 5)
    of_weight = Product(1, 8, 5 * 9, 2 * 36, replace(window, taps_in="n", pixels_in="k"))
    assert transformed(by, of_weight) == Product(16, 8, 5, 18)
    for how, rate, transforms in ((by, 8.0, 2), (Winograd(window=3, outputs=2, fused=True), 4.0, 0)):
        products = Products(units=4, tiles=((2, 8),), tile_edge=0, depth=0, winograd=(how,), transform=0.5)
        rates = replace(RATES, bytes_per_s=1e3)
        expected = 16 * 9 / 4 * 32 * 5 / (rate / 4)
        expected += transforms * 4 * 16 * (18 * 5 + 5 * 8 + 18 * 8) / (1e3 * 0.5)
        assert product_s(products, product, rates) == pytest.approx(expected)


@pytest.mark.parametrize(
    "window",
    [
        Window((3, 3), (6, 6), "k", "m", dense=False),
        Window((3, 1), (6, 6), "k", "m", dense=True),
        Window((5, 5), (6, 6), "k", "m", dense=True),
    ],
)
def test_winograd_is_for_dense_square_windows_of_its_size(window):
    how = Products(units=4, tiles=((2, 8),), tile_edge=0, depth=0, winograd=(Winograd(window=3, outputs=2),))
    product = Product(1, 72, 8, 5 * prod(window.taps), window)
    assert product_s(how, product, RATES) == product_s(how, replace(product, window=None), RATES)


@pytest.mark.parametrize("name", DEVICES)
@given(st.tuples(st.integers(1, 9), extents, extents, extents), st.integers(0, 3), st.integers(1, 300))
@settings(max_examples=60, deadline=None)
def test_time_of_products_never_falls_when_an_extent_grows(name, sizes, which, more):
    batch, m, n, k = sizes
    larger = [size + more * (at == which) for at, size in enumerate(sizes)]
    before, after = kernel(m, n, k, batch=batch), kernel(*larger[1:], batch=larger[0])
    assert DEVICES[name].kernel_s(before) <= DEVICES[name].kernel_s(after) * (1 + 1e-12)


@pytest.mark.parametrize("name", DEVICES)
@given(
    st.tuples(st.integers(1, 40), st.integers(1, 300), st.integers(1, 300), st.integers(1, 40), st.integers(1, 40)),
    st.integers(0, 4),
    st.integers(1, 30),
    st.sampled_from([1, 3, 5, 7]),
)
@settings(max_examples=60, deadline=None)
def test_time_of_convolutions_never_falls_when_an_extent_grows(name, sizes, which, more, taps):
    larger = [size + more * (at == which) for at, size in enumerate(sizes)]
    before, after = (convolution(*s[:3], (s[3], s[4]), taps) for s in (sizes, larger))
    assert DEVICES[name].kernel_s(before) <= DEVICES[name].kernel_s(after) * (1 + 1e-12)


@pytest.mark.parametrize("name", DEVICES)
@given(st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(1, 4000)), st.integers(1, 4), st.integers(0, 4000))
@settings(max_examples=60, deadline=None)
def test_at_whole_tiles_and_waves_efficiency_never_falls_with_size(name, sizes, factor, deeper):
    device, (rows, columns, k) = DEVICES[name], sizes
    whole = 128 * device.spec.products.units
    small = kernel(whole * rows, 128 * columns, k)
    large = kernel(whole * rows * factor, 128 * columns * factor, k + deeper)
    assert flop_per_s(device, small) <= flop_per_s(device, large) * (1 + 1e-12)


@pytest.mark.parametrize("name", DEVICES)
def test_small_products_are_slower_per_operation(name):
    rates = [flop_per_s(DEVICES[name], kernel(n, n, n)) for n in (16, 64, 256, 1024, 4096)]
    assert rates == sorted(rates)
    assert rates[0] < rates[-1] / 20
    device = DEVICES[name]
    assert rates[-1] <= device.spec.efficiency.matmul * device.peak("float32")


@given(st.floats(1, 1e12), st.floats(1, 1e6))
def test_kernels_bound_by_memory_have_a_knee(nbytes, knee):
    device = DEVICES["gk210"].changed(knee_bytes=knee)
    streaming = device.spec.memory_bandwidth_bytes_per_s * device.spec.efficiency.other
    assert device.kernel_s(Kernel("other", "float32", 0.0, nbytes)) == pytest.approx((nbytes + knee) / streaming)
    assert device.kernel_s(Kernel("other", "float32", 0.0, 0.0)) == 0


def test_a_shared_processor_and_memory_slow_a_product_down():
    device, product = DEVICES["gk210"], kernel(512, 512, 512)
    streaming = product.nbytes / (device.spec.memory_bandwidth_bytes_per_s * 0.75)
    computing = device.kernel_s(product) - streaming
    assert device.kernel_s(product, memory=3.0) == pytest.approx(computing + 3 * streaming)
    assert device.kernel_s(product, processor=2.0) == pytest.approx(2 * computing + 2 * streaming)


def test_without_parameters_of_products_shape_does_not_matter():
    plain = DEVICES["gk210"].changed(products=None)
    for shape in ((64, 64, 64), (4096, 64, 1)):
        done = kernel(*shape)
        assert plain.kernel_s(done) == plain.kernel_s(replace(done, product=None))


@pytest.mark.parametrize("bad", ["tiles: []", "tiles: [[0, 8]]", "transform: 1.5", "units: 0", "depth: -1"])
def test_bad_parameters_are_refused(bad):
    lines = {"units": "units: 4", "tiles": "tiles: [[8, 8]]", "tile_edge": "tile_edge: 1", "depth": "depth: 1"}
    lines[bad.split(":")[0]] = bad
    text = "format: topology/2\nname: one\ndescription: one device\ndevices: [{name: d0, type: d}]\n"
    text += device_type(memory_bytes=1000, products=f"{{{', '.join(lines.values())}}}")
    with pytest.raises(TopologyError, match=rf"device_types\[0\]\.products\.{bad.split(':')[0]}"):
        parse_topology(text)


LARGE = 8192


def sixteen_bits(m, n, k, batch=1):
    return Kernel(
        "matmul", "bfloat16", 2.0 * batch * m * n * k, 2.0 * batch * (m * k + k * n + m * n), Product(batch, m, n, k)
    )


@pytest.mark.parametrize("name", ["a100-sxm4-80gb", "h100-sxm5-80gb", "b200-sxm-180gb", "mi300x"])
def test_large_products_attain_nearly_what_the_largest_measured_one_does_and_no_product_more(name):
    device = load_device(name)
    assert 0.9 < flop_per_s(device, sixteen_bits(LARGE, LARGE, LARGE)) / device.attained("bfloat16") <= 1
    for m, n, k in ((LARGE, LARGE, 256), (128, LARGE, LARGE), (1000, 1000, 1000), (64, 64, LARGE)):
        assert flop_per_s(device, sixteen_bits(m, n, k)) < 0.95 * device.attained("bfloat16")


def attention(width, products, *, causal, sequence=LARGE, heads=64):
    rows = heads * sequence
    scores = rows * (sequence + 1) / 2 if causal else rows * sequence
    kind = Attention(rows, float(scores), width, products, causal)
    return Kernel("matmul", "bfloat16", kind.operations, 8.0 * rows * width, attention=kind)


@pytest.mark.parametrize(
    ("name", "width", "products", "causal", "published"),
    [
        ("a100-sxm4-80gb", 128, 2, False, 225e12),
        ("a100-sxm4-80gb", 64, 2, False, 190e12),
        ("a100-sxm4-80gb", 128, 5, False, 190e12),
        ("a100-sxm4-80gb", 64, 5, False, 165e12),
        ("a100-sxm4-80gb", 128, 2, True, 210e12),
        ("h200-sxm5-141gb", 128, 2, False, 322e12),
        ("h200-sxm5-141gb", 128, 5, False, 282e12),
        ("h200-sxm5-141gb", 64, 2, False, 302e12),
        ("h200-sxm5-141gb", 64, 5, False, 271e12),
    ],
)
def test_attention_of_long_sequences_attains_what_was_measured(name, width, products, causal, published):
    """Read off from Figures 5 and 6 of FlashAttention-2 (Dao, 2023); of PyTorch's as results/gpu has them."""
    attained = flop_per_s(load_device(name), attention(width, products, causal=causal))
    assert attained == pytest.approx(published, rel=0.12)


@pytest.mark.parametrize(("products", "measured"), [(2, 685e12), (5, 539e12)])
def test_attention_by_kernels_for_the_device_attains_nearly_what_was_measured(products, measured):
    """FlashAttention-3 on an H100, 8192 positions (github.com/meta-pytorch/tritonbench, pull request 1267)."""
    kernel = attention(128, products, causal=True, heads=48)
    native = replace(kernel, attention=replace(kernel.attention, kernel="native"))
    attained = flop_per_s(load_device("h100-sxm5-80gb"), native)
    assert 0.8 * measured < attained < measured
    assert attained > 1.5 * flop_per_s(load_device("h100-sxm5-80gb"), kernel)


@pytest.mark.parametrize(
    ("shape", "bits16", "bits8"),
    [
        ((16384, 8192, 1280), 714.5e12, 1209.7e12),
        ((16384, 1024, 8192), 757.7e12, 1329.7e12),
        ((16384, 8192, 7168), 752.9e12, 1456.6e12),
        ((16384, 3584, 8192), 733.0e12, 1370.3e12),
        ((8192, 8192, 8192), 729.4e12, 1397.5e12),
    ],
)
def test_products_of_a_large_language_model_attain_what_was_measured(shape, bits16, bits8):
    """An H100, by PyTorch (Hugging Face, The Smol Training Playbook, 2025, achieved TFLOPs by precision and shape)."""
    product, device = sixteen_bits(*shape), load_device("h100-sxm5-80gb")
    assert flop_per_s(device, product) == pytest.approx(bits16, rel=0.1)
    assert flop_per_s(device, replace(product, dtype="float8")) == pytest.approx(bits8, rel=0.2)


@pytest.mark.parametrize(
    ("extent", "measured"), [(2048, 1.13e15), (3072, 1.51e15), (4096, 1.41e15), (6144, 1.45e15), (8192, 1.42e15)]
)
def test_square_products_of_16_bits_on_a_b200_attain_what_was_measured(extent, measured):
    """By PyTorch (github.com/pytorch/ao, pull request 2427)."""
    rate = flop_per_s(load_device("b200-sxm-180gb"), sixteen_bits(extent, extent, extent))
    assert rate == pytest.approx(measured, rel=0.2)


def test_attention_of_short_causal_sequences_attains_less():
    device = load_device("a100-sxm4-80gb")
    rates = [
        flop_per_s(device, attention(128, 2, causal=causal, sequence=sequence))
        for causal in (True, False)
        for sequence in (512, 2048, LARGE)
    ]
    assert rates == sorted(rates[:3]) + sorted(rates[3:])
    assert rates[0] < 0.9 * rates[3]


def load_device(name):
    text = f"format: topology/2\nname: one\ndescription: one\ndevices: [{{name: gpu0, type: {name}}}]\n"
    return parse_topology(text).devices[0]
