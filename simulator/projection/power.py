"""Power: how much longer a step takes if its products would exceed the device's power limit."""

from __future__ import annotations

from topologies.schema import Power


def within_limit_s(power: Power | None, seconds: float, product_s: float, memory_s: float) -> float:
    """Return the seconds of a step on a device that lowers its clock until its mean power is within the limit.

    At full clock the step takes `seconds`, of which products at their best rate would take `product_s` and streaming at
    full memory bandwidth `memory_s`. At a fraction f of the clock, products take 1/f times as long and draw f^3 times
    the power above idle, because voltage scales with the clock. The step takes T(f) = seconds + product_s (1/f - 1),
    and needs J(f) = (product_w - idle_w) product_s f^2 + (memory_w - idle_w) memory_s joules above idle, for which it
    takes at least J(f) / (limit_w - idle_w). T decreases with f and J increases: the result is the minimum over 0 < f
    <= 1 of the larger of both.

    For every f, both increase with each of the three arguments, so lower bounds of these give a lower bound of the
    result. It is also convex in them: with x = product_s / f, T is linear and product_s f^2 = product_s^3 / x^2 is
    convex. So mean values over devices give at most the result of the device that draws most.
    """
    if power is None:
        return seconds
    margin_w, memory_j = power.limit_w - power.idle_w, (power.memory_w - power.idle_w) * memory_s
    product_j, other_j = (power.product_w - power.idle_w) * product_s, margin_w * (seconds - product_s)
    if product_j + memory_j <= margin_w * seconds:
        return seconds
    clock, slower = 1.0, 0.0  # Newton's method approaches the root of a convex function from above
    while True:
        value = product_j * clock**3 + (memory_j - other_j) * clock - margin_w * product_s
        slower = clock - value / (3 * product_j * clock**2 + memory_j - other_j)
        if slower >= clock:
            return (product_j * clock**2 + memory_j) / margin_w
        clock = slower
