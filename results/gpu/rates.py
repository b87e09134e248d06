"""Measure the rates of a GPU's kernels by PyTorch: products by shape, alignment and data, attention, passes, launches.

    python3 -m results.gpu.rates FOLDER SECONDS [PART ...]

Writes `rates.json` into the folder after each part; begins no measurement after its seconds. Times are medians of
rounds between two events of the device. A product is counted as 2 m n k floating-point operations.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from statistics import median
from typing import Any

import torch as untyped
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

torch: Any = untyped

DEVICE = "cuda"
DTYPES: dict[str, Any] = {"bfloat16": torch.bfloat16, "float16": torch.float16, "tf32": torch.float32}
ROUNDS = 5
ROUND_S = 0.012
SAMPLED = "clocks.sm,clocks.mem,power.draw,temperature.gpu,clocks_event_reasons.active"
Rows = Iterator[dict[str, Any]]


def seconds(call: Callable[[], Any], round_s: float = ROUND_S, rounds: int = ROUNDS) -> float:
    """Return the median seconds of one call on the device, after two that are not counted."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for _ in range(2):
        begin.record()
        call()
        end.record()
    torch.cuda.synchronize()
    calls = max(1, min(1000, int(round_s / max(1e-6, begin.elapsed_time(end) * 1e-3))))
    measured = []
    for _ in range(rounds):
        begin.record()
        for _ in range(calls):
            call()
        end.record()
        torch.cuda.synchronize()
        measured.append(begin.elapsed_time(end) * 1e-3 / calls)
    return float(median(measured))


def data(*shape: int, kind: str = "normal", dtype: Any = torch.bfloat16) -> Tensor:
    """Return a tensor of zeros, or of standard normal values."""
    tensor: Tensor = (
        torch.zeros(shape, device=DEVICE, dtype=dtype)
        if kind == "zeros"
        else torch.randn(shape, device=DEVICE, dtype=torch.float32).to(dtype)
    )
    return tensor


def row_of_product(m: int, n: int, k: int, call: Callable[[], Any], **labels: Any) -> dict[str, Any]:
    """Measure one product of [m, k] and [k, n]."""
    measured = seconds(call)
    return {"m": m, "n": n, "k": k, **labels, "seconds": measured, "flop_per_s": 2.0 * m * n * k / measured}


def linear(m: int, n: int, k: int, dtype: str = "bfloat16", kind: str = "normal") -> dict[str, Any]:
    """Measure a linear layer's forward product, x [m, k] by w [n, k]."""
    x, w = data(m, k, kind=kind, dtype=DTYPES[dtype]), data(n, k, kind=kind, dtype=DTYPES[dtype])
    return row_of_product(m, n, k, lambda: functional.linear(x, w), dtype=dtype, data=kind, role="forward")


def gradients(m: int, n: int, k: int) -> Rows:
    """Measure a linear layer's backward products: of its input, dy [m, n] by w, and of its weight, dy^T by x."""
    x, w, dy = data(m, k), data(n, k), data(m, n)
    yield row_of_product(m, k, n, lambda: dy @ w, dtype="bfloat16", data="normal", role="input gradient")
    yield row_of_product(n, k, m, lambda: dy.t() @ x, dtype="bfloat16", data="normal", role="weight gradient")


def sizes() -> Rows:
    """Square products by size and type."""
    for dtype, n in product(DTYPES, (256, 512, 1024, 2048, 4096, 8192, 16384)):
        if dtype != "tf32" or n <= 8192:
            yield linear(n, n, n, dtype)
    for n in (1024, 2048, 4096, 8192, 16384):
        yield scaled(n)


def scaled_call(n: int) -> Callable[[], Any]:
    """Return a square product of 8-bit numbers with one scale a tensor."""
    a, b = (data(n, n).to(torch.float8_e4m3fn) for _ in range(2))
    unit = torch.ones((), device=DEVICE)
    return partial(torch._scaled_mm, a, b.t(), scale_a=unit, scale_b=unit, out_dtype=torch.bfloat16)


def scaled(n: int) -> dict[str, Any]:
    """Measure a square product of 8-bit numbers."""
    return row_of_product(n, n, n, scaled_call(n), dtype="float8", data="normal", role="forward")


def kinds_of_data() -> Rows:
    """One product by the data that it reads."""
    for n, kind in product((4096, 8192), ("zeros", "normal")):
        yield linear(n, n, n, kind=kind)


def alignment() -> Rows:
    """One product with each extent some elements longer than a power of two."""
    for more in (0, 1, 2, 4, 6, 8, 16, 24, 32, 64):
        yield linear(8192, 4096 + more, 4096)
        yield linear(8192, 4096, 4096 + more)
        if more:
            yield linear(8192 + more, 4096, 4096)
    for words in (32000, 32001, 50256, 50257, 50258, 50260, 50264, 50304, 128256):
        yield linear(8192, words, 1024)
        yield from gradients(8192, words, 1024)


def layers() -> Rows:
    """The products of transformer layers by width, tokens and tensor-parallel split."""
    for hidden, tokens, split in product((1024, 2048, 4096, 8192, 12288), (2048, 8192), (1, 4, 8)):
        for n, k in ((3 * hidden // split, hidden), (hidden, hidden // split), (4 * hidden // split, hidden)):
            yield linear(tokens, n, k)
        yield from gradients(tokens, 4 * hidden // split, hidden)


ATTENTIONS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}


def attention_rows(width: int, sequence: int, groups: int, causal: bool) -> Rows:
    """Measure an attention's forward and backward passes of 8192 tokens by each library."""
    batch, heads = 8192 // sequence, max(8, 4096 // width)
    q = data(batch, heads, sequence, width).requires_grad_()
    k, v = (data(batch, heads // groups, sequence, width).requires_grad_() for _ in range(2))
    labels = {"width": width, "sequence": sequence, "batch": batch, "heads": heads, "groups": groups, "causal": causal}
    for name, backend in ATTENTIONS.items():
        try:
            with sdpa_kernel(backend):
                call = partial(
                    functional.scaled_dot_product_attention, q, k, v, is_causal=causal, enable_gqa=groups > 1
                )
                y = call()
                forward = seconds(call)
                backward = seconds(partial(torch.autograd.grad, y, (q, k, v), torch.randn_like(y), retain_graph=True))
        except RuntimeError as error:
            yield {**labels, "library": name, "failure": str(error).splitlines()[0][:160]}
            continue
        work = 4.0 * batch * heads * sequence * sequence * width / (2 if causal else 1)
        yield {**labels, "library": name, "forward_s": forward, "backward_s": backward, "work": work}


def attention() -> Rows:
    """Attention by the width of a head, then by its sequence and by shared keys."""
    for width in (32, 40, 48, 56, 64, 72, 80, 88, 96, 100, 104, 112, 120, 128, 160, 192, 256):
        yield from attention_rows(width, 2048, 1, causal=True)
    for width, sequence, groups, causal in product((64, 128), (512, 1024, 4096, 8192), (1, 4), (True, False)):
        yield from attention_rows(width, sequence, groups, causal)


def pass_calls(rows: int) -> tuple[int, dict[str, tuple[Callable[[], Any], int]]]:
    """Return how many elements passes over rows of 4096 have, and each with the bytes that it must move of one."""
    x, y, w = data(rows, 4096), data(rows, 4096), data(4096)
    wide = x.float()
    return x.numel(), {
        "copy": (lambda: y.copy_(x), 4),
        "add": (lambda: torch.add(x, y), 6),
        "gelu": (lambda: functional.gelu(x), 4),
        "cast": (lambda: wide.to(torch.bfloat16), 6),
        "sum of rows": (lambda: x.sum(1), 2),
        "sum of columns": (lambda: x.sum(0), 2),
        "softmax": (lambda: torch.softmax(x, 1), 4),
        "layer norm": (lambda: functional.layer_norm(x, (4096,), w, w), 4),
        "rms norm": (lambda: functional.rms_norm(x, (4096,), w), 4),
        "transpose": (lambda: x.t().contiguous(), 4),
        "fill": (y.zero_, 2),
    }


def passes() -> Rows:
    """Passes over memory by their length, then the losses of vocabularies, with their gradients."""
    for rows in (16, 64, 256, 1024, 4096, 16384, 65536):
        elements, calls = pass_calls(rows)
        for name, (call, width) in calls.items():
            yield {"pass": name, "elements": elements, "bytes": width * elements, "seconds": seconds(call)}
    for words in (32000, 50257, 128256):
        yield loss(words)


def loss(words: int) -> dict[str, Any]:
    """Measure the cross entropy of 4096 rows of 16-bit logits, computed in float32."""
    logits, labels = data(4096, words).requires_grad_(), torch.randint(words, (4096,), device=DEVICE)
    value = functional.cross_entropy(logits.float(), labels)
    forward = seconds(lambda: functional.cross_entropy(logits.float(), labels))
    backward = seconds(partial(torch.autograd.grad, value, logits, retain_graph=True))
    return {"pass": "cross entropy", "elements": logits.numel(), "seconds": forward, "backward_s": backward}


def updates() -> Rows:
    """A step of AdamW, fused and for each, by parameters and tensors, in float32."""
    for tensors, size in product((16, 256), (1 << 14, 1 << 18, 1 << 21)):
        for name in ("fused", "foreach"):
            weights = [torch.nn.Parameter(torch.randn(size, device=DEVICE)) for _ in range(tensors)]
            for weight in weights:
                weight.grad = torch.randn_like(weight)
            optimizer = torch.optim.AdamW(weights, fused=name == "fused", foreach=name == "foreach")
            row = {"optimizer": name, "tensors": tensors, "elements": tensors * size}
            yield row | {"seconds": seconds(optimizer.step)}


def launches() -> Rows:
    """Host seconds of a call, then how many calls the host may run ahead of a device that is busy."""
    x, w, small = data(128, 128), data(128, 128), data(128)
    calls: dict[str, Callable[[], Any]] = {
        "add": lambda: torch.add(x, x),
        "product": lambda: x @ w,
        "linear": lambda: functional.linear(x, w, small),
        "layer norm": lambda: functional.layer_norm(x, (128,), small, small),
        "view": lambda: x.view(-1),
    }
    for name, call in calls.items():
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(500):
            call()
        host = (time.perf_counter() - begin) / 500
        torch.cuda.synchronize()
        yield {"call": name, "host_s": host, "device_s": seconds(call)}
    torch.cuda._sleep(1_000_000_000)
    moments = [time.perf_counter()]
    for _ in range(4000):
        x.add_(1)
        moments.append(time.perf_counter())
    torch.cuda.synchronize()
    waits = [after - before for before, after in pairwise(moments)]
    yield {"queue": next((count for count, wait in enumerate(waits) if wait > 1e-3), None), "longest_s": max(waits)}


def long_runs() -> Iterator[tuple[dict[str, Any], Callable[[], Any], float]]:
    """Yield what runs for seconds: its labels, a call, and the operations of one, or the bytes of a copy."""
    for kind, n in (("zeros", 8192), ("normal", 8192), ("normal", 4096)):
        yield {"data": kind, "n": n}, partial(torch.matmul, data(n, n, kind=kind), data(n, n, kind=kind)), 2.0 * n**3
    for name in ("float16", "tf32"):
        a, b = (data(8192, 8192, dtype=DTYPES[name]) for _ in range(2))
        yield {"data": f"normal, {name}", "n": 8192}, partial(torch.matmul, a, b), 2.0 * 8192**3
    yield {"data": "normal, float8", "n": 8192}, scaled_call(8192), 2.0 * 8192**3
    small = 0.02 * data(8192, 8192)
    yield {"data": "normal of 0.02", "n": 8192}, partial(torch.matmul, small, small.clone()), 2.0 * 8192**3
    for m, n, k in ((8192, 28672, 8192), (8192, 8192, 1024), (2048, 4096, 4096)):
        call = partial(functional.linear, data(m, k), 0.02 * data(n, k))
        yield {"data": f"layer {m} x {n} x {k}", "n": n}, call, 2.0 * m * n * k
    queries, keys, values = (data(2, 32, 4096, 128) for _ in range(3))
    attention_call = partial(functional.scaled_dot_product_attention, queries, keys, values, is_causal=True)
    yield {"data": "attention", "n": 4096}, attention_call, 2.0 * 2 * 32 * 4096 * 4096 * 128
    x, y = data(1 << 29), data(1 << 29)
    yield {"data": "copy, bytes", "n": x.numel()}, partial(y.copy_, x), 4.0 * x.numel()


def sustained(run_s: float = 4.0) -> Rows:
    """The rate of one call over some seconds, with the clocks and the power meanwhile."""
    for labels, call, work in long_runs():
        time.sleep(1.0)
        sampler = subprocess.Popen(
            ["nvidia-smi", f"--query-gpu={SAMPLED}", "--format=csv,noheader,nounits", "-lms", "100"],
            stdout=subprocess.PIPE,
            text=True,
        )
        rates, until = [], time.time() + run_s
        while time.time() < until:
            rates.append(work / seconds(call, 0.1, 1))
        sampler.terminate()
        samples = sampler.communicate()[0].splitlines()
        yield {**labels, "flop_per_s": rates, "sampled": SAMPLED, "samples": samples}


PARTS = (kinds_of_data, alignment, attention, launches, sizes, sustained, layers, passes, updates)
"""The parts in the order of their worth."""


def main() -> int:
    """Measure every part that fits into the seconds."""
    folder, limit = Path(sys.argv[1]), float(sys.argv[2])
    until = time.time() + limit
    results: dict[str, Any] = {}
    torch.backends.cuda.matmul.allow_tf32 = True
    limits = subprocess.run(
        ["nvidia-smi", "--query-gpu=name,power.limit,clocks.max.sm,driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    results["device"] = {"nvidia_smi": limits, "torch": torch.__version__, "cuda": torch.version.cuda}
    for part in (part for part in PARTS if part.__name__ in (sys.argv[3:] or part.__name__)):
        begin, rows = time.time(), []
        try:
            for row in part():
                rows.append(row)
                if time.time() > until:
                    break
        except RuntimeError as error:
            rows.append({"failure": str(error).splitlines()[0][:300]})
        results[part.__name__] = rows
        print(part.__name__, len(rows), f"{time.time() - begin:.1f} s", flush=True)
        (folder / "rates.json").write_text(json.dumps(results, indent=1) + "\n")
        torch.cuda.empty_cache()
        if time.time() > until:
            break
    return 0


if __name__ == "__main__":
    sys.exit(main())
