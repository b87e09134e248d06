"""A plan in the words of other engines: what the file says, what is said before it is written, what is refused."""

import json
from dataclasses import replace

import pytest

import planner
from planner.errors import PlanError
from planner.export.exported import export
from planner.export.targets import TARGETS, Mesh, joined, mesh_of, redistributed
from planner.graph.ir import Entry, Tensor
from planner.layout import PARTIAL, REPLICATE, Shard
from tensor_partitioner.commands.export import main as export_main
from tests.launcher import exit_status

S0, S1, R = Shard(0), Shard(1), REPLICATE


def plan(name="mlp-2-16", ways=(2, 2), **options):
    searched = {key: options.pop(key) for key in ("searcher", "placements") if key in options}
    return planner.plan(planner.model(name, **{"batch": 8} | options), ways=ways, **searched)


def named(parallel):
    return planner.plan(planner.model("mlp-2-16", batch=8), parallel=parallel)


def written(exported):
    file = {}
    constants = exported.source("exported").split("import ")[-1].split("\n\n\n")[0].partition("\n")[2]
    exec(constants, file)
    return file


TARGET = """
from pathlib import Path
from planner.export.targets import register_target

@register_target("rows", "An engine of rows", Path(__file__).with_name("rows.txt"))
def rows(signature):
    return tuple(name for name in signature.description.strategies if name == "i"), "rows only"
"""


def test_a_target_in_a_users_file(tmp_path, capsys):
    plan("mlp-2-16", (2,)).save(tmp_path / "plan.json")
    (tmp_path / "rows.py").write_text(TARGET)
    (tmp_path / "rows.txt").write_text("# @MODEL@ for @WORKERS@: @PARAMETERS@")
    exporting = (str(tmp_path / "plan.json"), "--to", "rows", "-o", str(tmp_path / "placed.py"))
    assert exported(*exporting) == 2
    assert (
        "expected a target among fsdp2, megatron, torchtitan, deepspeed, torchrun, dtensor, jax"
        in capsys.readouterr().err
    )
    try:
        assert exported(*exporting, "--operators", str(tmp_path / "rows.py")) == 0
    finally:
        TARGETS.pop("rows", None)
    assert (tmp_path / "placed.py").read_text().startswith("# a model for 2: {")
    assert "An engine of rows" in capsys.readouterr().out


@pytest.mark.parametrize("ways", [(2,), (4,), (2, 2)])
def test_data_parallelism_moves_the_same_bytes_everywhere(ways):
    planned = plan("mlp-3-64", ways, searcher="data-parallel", batch=16)
    weights = 3 * 64 * 64 * 4
    workers = planned.workers
    exported = export(planned, "dtensor")
    assert exported.mesh.ways == (workers,)  # no tensor tells the steps apart
    assert {parameter.placements for parameter in exported.parameters.values()} == {(R,)}
    assert 2 * (workers - 1) * weights <= exported.target_bytes <= planned.total_bytes
    assert exported.target_bytes >= 0.99 * planned.total_bytes


@pytest.mark.parametrize(
    ("have", "want", "expected"),
    [
        ((S0, R), (S0, R), 0),
        ((R, R), (S0, S1), 0),
        ((S0, R), (R, R), 4 * 32),  # each of four workers lacks half of 64 bytes
        ((S0, S0), (R, R), 4 * 48),
        ((S0, R), (S1, R), 4 * 16),
        ((PARTIAL, R), (S0, R), 4 * 32),
        ((PARTIAL, R), (R, R), 4 * 64),
        ((S0, PARTIAL), (S0, R), 4 * 32),
    ],
)
def test_bytes_of_redistribution(have, want, expected):
    tensor = Tensor("t", (4, 4), "float32", "activation")
    assert redistributed(tensor, have, want, Mesh((2, 2), ((0,), (1,)))) == expected


def test_steps_are_one_axis_where_no_tensor_tells_them_apart():
    planned = plan(ways=(2, 2, 2))
    layouts = {"a": (S0, S0, S1), "b": (R, R, S1), "c": (S1, R, R)}
    assert mesh_of(replace(planned, layouts=layouts), "ab") == Mesh((4, 2), ((0, 1), (2,)))
    assert mesh_of(replace(planned, layouts=layouts), "abc") == Mesh((2, 2, 2), ((0,), (1,), (2,)))
    assert mesh_of(replace(planned, layouts=layouts), "ab").axes == ("step1_2", "step3")


def test_dimensions_that_are_joined():
    assert joined((S0, Shard(2)), ((0,), (1, 2)), (8, 3, 4)) == ((S0, S1), False)
    assert joined((S0, Shard(2)), ((0,), (1, 2)), (8, 1, 4)) == ((S0, S1), True)


def test_the_file_has_every_parameter_and_all_data():
    planned = plan("transformer-1-64", sequence=8, vocabulary=32)
    for target in ("dtensor", "jax"):
        file = written(export(planned, target))
        tensors = planned.graph.tensors.items()
        weights = {name for name, tensor in tensors if tensor.role == "weight" and tensor.init is not None}
        assert file["PARAMETERS"].keys() == weights
        assert file["DATA"].keys() == {"tokens", "labels"}
        assert list(file["WAYS"].values()) == list(planned.ways)
        for name, text in file["PARAMETERS"].items():
            assert text == ",".join(map(str, planned.layouts[name])) or "R" in text, name


def test_what_is_refused():
    with pytest.raises(PlanError, match=r"images: dimension 0 must be divisible by 4, found 6"):
        export(plan(ways=(4,), batch=6, searcher="data-parallel"), "dtensor")
    with pytest.raises(PlanError, match="JAX cannot run a plan with pipeline stages"):
        export(named("pp=2,dp=2"), "jax")
    with pytest.raises(PlanError, match="cannot run dp=2,tp=2,zero=3: use FSDP2 for ZeRO"):
        export(named("dp=2,tp=2,zero=3"), "dtensor")
    assert export(named("dp=2,tp=2,zero=3"), "jax").target_bytes > 0
    with pytest.raises(PlanError, match="at least 2 workers"):
        export(planner.plan(planner.model("mlp-2-16"), workers=1), "jax")
    planned = plan()
    entries = {"lstm.weight_ih_l0": Entry("fc1.w", (16, 16), "float32")}
    recurrent = replace(planned, graph=replace(planned.graph, entries=entries))
    with pytest.raises(PlanError, match="lstm: PyTorch's DTensor has no recurrent layers"):
        export(recurrent, "dtensor")
    assert export(recurrent, "jax").parameters.keys() == {"lstm.weight_ih_l0"}


def test_the_command(tmp_path, capsys):
    saved, file, table = tmp_path / "plan.json", tmp_path / "split.py", tmp_path / "table.json"
    planned = plan()
    planned.save(saved)
    assert exported(saved, "--to", "dtensor", "-o", file, "--json", table) == 0
    shown = capsys.readouterr().out
    assert f"{planned.total_bytes:,}" in shown
    data = json.loads(table.read_text())
    assert data["plan_bytes"] == planned.total_bytes
    assert sum(kind["target_bytes"] for kind in data["operators"].values()) == data["target_bytes"]
    assert f"{data['target_bytes']:,}" in shown
    compile(file.read_text(), "split.py", "exec")
    assert "from split import distribute" in file.read_text()
    assert exported(saved, "--to", "jax", "--workers", "4") == 2
    assert "expected no --workers" in capsys.readouterr().err


def test_of_convolutions_only_samples_stay_split():
    planned = plan("wresnet-14-1", image=8)
    kinds = export(planned, "dtensor").kinds
    assert any("i" in choice for node in planned.graph.nodes for choice in planned.strategies[node.name])
    assert "samples only" in kinds["convolution"].why
    assert "gathered" in kinds["batch_norm"].why
    assert sum(kind.plan_bytes for kind in kinds.values()) == planned.total_bytes
    assert export(planned, "jax").kinds["convolution"].why == ""
    convolutions = [node for node in planned.graph.nodes if node.op == "convolution"]
    weights = {node.inputs[1] for node in convolutions}
    assert any(planned.layouts[name] != (R, R) for name in weights)
    exported = export(planned, "dtensor")
    assert {exported.parameters[name].placements for name in weights} == {(R, R)}
    assert exported.notes.keys() >= {name for name in weights if planned.layouts[name] != (R, R)}
    assert {str(tensor) for tensor in exported.data["images"].placements} <= {"S0", "R"}
    assert any(parameter.placements != (R, R) for parameter in export(planned, "jax").parameters.values())


def test_the_command_of_all_targets(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("planner.export.targets.entry_points", lambda **named: ())
    saved, small = tmp_path / "plan.json", ("--batch", 8, "--sequence", 16, "--vocabulary", 48, "--heads", 4)
    planner.plan(planner.model("mlp-2-16", batch=8), parallel="dp=2,tp=2").save(saved)
    named = ("transformer-1-64", *small, "--parallel", "dp=2,tp=2")
    assert exported(*named, "--to", "megatron") == 0
    assert "--tensor-model-parallel-size 2" in capsys.readouterr().out
    assert exported(*named, "--to", "torchrun") == 0
    planned = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("plan "))
    as_decided = {*map(str, small), "--dtype", "mixed", "--optimizer", "adamw"}
    assert {*planned.split()} == as_decided | {"plan", "transformer-1-64", "--parallel", "dp=2,tp=2", "-o", "plan.json"}
    assert exported(*named, "--to", "torchrun", "--topo", "dgx-a100-pod-2") == 0
    assert exported(*named, "--to", "dtensor", "-o", tmp_path / "placed.py", "--json", tmp_path / "t.json") == 0
    assert json.loads((tmp_path / "t.json").read_text())["plan_bytes"] > 0
    capsys.readouterr()
    assert exported(saved, "--to", "torchrun") == 0
    assert f"torchrun --nnodes 1 --nproc-per-node 4 -m executor {saved}" in capsys.readouterr().out
    assert exported(saved, "--to", "megatron") == 2
    assert "Megatron-LM cannot run dp=2,tp=2: it builds stacks" in (said := capsys.readouterr().err)
    assert said.endswith("; deepspeed, torchrun can\n")
    assert exported(saved, "--to", "chakra") == 2
    assert "jax (pip install extras/chakra adds chakra), found 'chakra'" in capsys.readouterr().err
    assert exported(saved, "--to", "fdsp2") == 2
    assert "did you mean fsdp2?" in capsys.readouterr().err
    assert exported("mlp-2-16", "--to", "fsdp2") == 2
    assert "expected a plan, a decision, or a model with --parallel" in capsys.readouterr().err


def exported(*arguments):
    return exit_status(export_main, [str(argument) for argument in arguments])


def test_the_example_calls_an_input_by_its_name():
    graph = planner.model("transformer-2-64", batch=4, heads=4, sequence=8, vocabulary=32)
    exported = export(planner.plan(graph, parallel="tp=2"), "dtensor")
    name = next(iter(exported.data))
    assert name != "x"
    assert f'function(module(distributed(mesh, "{name}", x)), ' in exported.source("split")
