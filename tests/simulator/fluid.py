"""Flows on shared resources in exact fractions, without any code of the simulator: an oracle for its engine.

Rates are found from bottlenecks: the resource with the least equal share for those not yet settled settles them, unless
somebody's own cap is less. Time goes from one start or end to the next.
"""

from fractions import Fraction


def rates(capacities, flows):
    """Return the max-min fair rate of each flow, given as ({resource: coefficient}, cap or None)."""
    settled = {}
    while len(settled) < len(flows):
        open_ = [i for i in range(len(flows)) if i not in settled]
        shares = {}
        for resource, capacity in enumerate(capacities):
            users = sum(flows[i][0].get(resource, 0) for i in open_)
            if users:
                taken = sum(flows[i][0].get(resource, 0) * rate for i, rate in settled.items())
                shares[resource] = (capacity - taken) / users
        caps = [flows[i][1] for i in open_ if flows[i][1] is not None]
        least = min([*shares.values(), *caps])
        for i in open_:
            uses, cap = flows[i]
            if cap == least or any(shares[resource] == least for resource in uses):
                settled[i] = least
    return [settled[i] for i in range(len(flows))]


def ends(capacities, arrivals):
    """Return when each flow ends, given as (start, ({resource: coefficient}, cap or None), work)."""
    capacities = [Fraction(capacity) for capacity in capacities]
    flows = [
        (Fraction(start), ({r: Fraction(c) for r, c in uses.items()}, None if cap is None else Fraction(cap)))
        for start, (uses, cap), _ in arrivals
    ]
    left = [Fraction(work) for _, _, work in arrivals]
    ended = [None] * len(arrivals)
    now = Fraction(0)
    while None in ended:
        running = [i for i, (start, _) in enumerate(flows) if start <= now and ended[i] is None]
        at = rates(capacities, [flows[i][1] for i in running])
        later = [start for start, _ in flows if start > now]
        then = min([*later, *(now + left[i] / rate for i, rate in zip(running, at, strict=True))])
        for i, rate in zip(running, at, strict=True):
            left[i] -= rate * (then - now)
            if not left[i]:
                ended[i] = then
        now = then
    return [float(end) for end in ended]
