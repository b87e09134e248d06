"""What a trace answers where Python asks a tensor of data for a truth value, as an assertion does."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Collection
from types import CodeType, FrameType

from planner.pytorch.private import FakeTensor

Place = tuple[tuple[CodeType, int], ...]
"""Where Python asks: the code and the instruction of every call, the innermost first."""


class Undecided(Exception):  # noqa: N818 -- no error: the trace begins anew with one answer and the other
    """A tensor was asked for a truth value that no answer is there for."""


class Asked:
    """Within, a tensor of a trace that is asked for a truth value gives the answers in order, then raises an Undecided.

    At places that are `known`, the answer that is there is given every time. `asking` are the others, in order; calls
    are told apart below the one of `root`.
    """

    def __init__(self, answers: Collection[bool], known: dict[Place, bool], root: CodeType) -> None:
        self.answers, self.known, self.root = tuple(answers), known, root
        self.asking: list[Place] = []

    def __enter__(self) -> Asked:
        """Let tensors give the answers."""
        FakeTensor.__bool__ = self._answered  # type: ignore[method-assign, assignment]
        return self

    def __exit__(self, *_: object) -> None:
        """Let tensors be as they were."""
        del FakeTensor.__bool__

    @property
    def _answered(self) -> Callable[[FakeTensor], bool]:
        def answered(tensor: FakeTensor) -> bool:
            if tensor.constant is not None:
                return bool(tensor.constant)
            place = _place(sys._getframe(1), self.root)
            if place in self.known:
                return self.known[place]
            self.asking.append(place)
            if len(self.asking) > len(self.answers):
                raise Undecided
            return self.answers[len(self.asking) - 1]

        return answered


def _place(frame: FrameType | None, root: CodeType) -> Place:
    calls = []
    while frame is not None and frame.f_code is not root:
        calls.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return tuple(calls)


def raised_at(error: BaseException, place: Place) -> int | None:
    """Return the instruction at which the code that asks raises an error by itself, as an assertion does; else None."""
    trace, (code, _) = error.__traceback__, place[0]
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or trace.tb_frame.f_code is not code:
        return None
    return trace.tb_lasti if dis.opname[code.co_code[trace.tb_lasti]] == "RAISE_VARARGS" else None


def always_raises(place: Place, raised: int) -> bool:
    """Return True if the code that asks raises there whenever it has this answer: it asks for nothing in between."""
    code, asked = place[0]
    after = [instruction for instruction in dis.get_instructions(code) if instruction.offset >= asked]
    branch = after[1] if after[0].opname == "TO_BOOL" else after[0]
    if not branch.opname.startswith("POP_JUMP"):
        return False
    start = branch.argval if branch.argval <= raised else branch.offset + 1
    return not any(instruction.opcode in JUMPS for instruction in after if start <= instruction.offset < raised)


JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))
