"""The zoo: model names, and the functions that build them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from planner.errors import GraphError
from planner.graph.ir import Graph
from planner.graph.optimizers import CONSTANTS, constants_of
from planner.models import classifiers, huggingface, llama, sequences
from planner.models.options import CHOICES, Published, Tokens, Training
from tensor_partitioner.display import nearest
from topologies import Machine


@dataclass(frozen=True, slots=True)
class Family:
    """A family of models: the pattern of its names, an example, its builder, and its options.

    `build` takes the groups of `pattern` as text, then an instance of `options`, a frozen dataclass. If a family
    `repeats`, the first group is the number of layers, which are identical except for the first and last. `depths`
    lists all names of a family with fixed names, with the layers of each unless its option `layers` overrides them.
    `pattern_of` returns the number of leading layers that differ from the others, and the period of those. If not
    `is_listed`, the example stands for the names.
    """

    pattern: str
    example: str
    build: Callable[..., Graph]
    options: type[Training] = Training
    repeats: bool = False
    depths: Mapping[str, int] = field(default_factory=dict)
    pattern_of: Callable[[str], tuple[int, int]] = lambda _: (0, 1)
    is_listed: bool = True

    @classmethod
    def of_sizes(
        cls,
        sizes: Mapping[str, sequences.GptSize] | Mapping[str, llama.LlamaSize],
        build: Callable[..., Graph],
        options: type[Training],
    ) -> Family:
        """Return a family of these names; the first is its example."""
        depths = {name: size.layers for name, size in sizes.items()}
        return cls(f"({'|'.join(map(re.escape, depths))})", next(iter(depths)), build, options, depths=depths)

    @property
    def names(self) -> tuple[str, ...]:
        """All names, or the example."""
        return tuple(self.depths) if self.depths and self.is_listed else (self.example,)


MOST = 10**9 - 1
NUMBER = r"[1-9]\d{0,8}"
SIZES = rf"-({NUMBER})-({NUMBER}k?)"


FAMILIES: dict[str, Family] = {
    "mlp-L-H": Family(f"mlp{SIZES}", "mlp-4-8192", classifiers.build_mlp, classifiers.MlpOptions),
    "cnn-L-C": Family(f"cnn{SIZES}", "cnn-5-2048", classifiers.build_cnn, classifiers.CnnOptions),
    "wresnet-L-W": Family(classifiers.PATTERN, "wresnet-152-10", classifiers.build_wresnet, classifiers.WresnetOptions),
    "transformer-L-D": Family(
        f"transformer{SIZES}", "transformer-24-2048", sequences.build_transformer, Tokens, repeats=True
    ),
    "llama-L-D": Family(f"llama{SIZES}", "llama-32-4096", llama.build_sized, llama.SizedOptions, repeats=True),
    "gpt-SIZE": Family.of_sizes(sequences.SIZES, sequences.build_published, Published),
    "llama-SIZE": Family.of_sizes(llama.SIZES, llama.build, Published),
    "mixtral-SIZE": Family.of_sizes(llama.EXPERTS, llama.build_experts, llama.Experts),
    "hf:ORG/NAME": Family(
        huggingface.PATTERN,
        "hf:Qwen/Qwen2.5-0.5B",
        huggingface.build,
        llama.Experts,
        depths=huggingface.Depths(),
        pattern_of=huggingface.pattern_of,
        is_listed=False,
    ),
}
"""Families by spelling. Add to it to give names to your own models; `families` adds those of installed packages."""

GROUP = "tensor_partitioner.models"
"""The entry point group of packages that add families: each names a mapping of `Family` by spelling."""


def families() -> Mapping[str, Family]:
    """Return all families by spelling."""
    return FAMILIES | _installed()


@cache
def _installed() -> dict[str, Family]:
    added = dict[str, Family]()
    for entry in entry_points(group=GROUP):
        try:
            added |= entry.load()
        except (ImportError, AttributeError, TypeError) as error:
            raise ImportError(f"the models of {entry.value} could not be loaded: {error}") from error
    return added


def build(name: str, **options: object) -> Graph:
    """Return the checked training graph of a zoo model: forward, backward and weight update.

    `options` are fields of the family's options. A width may be written in units of 1024: "mlp-4-8k". Raises GraphError
    for a name that matches no family, for options that the family does not have, and for values out of range.
    """
    for spelling, family in families().items():
        if match := re.fullmatch(family.pattern, name, re.ASCII):
            return built_as_asked(name, family.build(*match.groups(), _options(spelling, family, options)), options)
        if re.fullmatch(family.pattern, re.sub(r"\d+", "1", name), re.ASCII):
            raise GraphError(f"{name}: the numbers in {spelling} must be from 1 to {MOST}, without leading zeros")
    known = ", ".join(_spelled(spelling, family) for spelling, family in families().items())
    word = re.split(r"[^a-z]", name.lower(), maxsplit=1)[0]
    alike = [known for known in known_names() if word and known.startswith(word)]
    hint = nearest(name, known_names()) or (f": did you mean {', '.join(alike)}?" if alike else "")
    more = "" if entry_points(group=GROUP) else "; networks of papers: pip install extras/paper_models"
    raise GraphError(f"unknown model {name!r}{f'{hint} The' if hint else '; the'} zoo has {known}{more}")


def known_names() -> tuple[str, ...]:
    """Return the example of every family, or all its names if its sizes are published."""
    return tuple(name for family in families().values() for name in family.names)


def is_zoo_name(name: str) -> bool:
    """Return True if a family has a model of this name."""
    if huggingface.is_other(name):
        return False
    return any(re.fullmatch(family.pattern, name, re.ASCII) for family in families().values())


def with_few_layers(
    name: str, options: Mapping[str, object], few: int
) -> tuple[str, dict[str, object], tuple[int, ...]]:
    """Return the model with at most `few` layers, its options, and the original numbers of layers.

    A model whose depth cannot vary is returned unchanged, with (). Leading layers without experts are kept besides.
    """
    for family in families().values():
        match = re.fullmatch(family.pattern, name, re.ASCII)
        if match and family.repeats:
            layers, dense = int(match[1]), int(str(options.get("dense_layers") or 0))
            kept, runs = _few(layers, few, dense)
            return f"{name[: match.start(1)]}{kept}{name[match.end(1) :]}", dict(options), runs
        if match and family.depths:
            layers = int(str(options.get("layers") or family.depths[name]))
            kept, runs = _few(layers, few, *family.pattern_of(name))
            return name, {**options, "layers": kept}, runs
    return name, dict(options), ()


def _few(layers: int, few: int, dense: int, step: int = 1) -> tuple[int, tuple[int, ...]]:
    """Return how many layers to keep, and the number of periods in each run. The first `dense` layers are all kept."""
    dense = min(dense, layers)
    periods, rest = divmod(layers - dense, step)
    return dense + min(periods, few) * step + rest, (dense, periods) if dense > 1 else (periods,)


def option_names(name: str) -> tuple[str, ...]:
    """Return the option names of a model's family."""
    named = (family for family in families().values() if re.fullmatch(family.pattern, name, re.ASCII))
    return tuple(known.name for family in named for known in fields(family.options))


def built_as_asked(name: str, graph: Graph, options: Mapping[str, object]) -> Graph:
    """Return the graph. Raises GraphError if its number of micro-batches differs from the options."""
    asked, built = options.get("micro_batches", 1), graph.micro_batches
    if asked != built:
        raise GraphError(
            f"{name}: expected a graph of {asked} micro-batches, found {built}: pass a Recipe to training_graph in the "
            "function that builds it"
        )
    return graph


def _options(spelling: str, family: Family, given: Mapping[str, object]) -> Training:
    known = [option.name for option in fields(family.options)]
    if unknown := [name for name in given if name not in known]:
        raise GraphError(f"{spelling} has no option {', '.join(unknown)}; its options are {', '.join(known)}")
    chosen = family.options(**given)  # type: ignore[arg-type]
    constants = constants_of(chosen.optimizer)
    if unused := [name for name in given if name in CONSTANTS and name not in constants]:
        raise GraphError(
            f"optimizer {chosen.optimizer} has no constant {', '.join(unused)}; its constants are "
            f"{', '.join(constants) or 'none'}"
        )
    return chosen


def _spelled(spelling: str, family: Family) -> str:
    if family.depths and family.is_listed:
        return ", ".join(family.depths)
    return spelling if family.example == spelling else f"{spelling} (such as {family.example})"


@dataclass(frozen=True, slots=True)
class ModelOption:
    """An option of some families: the type of its value, its possible names if any, and its meaning.

    `default` is its default by family, in square brackets, or empty if `meaning` states it.
    """

    kind: str
    choices: tuple[str, ...]
    meaning: str
    default: str


def model_options() -> dict[str, ModelOption]:
    """Return the options of all families by name."""
    spellings: dict[str, dict[object, list[str]]] = {}
    declared: dict[str, Field[Any]] = {}
    for spelling, family in families().items():
        for known in fields(family.options):
            spellings.setdefault(known.name, {}).setdefault(known.default, []).append(spelling)
            declared.setdefault(known.name, known)
    return {
        name: ModelOption(
            str(known.type).removesuffix(" | None"),
            CHOICES.get(name, ()),
            known.metadata["help"],
            _defaults(spellings[name]),
        )
        for name, known in declared.items()
    }


def _defaults(by_default: Mapping[object, list[str]]) -> str:
    """Return the defaults as text, with the families that have them unless all share one."""
    known = {default: names for default, names in by_default.items() if default is not None}
    if [len(names) for names in by_default.values()] == [len(families())]:
        return f"[default: {next(iter(known))}]" if known else ""
    texts = [f"{default} ({', '.join(names)})" for default, names in known.items()]
    texts += [f"by the model ({', '.join(names)})" for default, names in by_default.items() if default is None]
    return f"[default: {'; '.join(texts)}]"


OPTIMIZER = "adamw"
PRECISIONS = (("bfloat16", "mixed"), ("float16", "mixed-float16"))
"""Preferred precisions, by the dtype that a device needs for them. A device with neither uses float32."""

MIXED_FLOAT8 = "mixed-float8"
"""The precision of `mixed` training with float8 products in layers, as in Transformer Engine; for predictions."""

HALF_EPS = 1e-4
"""Adam's `eps` in half precision, where smaller values are zero."""


def buildable(options: Iterable[tuple[str, object]]) -> dict[str, object]:
    """Return the options for building a graph, which cannot express float8 products."""
    named = dict(options)
    return {**named, "dtype": "mixed"} if named.get("dtype") == MIXED_FLOAT8 else named


def trained_as(model: str, machine: Machine | None, given: Mapping[str, object] | None = None) -> dict[str, object]:
    """Return a model's options: those `given`, and for zoo models also the defaults of training.

    Without a machine, devices are assumed to multiply in bfloat16.
    """
    options = dict(given or {})
    names = option_names(model) if is_zoo_name(model) else ()
    return {**{name: value for name, value in defaults(machine, options).items() if name in names}, **options}


def defaults(machine: Machine | None, given: Mapping[str, object]) -> dict[str, object]:
    """Return default options of training, except those in `given`."""
    options: dict[str, object] = {"dtype": _precision(machine), "optimizer": OPTIMIZER, **given}
    if options["dtype"] == "mixed-float16" and "eps" in constants_of(str(options["optimizer"])):
        options.setdefault("eps", HALF_EPS)
    return {name: value for name, value in options.items() if name not in given}


def _precision(machine: Machine | None) -> str:
    if machine is None:
        return PRECISIONS[0][1]
    specs = [device.spec for device in machine.devices]
    rates = [spec.peak_flop_per_s.by_dtype() if not spec.is_host_rank else {} for spec in specs]
    return next((name for dtype, name in PRECISIONS if all(dtype in of for of in rates)), "float32")
