"""What tests of the papers' claims work with."""

import pytest

from results import paper_operators
from tests.tables import kept_tables


@pytest.fixture(scope="module")
def papers():
    """The papers' operators, in the tables until the module's tests are over."""
    with kept_tables():
        paper_operators.register()
        yield
