"""Sets of measured runs: what is read, what is asked of the predictor, and that nothing ends in a traceback."""

import contextlib
import csv
import io
import json
import random
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings, strategies as st

from results.experiment import ROOT, read_data
from results.scoreboard import __main__ as command, gpus, machines, scored, sealed
from results.scoreboard.cells import SetError, read_count
from results.scoreboard.measurements import measured_s
from results.scoreboard.predictions import predict_row
from results.scoreboard.row import FIELDS, NAMES, Row
from results.scoreboard.runs import run_of
from results.scoreboard.sets import HERE, find_sets, own_sets, read_set
from tests.launcher import in_one_line

FOLDER = ROOT / "results" / "scoreboard"
ROWS = {
    "korthikanti": 8, "korthikanti_memory": 12, "megatron_2021": 10, "megatron_2021_zero3": 12, "neusight": 52,
    "tensorflow_2017": 12, "vtrain_single_node": 600, "llm_foundry": 209, "nemo_h100": 64, "grok_h100": 18,
    "megatron_bridge": 41, "megatron_bridge_experts": 41, "nemo_gb200": 24, "bigscience_early": 56, "nemo_summary": 12,
    "torchtitan": 19,
}  # fmt: skip


def written(folder, table, description=None, name="runs"):
    (folder / f"{name}.csv").write_text(table)
    if description is not None:
        (folder / f"{name}.yaml").write_text(description if isinstance(description, str) else yaml.dump(description))
    return read_set(folder / f"{name}.csv")


def only(measured):
    (row,) = measured.rows
    return row


@pytest.mark.parametrize("name", own_sets())
def test_own_sets_are_read_in_full(name):
    (path,) = find_sets(name)
    measured = read_set(path)
    assert len(measured.rows) == ROWS[name]
    assert measured.refused == ()
    assert measured.notes == ()
    assert measured.source


def test_runs_that_are_not_measured_are_predicted_with_a_range(tmp_path):
    table = "model,gpu,devices,batch,precision\ngpt2,A100,8,64,bf16\ngpt2,A100,8,64,fp4\n"
    (tmp_path / "later.csv").write_text(table)
    assert sealed.main([str(tmp_path / "kept"), str(tmp_path / "later.csv")]) == 0
    with (tmp_path / "kept" / "later.csv").open(encoding="utf-8") as file:
        first, second = csv.DictReader(file)
    assert 0 < float(first["low_s"]) < float(first["seconds"]) < float(first["high_s"])
    assert "fp4" in second["why"]


def test_no_set_is_fitted_on_more_than_a_third():
    for name in own_sets():
        rows = read_set(*find_sets(name)).rows
        fitted = [row for row in rows if row.part == "fit"]
        assert len(fitted) <= len(rows) / 3 or name in ("tensorflow_2017", "megatron_2021_zero3")


def test_a_framework_is_the_one_whose_name_says_most_of_it(tmp_path):
    changed = "megatron-2021,overlaps-gradients=yes"
    names = ["Megatron-LM", "Megatron-LM of 2021, DDP", changed, "DeepSpeed 0.9", "DeepSpeed-Megatron"]
    table = "model,gpu,seconds,devices,batch,framework\n" + "".join(f'gpt2,A100,1,8,8,"{name}"\n' for name in names)
    measured = written(tmp_path, table)
    stacks = [run_of(row, measured.folder).stack for row in measured.rows]
    assert stacks == ["megatron", "megatron-2021", changed, "megatron-deepspeed", "megatron-deepspeed"]


def test_a_split_follows_from_its_seed(tmp_path):
    table = "model,gpu,seconds\n" + "gpt2,A100,1\n" * 30
    parts = []
    for seed in (0, 0, 1):
        measured = written(tmp_path, table, {"fit": {"share": 1 / 3, "seed": seed}})
        parts.append([row.part for row in measured.rows])
    assert parts[0] == parts[1] != parts[2]
    assert all(part.count("fit") == 10 for part in parts)


def test_seconds_of_megatron_2021_are_those_of_the_paper():
    """The operations that it counts over the rate that it says: "s/step" as its readers compute it."""
    expected = [3.53, 3.70, 3.70, 9.40, 14.45, 16.06, 24.82, 37.61, 54.08, 102.63]
    measured = read_set(*find_sets("megatron_2021"))
    seconds = [measured_s(row, run_of(row, measured.folder)) for row in measured.rows]
    assert seconds == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize(
    ("text", "count"), [("51,200", 51200), ("8.0", 8), ("51.2k", 51200), ("1_024", 1024), ("2K", 2000)]
)
def test_counts(text, count):
    assert read_count(text) == count


@pytest.mark.parametrize(
    ("cell", "seconds"),
    [("1.5", 1.5), ("1500 ms", 1.5), ("1,500ms", 1.5), ("2,5", 2.5), ("1.5 s (±3%)", 1.5), ("2 min", 120)],
)
def test_units_in_cells(tmp_path, cell, seconds):
    assert only(written(tmp_path, f'gpu,seconds\nA100,"{cell}"\n')).seconds == pytest.approx(seconds)


def test_throughputs_are_seconds(tmp_path):
    common = "gpt3-13b,A100,64,8,2048,64,"
    header = "model,gpu,devices,tp,sequence,global_batch,"
    flop = run_of(only(written(tmp_path, f"{header}seconds\n{common}1\n")), tmp_path).size.model_flop(64)
    for name, value in {
        "samples_per_s": 64 / 5, "tokens_per_s": 64 * 2048 / 5, "tokens_per_s_per_device": 2048 / 5,
        "model_flop_per_s": f"{flop / 5 / 64 / 1e12} Tflop/s", "mfu": flop / 5 / 64 / 312e12, "seconds": 5.0,
        "samples_per_s_per_device": 1 / 5, "mfu (%)": flop / 5 / 64 / 3.12e12,
    }.items():  # fmt: skip
        row = only(written(tmp_path, f"{header}{name}\n{common}{value}\n"))
        assert measured_s(row, run_of(row, tmp_path)) == pytest.approx(5.0, rel=1e-3), name


@pytest.mark.parametrize(
    ("table", "described", "message"),
    [
        ("", None, "expected a line of column names and rows, found 0 lines"),
        ("model,colour\ngpt2,red\n", None, "expected a column of what was measured"),
        (
            "gpu,seconds\nA100,1\n",
            {"columns": {"seconds": "it"}},
            "columns: seconds: expected one of the CSV's columns",
        ),
        ("gpu,seconds\nA100,1\n", {"columns": {"secconds": "seconds"}}, "expected a field of a row, found 'secconds'"),
        ("gpu,seconds\nA100,1\n", {"constants": {"tp": "many"}}, "constants: tp: expected a whole number from 1"),
        ("gpu,seconds\nA100,1\n", {"cases": {"x": {}}}, "cases: expected one of gpu, seconds, found 'x'"),
        ("gpu,seconds\nA100,1\n", {"fit": "some"}, "fit: expected none, all or"),
        ("gpu,seconds\nA100,1\n", {"format": "topology/2"}, "expected a description of the CSV of this name"),
        ("gpu,secnds\nA100,1\n", None, "found gpu, secnds: did you mean seconds?"),
        ("gpu,seconds\nA100,1\n", {"fit": {"share": 2}}, "fit: expected a share from 0 to 1, found 2"),
        (
            "gpu,seconds\nA100,1\n",
            {"columns": {"seconds": {"column": "seconds", "unit": "year"}}},
            "expected a unit of",
        ),
        ("gpu,seconds\nA100,1\n", {"columns": ["a"]}, "Expected `object`, got `array`"),
        ("gpu,seconds\nA100,1\n", "a: [1", "while parsing"),
        ("gpu,seconds\nA100,1\n", "- 1\n", "Expected `object`, got `array`"),
        ("gpu,seconds\nA100,1\n", {"rows": "elsewhere.csv"}, "found no such file"),
    ],
)
def test_a_set_that_cannot_be_read_is_one_line(tmp_path, table, described, message):
    with in_one_line(SetError, re.escape(message)) as refused:
        written(tmp_path, table, described)
    assert "runs." in str(refused.value)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ("gpt2,A100,8,3,8,1", "expected devices in multiples of tp 3 x pp 1 x cp 1, found 8"),
        ("gpt2,A100,8,1,7,1", "expected a batch of whole shares of 8 data parallel workers, found 7 samples"),
        ("mine,A100,8,1,8,1", "model 'mine' is not known: expected its layers, hidden and heads beside it"),
        ("lama-2-7b,A100,8,1,8,1", "heads beside it: did you mean llama-2-7b"),
        ("gpt2,Banana,8,1,8,1", "no type of device is a Banana"),
        ("gpt2,H1000,8,1,8,1", "or a machine of your own: did you mean h100"),
        ("gpt2,,8,1,8,1", "expected a machine or a type of GPU, found neither"),
        (",A100,8,1,8,1", "expected a model's name, or layers and hidden; found neither"),
        ("gpt2,A100,8,1,,1", "expected a global batch, or a micro-batch and how many there are, found neither"),
    ],
)
def test_a_row_that_cannot_be_expressed_says_why(tmp_path, cells, message):
    row = only(written(tmp_path, f"model,gpu,devices,tp,global_batch,seconds\n{cells}\n"))
    prediction = predict_row(row, tmp_path)
    assert message in prediction.why
    assert not prediction.failed


@pytest.mark.parametrize(
    ("columns", "cells", "message"),
    [
        ("tp,seconds", "8,0", "column 'seconds': expected a number above 0, found '0'"),
        ("tp,seconds", "8,", "expected a time, memory or OOM, found nothing that was measured"),
        ("tp,seconds,oom", "8,1,yes", "expected seconds or out of memory, found both"),
        ("tp,mfu", "8,550", "column 'mfu': expected a share of at most 100%, found '550'"),
        (
            "precision,seconds",
            "bf61,1",
            "expected mixed, mixed-float16, float32, mixed-float8, pure bf16, found 'bf61': ",
        ),
        ("zero,seconds", "9,1", "column 'zero': expected 0, 1, 2, 3, found '9'"),
        ("recompute,seconds", "partly,1", "column 'recompute': expected none, full, selective, found 'partly'"),
    ],
)
def test_a_row_that_cannot_be_read_says_why(tmp_path, columns, cells, message):
    (refused,) = written(tmp_path, f"{columns}\n{cells}\n").refused
    assert refused.why.startswith("row 2: ")
    assert message in refused.why


def test_bfloat16_is_mixed_unless_it_is_said_pure(tmp_path):
    rows = written(tmp_path, "precision,seconds\nbf16,1\nbfloat16,1\nmixed,1\npure bf16,1\n").rows
    assert [row.precision for row in rows] == ["mixed"] * 3 + ["bfloat16"]


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("NVIDIA_A100-SXM4-80GB", "a100-sxm4-80gb"), ("A100 40GB", "a100-sxm4-40gb"), ("A100", "a100-sxm4-80gb"),
        ("NVIDIA_A100_80GB_PCIe", "a100-pcie-80gb"), ("NVIDIA H100 80GB HBM3", "h100-sxm5-80gb"),
        ("H100 PCIe", "h100-pcie-80gb"), ("Tesla_V100-PCIE-32GB", "v100-pcie-32gb"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"), ("4090", "rtx-4090"), ("AMD_Instinct_MI250", "mi250"),
        ("h200", "h200-sxm5-141gb"), ("B200", "b200-sxm-180gb"), ("mi300x", "mi300x"), ("Tesla P100", "p100-sxm2-16gb"),
    ],
)  # fmt: skip
def test_gpus_by_their_names(name, device):
    assert gpus.find_device(name) == device


@pytest.mark.parametrize(
    ("row", "devices", "count"),
    [
        ({"gpu": "A100"}, 8, 8), ({"gpu": "A100"}, 16, 16), ({"gpu": "H100"}, 2048, 2048), ({"gpu": "L4"}, 1, 1),
        ({"gpu": "H200", "network": "400"}, 64, 64), ({"gpu": "MI300X"}, 32, 32), ({"machine": "p4d-nodes-K"}, 24, 24),
        ({"machine": "dgx-a100"}, 64, 64), ({"gpu": "V100-SXM2-16GB"}, 9, 16),
        ({"gpu": "RTX 3090", "per_node": 2}, 2, 2),
    ],
)  # fmt: skip
def test_machines_by_rule(row, devices, count):
    machine, _ = machines.machine_of(Row(1, **row), devices, Path())
    assert machine.devices == count


def test_a_network_as_it_is_said():
    """100 Gbit/s for each of 8 GPUs is half of what 8 adapters of 200 carry."""
    rates = []
    for network in ("100", "200", "ib-hdr"):
        machine, _ = machines.machine_of(Row(1, gpu="A100", network=network), 16, Path())
        rates.append(sum(link.bandwidth_bytes_per_s for link in machine.built.links if "network" in link.ends))
    assert rates[0] == pytest.approx(rates[1] / 2)
    assert rates[1] == pytest.approx(rates[2])


NASTY = st.sampled_from(
    ["", "8", "-1", "0", "1e400", "nan", "OOM", "x", "A100", "gpt2", "2,5", "\x00", "½", "1" * 40, '"', "🙂"]
)


@given(st.lists(st.tuples(st.sampled_from(sorted(NAMES)), NASTY), min_size=1, max_size=8), st.booleans())
@settings(max_examples=150, deadline=None)
def test_no_table_ends_in_a_traceback(tmp_path_factory, cells, with_model):
    folder = tmp_path_factory.mktemp("set")
    if with_model:
        cells = [("model", "gpt2"), ("gpu", "A100"), ("global_batch", "8"), *cells]
    text = io.StringIO()
    csv.writer(text).writerows(zip(*cells, strict=True))
    status, printed = 0, io.StringIO()
    (folder / "set.csv").write_text(text.getvalue())
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        status = command.main([str(folder / "set.csv"), "--check"])
    assert status in {0, 2}
    assert all(re.match(r"error: |set: |every row", line) for line in printed.getvalue().splitlines())


def test_every_field_has_a_place_in_the_how_to():
    page = (ROOT / "docs" / "how-to" / "scoreboard.md").read_text()
    assert [name for name in FIELDS if not re.search(rf"`{name}`|\b{name.replace('_', ' ')}", page)] == []


def test_the_command_scores_a_set_from_elsewhere(tmp_path):
    (tmp_path / "mine.csv").write_text(
        "model,gpu,devices,tp,global_batch,micro_batch,seconds,memory GiB\n"
        "gpt2,A100,8,1,64,8,0.5,12\ngpt2,A100,8,2,64,8,0.9,\ngpt2-xl,A100,8,1,512,64,OOM,\nnone,A100,8,1,8,1,1,\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "results.scoreboard", "mine.csv", "--json", "scores.json"],
        cwd=tmp_path, env={"PYTHONPATH": str(ROOT), "PATH": ""}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "mine: 3 of 4 rows expressed" in done.stdout
    (row_set,) = json.loads((tmp_path / "scores.json").read_text())["sets"]
    assert (row_set["rows"], row_set["expressed"], row_set["failed"]) == (4, 3, 0)
    assert [entry["lines"] for entry in row_set["not_expressed"]] == [[5]]
    assert row_set["scores"]["all"]["time"]["rows"] == row_set["scores"]["all"]["null"]["rows"] == 2
    assert row_set["scores"]["all"]["null_of_others"]["rows"] == 2
    assert row_set["scores"]["all"]["memory"]["rows"] == 1
    assert row_set["scores"]["all"]["fits"]["of_those_out_of_memory"] == [1, 1]
    assert row_set["scores"]["test"]["time"]["groups"] == 1


def test_experts_are_shared_out_among_data_parallel_devices():
    """Data parallel devices are all that have samples of their own, or those alone who have the same experts."""
    row = Row(line=2, model="mixtral-8x7b", gpu="H100", devices=64, tp=4, ep=8, global_batch=64, micro_batch=1)
    for dp in (None, 16, 2):
        (way,) = run_of(replace(row, dp=dp), Path()).ways
        assert (way.dp, way.ep, way.tp, way.workers) == (16, 8, 4, 64)
    with pytest.raises(SetError, match="expected ep that divides 16 data parallel devices, found 32"):
        run_of(replace(row, ep=32), Path())
    sized = replace(row, model="mine", layers=4, hidden=1024, heads=16, experts=8, chosen=1, capacity=1.5)
    options = dict(run_of(sized, Path()).options)
    assert (options["experts"], options["chosen_experts"], options["capacity"], options["gated"]) == (8, 1, 1.5, False)
    shared, whole = (predict_row(replace(sized, ep=ep, seconds=1.0), Path()) for ep in (8, 1))
    assert shared.needed_bytes < whole.needed_bytes


def test_the_null_of_others_knows_nothing_of_a_row(tmp_path):
    """Of two runs alike but for their seconds, 1 and 2, each is predicted to take what the other did."""
    (tmp_path / "two.csv").write_text("model,gpu,devices,global_batch,seconds\n" + "".join(
        f"gpt2,A100,8,64,{seconds}\n" for seconds in (1, 2)
    ))  # fmt: skip
    (measured,) = (read_set(path) for path in find_sets(str(tmp_path / "two.csv")))
    of_all = scored.score(measured)["scores"]["all"]
    assert of_all["null_of_others"]["error_mean"] == pytest.approx((1.0 + 0.5) / 2)
    assert of_all["null"]["error_mean"] < of_all["null_of_others"]["error_mean"]


def test_the_command_refuses_in_one_line(tmp_path, capsys):
    assert command.main([str(tmp_path / "none.csv")]) == 2
    (tmp_path / "bad.csv").write_text("a,b\n1,2\n")
    assert command.main([str(tmp_path / "bad.csv")]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line[:7] for line in lines] == ["error: "] * 2


@pytest.mark.parametrize("number", range(3))
def test_the_published_scores_are_those_of_the_predictor(number):
    """A few rows drawn from the data, predicted again."""
    data = read_data(FOLDER)["sets"]
    chosen = random.Random(number).choice([entry for entry in data if entry["scores"]["all"]["time"]["rows"]])
    prediction = random.Random(number).choice([row for row in chosen["predictions"] if "error" in row])
    measured = read_set(HERE / f"{chosen['set']}.yaml")
    row = next(row for row in measured.rows if row.line == prediction["line"])
    predicted = predict_row(row, measured.folder)
    assert predicted.predicted_s == pytest.approx(prediction["predicted_s"], rel=1e-4)
    assert predicted.measured_s == pytest.approx(prediction["measured_s"], rel=1e-4)
