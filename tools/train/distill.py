#!/usr/bin/env python3
"""The run on the GPU, in stages that leave their results in a directory; `python -m train.distill DIR STAGE...` in tools/.

  write    the teacher writes documents                          inputs.npz, teacher.gguf -> written.npz
  texts    cleans them, holds some out, spells them in the small vocabulary  -> texts.npz
  adapt    the teacher learns the small vocabulary                           -> adapted.pt
  begin    the student's first weights out of the adapted teacher            -> student.pt
  again    the same out of the shipped model, to train it further            -> student.pt
  train    distils: goes on from student.pt until --total is used up, at most --seconds now
  report   perplexities of teacher, adapted teacher and student, routing     -> report.json, model/

--try SIZE replaces the teacher by a random one: `tiny` for a CPU, `full` to time the stages.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from . import export, measure, moefy, nets, quantise, texts
from .kinds import KINDS, RAW, RAW_LENGTH, WEIGHTS, WRITTEN
from .optimise import Optimiser
from .writer import Writer

BALANCE, CROSS = 0.01, 0.1  # weights of the balance loss and of cross entropy beside KL
QUANTISED_FROM = 0.4  # of the training; before, the weights are not quantised
WIDE = ("norm", "ln1", "ln2", "router", "shared_sigmoid")  # computed in float32
SAVE_EVERY = 100  # seconds


class Sizes:
    """What differs between the real run and a try on a CPU."""

    def __init__(self, tiny):
        self.teacher = nets.Shape(49152, 4, 192, 3, 1, 512) if tiny else nets.Shape(49152, 30)
        self.student = {"layers": 2, "experts": 8, "top_k": 2, "width": 64, "shared": 128} if tiny else {"layers": 12, "experts": 24, "top_k": 6, "width": 64, "shared": 256}
        self.rows, self.length = (4, 64) if tiny else (64, 1024)
        self.writer_rows, self.longest, self.steps = (8, 48, 400) if tiny else (4096, 640, 24000)
        self.watched = 2 if tiny else 32  # rows to choose layers and cluster neurons on
        self.measured = 20 if tiny else 1000  # held-out documents in the report


def log(text):
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def shares(docs):
    lengths = np.diff(docs.offsets)
    return ", ".join(f"{KINDS[k]} {lengths[docs.kinds == k].sum() / 1e6:.2f} M in {(docs.kinds == k).sum()}" for k in np.unique(docs.kinds))


class Run:
    def __init__(self, args):
        self.args, self.dir, self.sizes = args, args.dir, Sizes(args.random == "tiny")
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.inputs = dict(np.load(self.dir / "inputs.npz"))
        self.parts, self.counts = self.inputs["parts"], self.inputs["counts"]
        self.vocab = int(self.inputs["vocabulary"])
        torch.manual_seed(args.seed)

    def load(self, name):
        return torch.load(self.dir / name, map_location=self.device, weights_only=True)

    def save(self, name, value):
        torch.save(value, self.dir / (name + ".partial"))
        (self.dir / (name + ".partial")).rename(self.dir / name)

    def texts(self):
        arrays = dict(np.load(self.dir / "texts.npz"))
        return {name: texts.from_arrays(arrays, name) for name in ("train", "held", "held_teacher", "test", "test_teacher")}

    def teacher(self):
        if self.args.random:
            return self.sizes.teacher, nets.random_teacher(self.sizes.teacher)
        return nets.load_teacher(self.dir / "teacher.gguf")

    def adapted_shape(self):
        return self.sizes.teacher.replaced(vocab=self.vocab)

    def student_shape(self):
        return self.adapted_shape().replaced(**self.sizes.student)

    # ---- stages ----

    def write(self):
        shape, p = self.teacher()
        i, s = self.inputs, self.sizes
        prompts = [i[f"prompt_{k}"] for k in ("ids", "lengths", "ends", "first", "later", "least")]
        writer = Writer(shape, p, prompts, s.writer_rows, s.longest, s.steps, self.device)
        writer.run(self.args.write_seconds, log)
        ids, offsets, numbers, whole = writer.documents()
        docs = texts.Documents(ids, offsets, i["prompt_lengths"][numbers], i["prompt_kinds"][numbers])
        log(f"written, millions of tokens: {shares(docs)}; {whole.mean():.3f} whole")
        np.savez(self.dir / "written.npz", numbers=numbers, whole=whole, **docs.arrays("written"))

    def clean_texts(self):
        arrays = dict(np.load(self.dir / "written.npz"))
        held = arrays["numbers"] % texts.HELD_OUT == 0
        written = texts.from_arrays(arrays, "written")
        train, held = (texts.clean(written.subset(x), self.inputs["head"]) for x in (~held, held))
        log(f"kept {len(train) + len(held)} of {len(written)} documents: {shares(train)}")
        rng = np.random.default_rng(self.args.seed)
        held = held.subset(np.sort(rng.permutation(len(held))[: self.sizes.measured]))
        formed, valid, test = (texts.from_arrays(self.inputs, n) for n in ("formed", "valid", "test"))
        if self.args.random:
            test = test.subset(np.arange(8))
        apart = np.arange(len(formed)) % texts.HELD_OUT == 0
        held = texts.join(held, formed.subset(apart))
        spell = lambda docs: docs.respelt(self.parts, self.counts)  # noqa: E731
        train = spell(texts.join(train, formed.subset(~apart), valid))
        log(f"to train on, small vocabulary: {shares(train)}")
        out = {"train": train, "held": spell(held), "held_teacher": held, "test": spell(test), "test_teacher": test}
        np.savez(self.dir / "texts.npz", **{k: v for name, docs in out.items() for k, v in docs.arrays(name).items()})

    def adapt(self):
        shape, p = self.teacher()
        kept = int(self.parts.max()) + 1
        p["embed"] = torch.cat([p["embed"][:kept], p["embed"].mean(0, keepdim=True).expand(self.vocab - kept, -1)])
        p = {k: v.to(self.device).requires_grad_() for k, v in p.items()}
        net, batches = nets.Net(self.adapted_shape()), self.batches(seed=1)
        adam = torch.optim.AdamW(p.values(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0, fused=self.device.type == "cuda")
        clock, peak = Clock(self.args.adapt_seconds), 3e-4
        cross = nets.compiled(cross_entropy)
        while clock.running():
            ids = self.batch(batches)
            q = working(p)
            loss = cross(net.hidden(q, ids)[0], q["embed"], ids)
            loss.backward()
            adam.param_groups[0]["lr"] = peak * rate(clock.progress(), warm=0.05, flat=0.3)
            adam.step()
            adam.zero_grad()
            clock.tick(f"adapt: cross entropy {loss.item():.4f}", ids.numel())
        self.save("adapted.pt", {k: v.detach().bfloat16() for k, v in p.items()})

    def begin(self):
        shape, student = self.adapted_shape(), self.student_shape()
        p = self.load("adapted.pt")
        rows = self.batch(self.batches(seed=2))[: self.sizes.watched]
        layers = moefy.choose_layers(shape, p, rows[:, : self.sizes.length // 2], student.layers, log)
        log(f"layers kept: {layers}")
        first = moefy.student_from(shape, nets.cast(p, torch.float32), layers, student, rows, self.args.seed)
        self.save("student.pt", {"p": first, "optimiser": None, "spent": 0.0, "layers": layers})

    def again(self):
        p = export.read_parameters(self.args.shipped, self.student_shape())
        self.save("student.pt", {"p": p, "optimiser": None, "spent": 0.0, "layers": []})

    def train(self):
        state = self.load("student.pt")
        p = {k: v.requires_grad_() for k, v in state["p"].items()}
        shape = self.student_shape()
        optimiser = Optimiser(p, shape.experts)
        if state["optimiser"]:
            optimiser.load(state["optimiser"])
        teacher, teacher_net, net = self.load("adapted.pt"), nets.Net(self.adapted_shape()), nets.Net(shape)
        batches, distance = self.batches(seed=int(3 + state["spent"])), nets.compiled(kl_and_cross)
        clock = Clock(self.args.total, self.args.seconds, state["spent"])
        saved = time.time()

        def save():
            self.save("student.pt", {"p": {k: v.detach() for k, v in p.items()}, "optimiser": optimiser.state(), "spent": clock.spent, "layers": state["layers"]})

        while clock.running():
            ids = self.batch(batches)
            with torch.no_grad():
                told = teacher_net.hidden(teacher, ids)[0]
            q = working(p, quantised=clock.progress() >= QUANTISED_FROM)
            hidden, routing = net.hidden(q, ids)
            kl, cross = distance(hidden, q["embed"], told, teacher["embed"], ids)
            chosen, probability = (torch.stack(x) for x in zip(*routing))
            balance = (chosen * probability).sum(-1).mean() * shape.experts
            (kl + CROSS * cross + BALANCE * balance).backward()
            optimiser.step(self.args.rate * rate(clock.progress(), warm=0.01, flat=0.35))
            clock.tick(f"train: KL {kl.item():.4f}, cross entropy {cross.item():.4f}, balance {balance.item():.3f}, rarest expert {chosen.min().item() * shape.experts:.3f}, epoch {batches.epochs}", ids.numel())
            if time.time() - saved > SAVE_EVERY:
                save()
                saved = time.time()
        save()

    def report(self):
        data, names = self.texts(), KINDS
        held, test = data["held_teacher"], data["test_teacher"]
        by_teacher = np.isin(held.kinds, list(WRITTEN))
        tokens = {"held": measure.written(held), "test": measure.written(test)}
        out = {"layers": self.load("student.pt")["layers"], "teacher_tokens": {k: int(v.sum()) for k, v in tokens.items()}}

        def add(name, shape, p, suffix):
            found = {}
            for text, docs in (("held", data["held" + suffix]), ("test", data["test" + suffix])):
                each, n, kinds = measure.nats(shape, p, docs), tokens[text], docs.kinds
                if text == "held":
                    found["held by kind"] = measure.perplexities(each, n, kinds, names)
                    each, n, kinds = each[by_teacher], n[by_teacher], kinds[by_teacher]
                found[text] = measure.perplexities(each, n, kinds, names)["all"]
            out[name] = found
            log(f"{name}: {found}")

        shape, p = self.teacher()
        add("teacher", shape, {k: v.to(self.device) for k, v in p.items()}, "_teacher")
        add("adapted teacher", self.adapted_shape(), nets.cast(self.load("adapted.pt"), torch.float32), "")
        p, shape = self.load("student.pt")["p"], self.student_shape()
        add("student", shape, p, "")
        stored = quantise.through_file(p)
        add("student, quantised", shape, stored, "")
        out["shares of experts"] = measure.expert_shares(shape, stored, data["held"])
        (self.dir / "report.json").write_text(json.dumps(out, indent=1) + "\n")
        export.write(self.dir / "model", shape, {k: v.cpu() for k, v in p.items()})

    # ---- help for the stages ----

    def batches(self, seed):
        return texts.Batches(self.texts()["train"].shortened(RAW, RAW_LENGTH), WEIGHTS, self.sizes.rows, self.sizes.length, self.args.seed + seed)

    def batch(self, batches):
        return torch.from_numpy(batches.next()).to(self.device, non_blocking=True)


class Clock:
    """Progress by time: the work is what the machine does in `total` seconds, `now` of them in this call. Compilation, the first ticks, is not counted."""

    UNCOUNTED, EVERY = 2, 40

    def __init__(self, total, now=None, spent=0.0):
        self.total, self.left, self.spent = total, min(now or total, total - spent), spent
        self.ticks, self.last, self.tokens, self.since = 0, time.time(), 0, time.time()

    def progress(self):
        return min(self.spent / self.total, 1.0)

    def running(self):
        return self.left > 0

    def tick(self, text, tokens):
        """After a step that has been waited for."""
        self.ticks += 1
        now = time.time()
        if self.ticks > self.UNCOUNTED:
            self.spent += now - self.last
            self.left -= now - self.last
            self.tokens += tokens
        else:
            self.since = now
        self.last = now
        if self.ticks % self.EVERY == 1 or self.left <= 0:
            log(f"{text}; step {self.ticks}, {self.spent:.0f} of {self.total} s, {self.tokens / max(now - self.since, 1e-9) / 1e3:.0f} k tokens/s")


def rate(progress, warm, flat):
    """Rises, stays, and falls to nothing."""
    return min(progress / warm, 1.0, max(0.01, (1 - progress) / (1 - flat)))


def working(p, quantised=False):
    """Parameters in the types to compute in."""
    q = quantise.through_file(p, gradient=True) if quantised else p
    return {k: v if k in WIDE else v.bfloat16() for k, v in q.items()}


def cross_entropy(hidden, embed, ids):
    logits = F.linear(hidden[:, :-1], embed).float()
    return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def kl_and_cross(hidden, embed, told, told_embed, ids):
    """KL(teacher || student) and cross entropy with the text, means over tokens."""
    q = F.linear(hidden, embed).float().log_softmax(-1)
    p = F.linear(told, told_embed).float().log_softmax(-1)
    kl = (p.exp() * (p - q)).sum(-1).mean()
    return kl, -q[:, :-1].gather(-1, ids[:, 1:, None]).mean()


STAGES = {"write": Run.write, "texts": Run.clean_texts, "adapt": Run.adapt, "begin": Run.begin, "again": Run.again, "train": Run.train, "report": Run.report}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=Path)
    parser.add_argument("stages", nargs="+", choices=STAGES)
    parser.add_argument("--try", dest="random", choices=("tiny", "full"))
    parser.add_argument("--write-seconds", type=float, default=170)
    parser.add_argument("--adapt-seconds", type=float, default=100)
    parser.add_argument("--total", type=float, default=900, help="seconds of training over all calls")
    parser.add_argument("--seconds", type=float, help="seconds of training in this call")
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--shipped", type=Path, default=Path(__file__).resolve().parents[2] / "models/sluice-smol-moe")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    run = Run(args)
    for stage in args.stages:
        log(f"stage {stage}")
        STAGES[stage](run)


if __name__ == "__main__":
    main()
