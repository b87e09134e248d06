"""The report's JSON round trip and what it refuses."""

import dataclasses
import math

import msgspec
import pytest

from planner.report.schema import LinkUse, Report, ReportError, finite, read_reports, write_reports


def test_round_trip(tmp_path, report):
    full = msgspec.structs.replace(
        report,
        links=(LinkUse(name="gpu0->switch0", nbytes=12, utilisation=0.5),),
        losses=(2.5, finite(math.nan)),
        settings={"prefetch": 1, "overlap": True},
    )
    write_reports(tmp_path / "one.json", full)
    write_reports(tmp_path / "two.json", full, report)
    assert read_reports(tmp_path / "one.json") == (full,)
    assert read_reports(tmp_path / "two.json") == (full, report)
    assert full.total_bytes == 16


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ways": (4,)}, r"product 2.*\$\.ways"),
        ({"bytes": ((0, 1),)}, r"2 entries.*\$\.bytes"),
        ({"planned_bytes": ((0, 1), (2,))}, r"\$\.planned_bytes\[1\]"),
        ({"bytes": ((5, 1), (2, 0))}, r"to itself"),
        ({"bytes": ((0, -1), (2, 0))}, r">= 0"),
        ({"arena_bytes": (1, 2, 3)}, r"\$\.arena_bytes"),
        ({"format": "report/9"}, r"report/1"),
    ],
)
def test_contradictions_are_refused(report, change, message):
    fields = {name: getattr(report, name) for name in report.__struct_fields__}
    with pytest.raises(ReportError, match=message):
        Report(**{**fields, **change})


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b'"workers": 2', b'"workers": "two"', r"bad\.json: Expected `int`.*\$\.workers"),
        (b'"workers": 2', b'"workers": 2' + b"0" * 400, r"bad\.json: Expected `int` <= .*\$\.workers"),
        (b'"workers": 2', b'"workerz": 2', r"bad\.json: .*workerz"),
        (b'"source": "simulator"', b'"source": "guess"', r"bad\.json: .*\$\.source"),
        (b'"ways"', b"ways", r"bad\.json: JSON is malformed"),
        (b"report/1", b"report/2", r"bad\.json: .*report/1"),
    ],
)
def test_bad_files_are_named(tmp_path, report, old, new, message):
    write_reports(tmp_path / "bad.json", report)
    text = (tmp_path / "bad.json").read_bytes()
    assert old in text
    (tmp_path / "bad.json").write_bytes(text.replace(old, new, 1))
    with pytest.raises(ReportError, match=message):
        read_reports(tmp_path / "bad.json")


def test_truncated_file(tmp_path, report):
    write_reports(tmp_path / "cut.json", report)
    text = (tmp_path / "cut.json").read_bytes()
    (tmp_path / "cut.json").write_bytes(text[: len(text) // 2])
    with pytest.raises(ReportError, match=r"cut\.json: .*truncated"):
        read_reports(tmp_path / "cut.json")


def test_records_are_frozen(report):
    with pytest.raises((AttributeError, dataclasses.FrozenInstanceError)):
        report.workers = 3
