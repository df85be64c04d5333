"""The student's first weights: some of the teacher's layers, their FFNs regrouped into a shared expert and routed experts.

Neurons that speak loudest on average go to the shared expert. The others are clustered by how they fire together, in clusters of equal size; the
loudest of them get a second home, so that the routed experts have more neurons than were left. The router starts as the linear map that best
predicts, from the layer's input, how loud each expert would be.
"""

import numpy as np
import torch
import torch.nn.functional as F

from .nets import DENSE, attention, dense_layer, rms_norm, rotary, swiglu

ROUTER_SCALE = 1.5  # spread of the router's first logits
CLUSTER_DIMS, CLUSTER_ROUNDS = 64, 12


def keep_layers(p, layers):
    return {k: v[layers] if k in DENSE else v for k, v in p.items()}


@torch.no_grad()
def choose_layers(shape, p, rows, count, log=print):
    """Greedy: again and again leaves out the layer whose absence costs least cross entropy on `rows` [batch, time]."""
    x0 = F.embedding(rows, p["embed"])
    cos, sin = rotary(shape, torch.arange(rows.shape[1], device=rows.device))

    def loss(layers):
        x = x0
        for i in layers:
            x = dense_layer(shape, x, cos, sin, *[p[n][i] for n in DENSE])
        logits = F.linear(rms_norm(x, p["norm"], shape.eps), p["embed"])
        return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), rows[:, 1:].flatten()).item()

    kept = list(range(shape.layers))
    log(f"all {shape.layers} layers: {loss(kept):.4f}")
    while len(kept) > count:
        losses = [loss([j for j in kept if j != i]) for i in kept]
        best = int(np.argmin(losses))
        log(f"without layer {kept.pop(best)}: {losses[best]:.4f}")
    return kept


def balanced(likeness, capacity):
    """likeness [items, clusters] -> cluster of each item: the closest pairs first, no cluster over capacity."""
    items, clusters = likeness.shape
    home, room, left = np.full(items, -1), np.full(clusters, capacity), items
    for flat in np.argsort(-likeness, axis=None):
        item, cluster = divmod(int(flat), clusters)
        if home[item] < 0 and room[cluster]:
            home[item] = cluster
            room[cluster] -= 1
            left -= 1
            if not left:
                return home
    raise ValueError("less room than items")


def cluster(loudness, clusters, rng):
    """loudness [tokens, neurons] -> cluster of each neuron and likeness [neurons, clusters], by correlation over the tokens."""
    z = loudness - loudness.mean(0)
    z = z / z.std(0).clamp(min=1e-8)
    values, vectors = torch.linalg.eigh(z.T @ z / len(z))
    features = (vectors * values.clamp(min=0).sqrt())[:, -CLUSTER_DIMS:].cpu().numpy()
    features /= np.linalg.norm(features, axis=1, keepdims=True) + 1e-8
    capacity = -(-len(features) // clusters)
    centres = features[rng.choice(len(features), clusters, replace=False)]
    for _ in range(CLUSTER_ROUNDS):
        likeness = features @ centres.T
        home = balanced(likeness, capacity)
        centres = np.stack([features[home == c].mean(0) for c in range(clusters)])
        centres /= np.linalg.norm(centres, axis=1, keepdims=True) + 1e-8
    return home, features @ centres.T


def second_homes(home, likeness, loud, width):
    """Fills every cluster up to `width` with neurons that live elsewhere, loudest first, each where it fits second best."""
    members = [list(np.flatnonzero(home == c)) for c in range(likeness.shape[1])]
    for neuron in np.argsort(-loud):
        for c in np.argsort(-likeness[neuron]):
            if c != home[neuron] and len(members[c]) < width:
                members[c].append(int(neuron))
                break
    for c, m in enumerate(members):  # what is left where only a cluster's own neurons had no other home
        m += [n for n in np.argsort(-loud) if n not in m][: width - len(m)]
    return np.array(members)


def split_ffn(student, h, gate, up, down, rng):
    """One layer. h [tokens, hidden]: the FFN's input. -> its sparse parameters."""
    loudness = swiglu(h, gate, up).abs() * down.norm(dim=0)
    order = loudness.mean(0).argsort(descending=True)
    shared, rest = order[: student.shared], order[student.shared :]
    home, likeness = cluster(loudness[:, rest], student.experts, rng)
    members = second_homes(home, likeness, loudness[:, rest].mean(0).cpu().numpy(), student.width)
    neurons = rest[torch.from_numpy(members.reshape(-1)).to(rest.device)]
    expert_loudness = loudness[:, neurons].unflatten(-1, (student.experts, student.width)).sum(-1)
    target = (expert_loudness - expert_loudness.mean(0)) / expert_loudness.std(0).clamp(min=1e-8)
    gram = h.T @ h
    gram += 1e-3 * gram.diagonal().mean() * torch.eye(len(gram), device=h.device)
    return {
        "router": ROUTER_SCALE * torch.linalg.solve(gram, h.T @ target).T,
        "shared_sigmoid": torch.zeros_like(h[0]),  # half open
        "shared_gate": gate[shared],
        "shared_up": up[shared],
        "shared_down": 2 * down[:, shared],  # hence twice
        "gate": gate[neurons],
        "up": up[neurons],
        "down": student.top_k * down[:, neurons],  # an expert weighs about 1 / top_k
    }


@torch.no_grad()
def student_from(shape, p, layers, student, rows, seed=0):
    """Teacher's shape and parameters, layers to keep, student's shape, token rows to watch the neurons on -> student's float32 parameters."""
    p, rng = keep_layers(p, layers), np.random.default_rng(seed)
    x = F.embedding(rows, p["embed"])
    cos, sin = rotary(shape, torch.arange(rows.shape[1], device=rows.device))
    split = []
    for i in range(len(layers)):
        ln1, q, k, v, o, ln2, gate, up, down = (p[n][i] for n in DENSE)
        h = rms_norm(x, ln1, shape.eps)
        h = x + F.linear(attention(h, F.linear(h, q), F.linear(h, k), F.linear(h, v), cos, sin, shape), o)
        h = rms_norm(h, ln2, shape.eps).flatten(0, 1)
        split.append(split_ffn(student, h, gate, up, down, rng))
        x = dense_layer(shape, x, cos, sin, ln1, q, k, v, o, ln2, gate, up, down)
    out = {k: p[k] for k in ("embed", "norm", "ln1", "q", "k", "v", "o", "ln2")}
    out |= {name: torch.stack([s[name] for s in split]) for name in split[0]}
    kv = shape.kv_heads * shape.head_dim
    out |= {n: torch.zeros(len(layers), size, device=x.device) for n, size in (("qb", shape.hidden), ("kb", kv), ("vb", kv))}
    return {k: v.float().clone() for k, v in out.items()}
