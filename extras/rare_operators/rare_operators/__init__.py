"""Rarely used operators, functions and losses of PyTorch, for tensor-partitioner's import."""

import torch.nn.functional as F  # noqa: N812

from planner.pytorch.nodes import Extension
from rare_operators.complex_numbers import real_alone
from rare_operators.elements import ELEMENTS
from rare_operators.mapped import mapped_one_by_one
from rare_operators.masks_alike import MasksAlike
from rare_operators.matrices import CALLED
from rare_operators.packed_sequences import packed
from rare_operators.places import PLACES
from rare_operators.rows import ROWS
from rare_operators.selections import spread_selections
from rare_operators.sequences_of_labels import called_loss, ctc_loss
from rare_operators.statistics import STATISTICS

EXTENSION = Extension(
    compositions={**ELEMENTS, **PLACES, **ROWS, "planner::ctc_loss": ctc_loss},
    functions={
        **STATISTICS,
        F.ctc_loss: called_loss,
        "_pack_padded_sequence": packed,
    },
    of_exports={"complex numbers": real_alone},
    rewrites={"selections": spread_selections},
    around={"vmap": mapped_one_by_one, "masks": MasksAlike},
    whole=dict.fromkeys(CALLED),
)
