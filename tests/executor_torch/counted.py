"""What PyTorch's own data parallelism moves: ranks of gloo that count the collectives of one iteration.

Counted is the payload of collectives, whatever their algorithm: over all ranks, of n bytes that everybody is to have
(k - 1) n, of n bytes that everybody has a term of and a share of the sum is to have as many, of an all-reduce both.
"""

import json
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from examples.gpt import GPT

VOCABULARY, LENGTH, WIDTH, HEADS, LAYERS = 64, 8, 16, 4, 2


def module():
    """A small GPT: its output layer is its embedding."""
    torch.manual_seed(0)
    return GPT(VOCABULARY, LENGTH, WIDTH, HEADS, LAYERS)


def batch(samples):
    """Return tokens and those that follow, for so many samples."""
    torch.manual_seed(1)
    return torch.randint(0, VOCABULARY, (2, samples, LENGTH)).unbind()


def bytes_moved(ranks, folder):
    """Return the bytes that all ranks together move in one iteration, by what moves them."""
    mp.spawn(_rank, (ranks, str(folder)), ranks)
    return json.loads((Path(folder) / "bytes.json").read_text())


def _rank(rank, ranks, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    moved = {}
    for name, parallel in (("ddp", _data_parallel), ("fsdp2", _fully_sharded)):
        counted = []
        model = parallel(module(), ranks - 1, counted)
        model(*batch(2)).backward()
        moved[name] = sum(counted)
    if rank == 0:
        (Path(folder) / "bytes.json").write_text(json.dumps(moved))
    dist.destroy_process_group()


def _data_parallel(model, others, counted):
    return count_reduced(DistributedDataParallel(model), others, counted)


def count_reduced(model, others, counted):
    """Let DistributedDataParallel put the bytes of its all-reduces into a list; return it."""

    def reduce(state, bucket):
        counted.append(2 * others * bucket.buffer().nbytes)
        return allreduce_hook(state, bucket)

    model.register_comm_hook(None, reduce)
    return model


def count_sharded(others, counted):
    """Let FSDP2 put the bytes of what it gathers and reduces, from now on in this process, into a list."""
    gather, scatter = dist.all_gather_single, dist.reduce_scatter_single

    def counted_gather(whole, share, **options):
        counted.append(others * whole.nbytes)
        return gather(whole, share, **options)

    def counted_scatter(**options):
        counted.append(others * options["input"].nbytes)
        return scatter(**options)

    dist.all_gather_single, dist.reduce_scatter_single = counted_gather, counted_scatter


def _fully_sharded(model, others, counted):
    count_sharded(others, counted)
    for block in (*model.layers, model):
        fully_shard(block, reshard_after_forward=True)
    return model
