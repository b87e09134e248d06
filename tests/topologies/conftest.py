"""Importing what a test describes."""

import pytest

from tests.extras import add_extra
from topologies.imports import import_machine


@pytest.fixture
def imported(request, tmp_path, monkeypatch):
    """What imports a text; a test's file may name a package of `extras` that is there for it, and a type of device."""
    usual = getattr(request.module, "DEVICE", None)
    if extra := getattr(request.module, "EXTRA", ""):
        add_extra(extra, tmp_path, monkeypatch)

    def run(text, device=usual):
        (tmp_path / "given").write_text(text)
        return import_machine(tmp_path / "given", device)

    return run
