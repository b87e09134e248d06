"""What a script's commands and variables are is what bash says, where bash is told nothing that the script does not."""

import random
import shlex
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


SCRIPTS = {
    "several on a line": "A=1 B=2; export C=3 D=$A\ntrain $A $B $C $D",
    "a default that is kept": ": ${A:=2}; B=; C=''\ntrain $A ${B:-3} ${C:-4}",
    "an alternative": "A=1; B=''\ntrain ${A:+--a} ${B:+--b} ${C:+--c}",
    "arithmetic": "A=8\ntrain $((A + 010 * (A - 2) % 7)) $(( (A / 2) * $A ))",
    "arrays": "A=(--a 1)  # one\nB=(2\n  --b $((1 * (2))) # two\n)\nA=(--c)\nA+=(--d)\ntrain ${A[@]} ${B[@]}",
    "a function": "A=1\nf() {\n  A=$1; train $A ${2:-7} $B\n}\nfunction g { A=9; }\nB=2\nA=3\nf 4",
    "a function of a line": "launch() { train --a $A \"$@\"; }\nA=5\nlaunch --b c",
    "quotes": "A=2; B='x_'$A'_y'; C=\"it's \\\"$A\\\"\"\ntrain $B",
    "a case": "A=7B\ncase $A in\n  \"7b\" | 8B) B=1 ;;\n  (7[AB]) B=2 ;;\n  *) B=3 ;;\nesac\ntrain $B",
    "lists": "[ 2 -gt 1 ] && [ 1 = 2 ] && A=1 || A=2; B=3 && C=4; false && B=5\ntrain $A $B $C",
    "a list on lines": "[[ a == b || ! 1 -gt 2 ]] &&\n  D=6\n[[ 1 = 2 && 3 = 3 ]] || E=7\ntrain $D $E",
    "a switch": "A=true\nif $A; then C=3; else C=4; fi\ntrain $C",
    "conditions": "B=1\nif [ $B = 1 -a \"x\" != y ]; then E=4; else E=5; fi; test $B -eq 1 && D=5\ntrain $D $E",
    "a comment within": "train --a 1 \\\n  # --b 2 \\\n  --c 3 2>/dev/null || true",
    "a program": "A=1\npython3 - <<EOF\nA = 2\nEOF\ntrain $A",
    "an end": "A=1\nif [ $A = 1 ]; then\n  train small\n  exit 0\nfi\ntrain large",
    "a file": "A=1\ncat <<EOF > a.json\n{\"it's\": {\n}\n}\nEOF\ntrain $A it",
}  # fmt: skip


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_starts_what_bash_does(name, tmp_path):
    script = f'train() {{ echo "train $*"; }}; {SCRIPTS[name]}'
    said = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, timeout=60, cwd=tmp_path)
    started = [command for command in commands_run(SCRIPTS[name]) if command.startswith("train ")]
    assert " ".join(shlex.split(started[-1])) == said.stdout.splitlines()[-1]


def test_what_is_known_only_when_a_script_runs_stays_a_variable():
    script = 'N=1\nif [ -f data ]; then N=2; fi\nM=$(date)\nK=0;P=4;case $1 in a) K=1;; --p) P="$2";; b) J=1;; esac\n'
    script += "L=8;for L in 1 2; do R=$((R + 1)); done\nS=1; ((S++)); if x; then T='--t'; fi\n"
    script += "if ((S == 1)); then U=1; fi\nif [[ (1 = 1 || 1 = 2) && 1 = 3 ]]; then V=1; fi\n"
    script += "A=7b; if [[ $A == ?b ]]; then W=1; fi\n"
    line = "train $N $M $K $J $P $1 ${Q:-3} $L $R $S ${N:-4} $U $V $W "
    assert commands_run(f"{script}{line}$T")[-1] == f"{line.replace('$P', '4').replace('${Q:-3}', '3')}--t"


def test_values_of_several_lines_are_read():
    script = 'A="--x 1\n--y 2"\nif [[ $A != "" ]]; then A="$A\n--z 3"; fi\ntrain $A'
    assert commands_run(script)[-1] == "train --x 1\n--y 2\n--z 3"


def test_slurm_says_how_many_nodes_there_are():
    assert commands_run("#SBATCH --nodes=8\nN=$SLURM_NNODES\ntrain $N")[-1] == "train 8"


def test_quotes_that_are_escaped_take_no_time():
    assert commands_run('\\"' * 100_000) == ['\\"' * 100_000]


CALLS = "".join(f"f{n}() {{ f{n + 1}; f{n + 1}; }}\n" for n in range(30)) + "f0"


def test_values_do_not_grow_without_limit():
    assert len("".join(commands_run("A=aaaa\n" + 'A="$A$A"\n' * 60))) < 1 << 20
    for endless in ("f() { " + "A=$B;" * 3000 + " }\n" + "f\n" * 256, "train " + "$B" * 10**5, "{ " * 10**5, CALLS):
        with pytest.raises(ValueError, match="found more than 8388608 characters"):
            commands_run(f"B={'x' * 8000}\n{endless}")


def test_what_is_long_takes_no_time():
    for text in ("cat <<" * 10**5, "if " + "! " * 10**5, "a \\\n#" + "\\" * 10**5 + "b"):
        assert len(commands_run(text)) < 2
