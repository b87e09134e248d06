"""Weight updates. Every input is used up before the first output is written, so outputs may alias any input."""

from __future__ import annotations

from executor.kernels.blocks import Blocked
from executor.kernels.call import Array, Kernel, KernelCall


def sgd(call: KernelCall) -> None:
    """Compute w' = w - lr * grad."""
    weight, grad = call.inputs
    call.xp.subtract(weight, grad * call.number("lr"), out=call.outputs[0])


def sgd_momentum(call: KernelCall) -> None:
    """Compute v' = momentum * v + grad and w' = w - lr * v'."""
    weight, grad, velocity = call.inputs
    next_velocity = velocity * call.number("momentum")
    next_velocity += grad
    call.xp.subtract(weight, next_velocity * call.number("lr"), out=call.outputs[0])
    call.xp.copyto(call.outputs[1], next_velocity)


def increment(call: KernelCall) -> None:
    """Compute t + 1."""
    call.xp.add(call.inputs[0], 1, out=call.outputs[0])


def adam(call: KernelCall) -> None:
    """One step of Adam as PyTorch writes it; `t` counts from 1."""
    _adam(call, 1.0)


def adamw(call: KernelCall) -> None:
    """One step of Adam on a weight that first decays."""
    _adam(call, 1.0 - call.number("lr") * call.number("decay"))


def _adam(call: KernelCall, shrink: float) -> None:
    xp, (weight, grad, mean, variance, step) = call.xp, call.inputs
    beta1, beta2 = call.number("beta1"), call.number("beta2")
    # 1 - beta ** t in double precision: in single precision the first steps would lose three digits.
    time = step.astype(xp.float64)
    step_size = (call.number("lr") / (1 - beta1**time)).astype(weight.dtype)
    root_correction = xp.sqrt(1 - beta2**time).astype(weight.dtype)
    next_mean = mean * beta1
    next_mean += grad * (1 - beta1)
    next_variance = grad * (1 - beta2)
    next_variance *= grad
    next_variance += variance * beta2
    change = xp.sqrt(next_variance)
    change /= root_correction
    change += call.number("eps")
    xp.divide(next_mean, change, out=change)
    change *= step_size
    xp.subtract(weight if shrink == 1 else weight * shrink, change, out=call.outputs[0])
    xp.copyto(call.outputs[1], next_mean)
    xp.copyto(call.outputs[2], next_variance)


def _scaled_by_root(call: KernelCall, squares: Array) -> None:
    """Write w - lr * grad / (sqrt(squares) + eps), and squares."""
    xp, (weight, grad, _) = call.xp, call.inputs
    change = xp.sqrt(squares)
    change += call.number("eps")
    xp.divide(grad * call.number("lr"), change, out=change)
    xp.subtract(weight, change, out=call.outputs[0])
    xp.copyto(call.outputs[1], squares)


def rmsprop(call: KernelCall) -> None:
    """Step by the gradient over the root of its running mean square."""
    _, grad, running = call.inputs
    alpha = call.number("alpha")
    _scaled_by_root(call, running * alpha + grad * grad * (1 - alpha))


def adagrad(call: KernelCall) -> None:
    """Step by the gradient over the root of its sum of squares."""
    _, grad, total = call.inputs
    _scaled_by_root(call, total + grad * grad)


KERNELS: dict[str, Kernel] = {
    "sgd": Blocked(sgd),
    "sgd_momentum": Blocked(sgd_momentum),
    "increment": increment,
    "adam": Blocked(adam),
    "adamw": Blocked(adamw),
    "rmsprop": Blocked(rmsprop),
    "adagrad": Blocked(adagrad),
}
