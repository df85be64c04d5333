"""Muon for matrices, AdamW for the rest, with the learning rate given at each step.

Muon (Jordan et al. 2024): momentum, made orthogonal by five Newton-Schulz steps; scaled so that an update's root mean square is 0.2 of the rate, as AdamW's
is (Liu et al. 2025, "Muon is scalable for LLM training"). Stacks are [layers, ...]; a routed expert's matrices are made orthogonal each by itself.
"""

import torch

MOMENTUM, DECAY = 0.95, 0.05
SINGLE = ("embed", "norm", "ln1", "ln2", "qb", "kb", "vb", "router", "shared_sigmoid")  # AdamW's


def orthogonal(m):
    x = m.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.mT if tall else x


class Optimiser:
    """p: {name: leaf parameter}; experts: how many lie side by side in gate, up and down."""

    def __init__(self, p, experts, adam_scale=0.33):
        self.p, self.experts, self.adam_scale = p, experts, adam_scale
        self.matrices = [k for k in p if k not in SINGLE]
        self.momentum = {k: torch.zeros_like(p[k]) for k in self.matrices}
        singles = [p[k] for k in p if k in SINGLE]
        self.adam = torch.optim.AdamW(singles, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0, fused=singles[0].is_cuda)

    def by_expert(self, name, m):
        """Views each expert's matrix: [layers, experts, out, in]."""
        if name in ("gate", "up"):
            return m.unflatten(1, (self.experts, -1))
        if name == "down":
            return m.unflatten(2, (self.experts, -1)).transpose(1, 2)
        return m

    @torch.no_grad()
    def step(self, rate):
        for name in self.matrices:
            w, g, m = self.p[name], self.p[name].grad, self.momentum[name]
            m.lerp_(g, 1 - MOMENTUM)
            update = self.by_expert(name, g.lerp(m, MOMENTUM))
            size = 0.2 * max(update.shape[-2:]) ** 0.5
            w.mul_(1 - rate * DECAY)
            self.by_expert(name, w).add_(orthogonal(update), alpha=-rate * size)
        self.adam.param_groups[0]["lr"] = rate * self.adam_scale
        self.adam.step()
        for w in self.p.values():
            w.grad = None

    def state(self):
        return {"momentum": self.momentum, "adam": self.adam.state_dict()}

    def load(self, state):
        for k, v in state["momentum"].items():
            self.momentum[k].copy_(v)
        self.adam.load_state_dict(state["adam"])
