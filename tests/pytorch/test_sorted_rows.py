"""Mixtures of experts that sort rows for grouped products are imported without the sort, and train as in PyTorch."""

from math import prod

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import planner  # noqa: E402
from planner.errors import PlanError  # noqa: E402
from planner.layout import Ways  # noqa: E402
from planner.layout.geometry import contraction  # noqa: E402
from planner.layout.region import signatures  # noqa: E402
from planner.program.calls import node_work  # noqa: E402
from planner.pytorch import from_torch  # noqa: E402
from tdl.traits import traits_of  # noqa: E402
from tests.pytorch.eager import trained_alike  # noqa: E402

TOKENS, WIDTH, INNER, EXPERTS, CHOSEN = 16, 8, 12, 4, 2


@torch.library.custom_op("transformers::grouped_mm_fallback", mutates_args=())
def grouped_mm(input: torch.Tensor, weight: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
    """Multiply groups of rows in any dtype; Transformers defines this operator alike."""
    result = input.new_zeros(input.shape[0], weight.shape[-1])
    for start, stop, matrix in zip([0, *offs.tolist()], offs.tolist(), weight, strict=False):
        result[start:stop] = input[start:stop] @ matrix
    return result


@grouped_mm.register_fake
def _(input, weight, offs):
    return input.new_empty(input.shape[0], weight.shape[-1])


def _gradients(ctx, gradient):
    rows, matrices, ends = ctx.saved_tensors
    starts = [0, *ends.tolist()]
    groups = [slice(start, stop) for start, stop in zip(starts, ends.tolist(), strict=False)]
    of_matrices = torch.stack([rows[group].mT @ gradient[group] for group in groups])
    return grouped_mm(gradient, matrices.mT, ends), of_matrices, None


def _saved(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


grouped_mm.register_autograd(_gradients, setup_context=_saved)


class Experts(nn.Module):
    """Routed feed-forward layers, written as Transformers writes them; `variant` changes one thing."""

    def __init__(self, variant="", chosen=CHOSEN):
        super().__init__()
        self.variant, self.chosen = variant, chosen
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.randn(EXPERTS, 2 * INNER, WIDTH) / 3)
        self.down = nn.Parameter(torch.randn(EXPERTS, WIDTH, INNER) / 3)
        self.bias = nn.Parameter(torch.randn(EXPERTS, WIDTH))

    def forward(self, x, target):
        scores, places = torch.topk(self.router(x).softmax(-1), self.chosen)
        numbers, tokens = places.reshape(-1), x + 0
        if self.variant == "dropped":
            numbers = torch.where(scores.reshape(-1) > 0.3, numbers, -1)
        in_order, order = torch.sort(numbers, stable=True, descending=self.variant == "descending")
        is_div, is_masked = self.variant == "div", self.variant == "masked"
        rows = tokens[torch.div(order, self.chosen, rounding_mode="floor") if is_div else order // self.chosen]
        ends = self.ends(in_order, numbers, order)
        if is_masked:
            missing = (in_order >= EXPERTS).unsqueeze(-1)
            in_order.clamp_(max=EXPERTS - 1)
            rows.masked_fill_(missing, 0.0)
        if self.variant == "ends of another sort":
            ends = self.ends(torch.sort((numbers + 1) % EXPERTS, stable=True)[0], numbers, order)
        if self.variant == "cumulative":
            rows = rows.cumsum(0)
        gate, up = grouped_mm(rows, self.up.transpose(-2, -1), ends).chunk(2, dim=-1)
        y = nn.functional.silu(gate) * up
        y = grouped_mm(y, self.down.transpose(-2, -1), ends)
        y = y.add_(self.bias[in_order]) if self.variant == "added in place" else y + self.bias[in_order]
        y = y * scores.reshape(-1)[order].unsqueeze(-1)
        if self.variant == "normalized":
            y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-3)
        if is_masked:
            y.masked_fill_(missing, 0.0)
        if self.variant == "in place":
            tokens.mul_(2)
        if self.variant == "counts by row":
            counts = torch.histc(in_order.double(), EXPERTS, 0, EXPERTS - 1)
            y = y * (counts[in_order] * torch.arange(len(y)) / len(y) ** 2).unsqueeze(-1)
        back = self.inverse(order)
        if self.variant == "inverse by row":
            y = y * (1 + back.unsqueeze(-1))
        y = y if self.variant == "not put back" else y[back]
        is_by_choice = self.variant == "by choice"
        parts = y.view(self.chosen, -1, WIDTH).sum(0) if is_by_choice else y.view(-1, self.chosen, WIDTH).sum(1)
        return ((parts + tokens - target) ** 2).mean()

    def ends(self, in_order, numbers, order):
        counted = in_order if self.variant != "other counts" else numbers[order.flip(0)]
        counts = torch.histc(counted.float(), bins=EXPERTS, min=0, max=EXPERTS - 1)
        return torch.cumsum(counts.bool() if self.variant == "boolean counts" else counts, 0, dtype=torch.int32)

    def inverse(self, order):
        back, places = torch.empty_like(order), order
        if self.variant == "by choice":
            places = order % self.chosen * (len(order) // self.chosen) + order // self.chosen
        back[places] = torch.arange(len(order))
        return back


def examples(tokens):
    return torch.randn(tokens, WIDTH).double(), torch.randn(tokens, WIDTH).double()


ORDER_MATTERS = (
    "descending", "dropped", "cumulative", "other counts", "ends of another sort", "in place", "counts by row",
    "inverse by row", "not put back", "by choice", "boolean counts",
)  # fmt: skip


@pytest.mark.parametrize("variant", ["", "div", "added in place", "masked", "normalized", *ORDER_MATTERS])
def test_it_trains_as_in_pytorch_and_sorts_only_where_the_order_matters(variant):
    graph = trained_alike(Experts(variant), examples(TOKENS), bar=1e-11)
    assert any(node.op == "sort" for node in graph.nodes) == (variant in ORDER_MATTERS)


def test_tokens_of_one_expert_are_not_changed_in_their_own_memory():
    graph = trained_alike(Experts("masked", chosen=1), examples(TOKENS), bar=1e-11)
    assert all(node.op != "sort" for node in graph.nodes)


@pytest.mark.parametrize(("tokens", "chosen"), [(1, 2), (5, 1)])
def test_few_rows_train_as_in_pytorch(tokens, chosen):
    trained_alike(Experts(chosen=chosen), examples(tokens), bar=1e-11)


def test_workers_with_different_tokens_exchange_none():
    graph = from_torch(Experts(), (torch.randn(TOKENS, WIDTH), torch.randn(TOKENS, WIDTH)))
    plan = planner.plan(graph, parallel="dp=2")
    weights = [tensor for tensor in graph.tensors.values() if tensor.role == "weight" and tensor.init]
    assert plan.total_bytes == 2 * sum(4 * prod(tensor.shape) for tensor in weights) + 8


def test_products_are_counted_once_per_row():
    graph = from_torch(Experts(), (torch.randn(TOKENS, WIDTH), torch.randn(TOKENS, WIDTH)), autocast=torch.bfloat16)
    products = [signature for node, signature in signatures(graph).items() if "grouped_mm" in node]
    operations = sum(each.description.operations(each.extents) for each in products)
    expected = 2 * TOKENS * CHOSEN * WIDTH * (2 * 2 * INNER + 3 * INNER)  # the input has no gradient
    assert expected <= operations <= 1.1 * expected
    assert {product.batch for each in products for product in [contraction(each).product(each.extents)]} == {EXPERTS}
    assert {graph.tensors[node.outputs[0]].dtype for node in graph.nodes if "grouped_mm" in node.op} == {"bfloat16"}


def test_workers_with_fewer_experts_count_fewer_operations():
    graph = from_torch(Experts(), (torch.randn(TOKENS, WIDTH), torch.randn(TOKENS, WIDTH)))
    for signature in signatures(graph).values():
        if group := traits_of(signature.description).grouped:
            whole = node_work(signature, (), Ways(()), 0).operations
            shares = [node_work(signature, (group[1],), Ways((EXPERTS,)), each).operations for each in range(EXPERTS)]
            assert shares == [whole / EXPERTS] * EXPERTS


def test_expert_parallelism_of_grouped_products_is_refused():
    graph = from_torch(Experts(), (torch.randn(TOKENS, WIDTH), torch.randn(TOKENS, WIDTH)))
    with pytest.raises(PlanError, match="ep cannot split grouped products, only tp can"):
        planner.plan(graph, parallel="dp=4,ep=4")
