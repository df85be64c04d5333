"""One process per GPU (torchrun), or one process alone: who we are, and what the processes agree on."""

import os

import torch
import torch.distributed as dist

RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def begin():
    """-> this process's device."""
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if gpu else torch.device("cpu")
    if WORLD > 1:
        if gpu:
            torch.cuda.set_device(device)
        dist.init_process_group("nccl" if gpu else "gloo", **({"device_id": device} if gpu else {}))
    return device


def end():
    if WORLD > 1:
        dist.destroy_process_group()


def wait():
    if WORLD > 1:
        dist.barrier()


@torch.no_grad()
def average_gradients(parameters):
    if WORLD > 1:
        gradients = [p.grad for p in parameters]
        for work in [dist.all_reduce(g, async_op=True) for g in gradients]:
            work.wait()
        torch._foreach_div_(gradients, WORLD)


@torch.no_grad()
def equalise(tensors):
    """Rounding may let the processes' copies drift apart: the first one's are everybody's."""
    if WORLD > 1:
        for t in tensors:
            dist.broadcast(t, 0)


def first_s(value, device):
    """A number as the first process has it."""
    if WORLD == 1:
        return value
    x = torch.tensor([value], dtype=torch.float64, device=device)
    dist.broadcast(x, 0)
    return x.item()
