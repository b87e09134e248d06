"""What a script's commands and variables are is what bash says, where bash is told nothing that the script does not."""

import random
import subprocess

import pytest

from tensor_partitioner.launch.shell import commands_run

NAMES = ("A", "B", "C")


def assignment(chosen):
    name, other = chosen.choice(NAMES), chosen.choice(NAMES)
    return chosen.choice(
        (
            f"{name}={chosen.randrange(4)}  # it's a comment",
            f"export {name}=$(( {other} * 2 ))",
            f'{name}="${{D:-${{E-${other}}}}}1"',
            f"{name}+={chosen.randrange(3)}",
            f"{name}=${{{other}:-7}}",
        )
    )


def condition(chosen):
    name, number = chosen.choice(NAMES), chosen.randrange(4)
    compared = chosen.choice(("-eq", "-ne", "-gt", "-ge", "-lt", "-le"))
    return chosen.choice(
        (f'[ "${name}" = "{number}" ]', f"[[ ${name} != {number} ]]", f'[ -z "${name}" ]', f"[ 2 {compared} {number} ]")
    )


def block(chosen, depth):
    """Return lines of a random script."""
    lines = []
    for _ in range(chosen.randrange(1, 4)):
        kind = chosen.randrange(5) if depth else 0
        if kind < 3:
            lines.append(assignment(chosen))
        elif kind == 3:
            either = f"{chosen.choice(NAMES)}=5 || {chosen.choice(NAMES)}=6"
            both = f"{{ {chosen.choice(NAMES)}=7; {chosen.choice(NAMES)}=8; }}"
            lines.append(f"{condition(chosen)} && {chosen.choice((either, both))}")
        else:
            lines += [f"if {condition(chosen)}; then", *block(chosen, depth - 1)]
            if chosen.random() < 0.5:
                lines += [f"elif {condition(chosen)}", "then", *block(chosen, depth - 1)]
            lines += [*(["else", *block(chosen, depth - 1)] if chosen.random() < 0.5 else []), "fi"]
    return lines


@pytest.mark.parametrize("seed", range(40))
def test_commands_run_as_bash_says(seed):
    chosen = random.Random(seed)
    lines = ["A=0", "B=1", "C=2", *block(chosen, 3), 'echo "--a $A --b $B --c $C"']
    script = "\n".join(lines)
    said = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, timeout=60).stdout
    assert commands_run(script)[-1] == f'echo "{said.removesuffix(chr(10))}"'


def test_what_is_known_only_when_a_script_runs_stays_a_variable():
    script = 'N=1\nif [ -f data ]; then N=2; fi\nM=$(date)\nK=0;P=4;case $1 in a) K=1;; --p) P="$2";; b) J=1;; esac\n'
    script += "L=8;for L in 1 2; do :; done\n"
    assert commands_run(script + "train $N $M $K $J $P $1 ${Q:-3} $L")[-1] == "train $N $M $K $J 4 $1 3 $L"


def test_values_of_several_lines_are_read():
    script = 'A="--x 1\n--y 2"\nif [[ $A != "" ]]; then A="$A\n--z 3"; fi\ntrain $A'
    assert commands_run(script)[-1] == "train --x 1\n--y 2\n--z 3"


def test_slurm_says_how_many_nodes_there_are():
    assert commands_run("#SBATCH --nodes=8\nN=$SLURM_NNODES\ntrain $N")[-1] == "train 8"


def test_quotes_that_are_escaped_take_no_time():
    assert commands_run('\\"' * 100_000) == ['\\"' * 100_000]


def test_values_do_not_grow_without_limit():
    assert len("".join(commands_run("A=aaaa\n" + 'A="$A$A"\n' * 60))) < 1 << 20
