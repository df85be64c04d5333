"""Perplexities that can be compared across vocabularies: nats of the same texts, divided by the number of the teacher's tokens in them."""

import numpy as np
import torch
import torch.nn.functional as F

from .nets import Net


@torch.no_grad()
def nats(shape, p, docs, batch=16):
    """-> nats of each document's written part, given its prompt. Computes in the parameters' type, without compilation."""
    net = Net(shape, compile=False)
    device, out = p["embed"].device, np.zeros(len(docs))
    lengths = np.diff(docs.offsets)
    order = np.argsort(lengths)
    for start in range(0, len(docs), batch):
        chosen = order[start : start + batch]
        ids = torch.zeros(len(chosen), int(lengths[chosen].max()), dtype=torch.long)
        written = torch.zeros_like(ids, dtype=torch.bool)
        for r, d in enumerate(chosen):
            ids[r, : lengths[d]] = torch.from_numpy(docs[d].astype(np.int64))
            written[r, docs.prompts[d] : lengths[d]] = True
        ids, written = ids.to(device), written.to(device)
        logits = net.logits(p, ids)[:, :-1].float()
        each = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none").view(len(chosen), -1)
        out[chosen] = (each * written[:, 1:]).sum(-1).cpu().numpy()
    return out


def written(docs):
    """Tokens per document that `nats` sums over."""
    return np.diff(docs.offsets) - docs.prompts


def perplexities(each, teacher_tokens, kinds, names):
    """{kind: perplexity per teacher token}, and of all."""
    out = {"all": float(np.exp(each.sum() / teacher_tokens.sum()))}
    for k in np.unique(kinds):
        out[names[k]] = float(np.exp(each[kinds == k].sum() / teacher_tokens[kinds == k].sum()))
    return out


@torch.no_grad()
def expert_shares(shape, p, docs, batch=16):
    """Each layer's experts' shares of all choices, 1 being an even share: [layers][experts]."""
    net, total = Net(shape, compile=False), 0
    for start in range(0, len(docs), batch):
        length = min(len(docs[d]) for d in range(start, min(start + batch, len(docs))))
        ids = np.stack([docs[d][:length] for d in range(start, min(start + batch, len(docs)))]).astype(np.int64)
        _, routing = net.hidden(p, torch.from_numpy(ids).to(p["embed"].device))
        total = total + torch.stack([chosen for chosen, _ in routing]) * ids.size
    return (total / total.mean(-1, keepdim=True)).cpu().numpy().round(3).tolist()
