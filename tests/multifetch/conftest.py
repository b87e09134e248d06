"""Array modules, as the executor's tests have them."""

from tests.executor.conftest import xp  # noqa: F401
