"""Rows to train on, with the teacher's last states of each kept beside them: from the second epoch on the teacher need not be asked again.

A state is 576 bfloat16 values per token, so 50 million tokens take 58 GB. Rows beyond `room` bytes are asked for anew each time, in batches of their own.
"""

import numpy as np
import torch


class Pool:
    def __init__(self, rows, batch, device, teach=None, hidden=0, room=0, seed=0):
        """rows [n, length] uint16; teach: ids [batch, length] -> states [batch, length, hidden]."""
        self.rows, self.batch, self.teach, self.epochs = torch.from_numpy(rows.astype(np.int32)).to(device), batch, teach, 0
        if len(rows) < batch:
            raise SystemExit(f"{len(rows)} rows to train on, at least {batch} expected")
        self.rng, self.queue = np.random.default_rng(seed), []
        kept = min(len(rows), room // (rows.shape[1] * hidden * 2)) // batch * batch if teach else 0
        self.told = torch.empty(kept, rows.shape[1], hidden, dtype=torch.bfloat16, device=device)
        self.filled = np.zeros(kept, bool)

    def next(self):
        """-> ids [batch, length], the teacher's states or None."""
        if not self.queue:
            self.queue = self.epoch()
            self.epochs += 1
        chosen = self.queue.pop()
        at = torch.from_numpy(chosen).to(self.rows.device)
        ids = self.rows[at].long()
        if not self.teach:
            return ids, None
        if chosen.max() >= len(self.filled):
            return ids, self.teach(ids)
        if not self.filled[chosen].all():
            self.told[at] = self.teach(ids)
            self.filled[chosen] = True
        return ids, self.told[at]

    def epoch(self):
        """Every row once in batches, kept rows and others apart; what does not fill a batch waits for another epoch."""
        parts = np.arange(len(self.filled)), np.arange(len(self.filled), len(self.rows))
        queue = []
        for part in parts:
            self.rng.shuffle(part)
            queue += [part[i : i + self.batch] for i in range(0, len(part) - self.batch + 1, self.batch)]
        self.rng.shuffle(queue)
        return queue
