#!/usr/bin/env python3
"""The run on GPUs, in stages that leave their results in a directory; `python -m train.distill DIR STAGE...` in tools/, or with one process per GPU
`torchrun --nproc_per_node=gpu -m train.distill DIR STAGE...` for write, adapt and train.

  write    the teacher writes documents                          inputs.npz, teacher.gguf -> written-*.npz
  texts    cleans them, holds some out, spells them in the small vocabulary  -> texts.npz
  adapt    the teacher learns the small vocabulary                           -> adapted.pt
  begin    the student's first weights out of the adapted teacher            -> student.pt
  again    the same out of the shipped model, to train it further            -> student.pt
  train    distils: goes on from student.pt until --total is used up, at most --seconds now
  export   the student as it is now                                          -> model/
  report   perplexities of teacher, adapted teacher and student, routing     -> report.json, model/

--try SIZE replaces the teacher by a random one: `tiny` for a CPU, `full` to time the stages.
"""

import argparse
import json
import multiprocessing
import os
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from . import export, measure, moefy, nets, parallel, quantise, texts
from .kinds import ANSWERS, GROUPS, KINDS, WEIGHTS
from .optimise import Optimiser
from .pool import Pool
from .writer import Writer

BALANCE, CROSS = 0.01, 0.1  # weights of the balance loss and of cross entropy beside KL
REVERSE = 0.5  # of KL(student || teacher), on what the student wrote; KL(teacher || student) has the rest
OWN_FROM, OWN_EVERY = 0.3, 0.1  # of the training: when the student begins to write half of the text itself, and how often it writes anew
OWN_HEAT, OWN_LEAST = 0.8, 0.05  # its temperature and least relative probability
QUANTISED_FROM = 0.4  # of the training; before, the weights are not quantised
WIDE = ("norm", "ln1", "ln2", "router", "shared_sigmoid")  # computed in float32
SAVE_EVERY = 100  # seconds


class Sizes:
    """What differs between the real run and a try on a CPU. Rows are those of all processes together."""

    def __init__(self, tiny):
        self.teacher = nets.Shape(49152, 4, 192, 3, 1, 512) if tiny else nets.Shape(49152, 30)
        self.student = {"layers": 2, "experts": 8, "top_k": 2, "width": 64, "shared": 128} if tiny else {"layers": 12, "experts": 24, "top_k": 6, "width": 64, "shared": 256}
        self.rows, self.adapt_rows, self.length = (4, 4, 64) if tiny else (96, 64, 1024)
        self.writer_rows, self.longest, self.steps = (8, 48, 400) if tiny else (4096, 640, 24000)
        self.own_prompt, self.own_longest, self.own_steps = (40, 64, 200) if tiny else (192, 448, 6000)
        self.room = 1 << 20 if tiny else 60 << 30  # bytes for the teacher's states
        self.watched = 2 if tiny else 32  # rows to choose layers and cluster neurons on
        self.measured = 20 if tiny else 1000  # held-out documents in the report


def log(text):
    if parallel.RANK == 0:
        print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def shares(docs):
    lengths = np.diff(docs.offsets)
    return ", ".join(f"{KINDS[k]} {lengths[docs.kinds == k].sum() / 1e6:.2f} M in {(docs.kinds == k).sum()}" for k in np.unique(docs.kinds))


class Run:
    def __init__(self, args):
        self.args, self.dir, self.sizes = args, args.dir, Sizes(args.random == "tiny")
        self.device = parallel.begin()
        self.inputs = dict(np.load(self.dir / "inputs.npz"))
        self.parts, self.counts = self.inputs["parts"], self.inputs["counts"]
        self.vocab = int(self.inputs["vocabulary"])
        torch.manual_seed(args.seed)

    def load(self, name):
        return torch.load(self.dir / name, map_location=self.device, weights_only=True)

    def save(self, name, value):
        """By the first process; the others wait for the file."""
        if parallel.RANK == 0:
            self.store(name, value)
        parallel.wait()

    def store(self, name, value):
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
        i, s, own = self.inputs, self.sizes, slice(parallel.RANK, None, parallel.WORLD)
        prompts = [i[f"prompt_{k}"][own] for k in ("ids", "lengths", "ends", "first", "later", "least")]
        torch.manual_seed(self.args.seed + parallel.RANK)
        writer = Writer(shape, nets.cast(p, torch.bfloat16), prompts, s.writer_rows, s.longest, s.steps, self.device)
        writer.run(self.args.write_seconds, log)
        ids, offsets, numbers, whole = writer.documents()
        numbers = numbers * parallel.WORLD + parallel.RANK
        docs = texts.Documents(ids, offsets, i["prompt_lengths"][numbers], i["prompt_kinds"][numbers])
        log(f"written, millions of tokens: {shares(docs)}; {whole.mean():.3f} whole")
        np.savez(self.dir / f"written-{parallel.RANK}.npz", numbers=numbers, whole=whole, **docs.arrays("written"))
        parallel.wait()

    def clean_texts(self):
        files = [dict(np.load(path)) for path in sorted(self.dir.glob("written-*.npz"))]
        written, numbers = texts.join(*(texts.from_arrays(f, "written") for f in files)), np.concatenate([f["numbers"] for f in files])
        held = self.inputs["prompt_held"][numbers]
        judged = texts.from_arrays(self.inputs, "judged")
        keep = lambda docs: in_parts(texts.clean, docs, self.inputs["head"], [judged[d] for d in range(len(judged))])  # noqa: E731
        train, held = keep(written.subset(~held)), keep(written.subset(held))
        log(f"kept {len(train) + len(held)} of {len(written)} documents: {shares(train)}")
        rng = np.random.default_rng(self.args.seed)
        held = held.subset(np.sort(rng.permutation(len(held))[: self.sizes.measured]))
        formed, valid, test = (texts.from_arrays(self.inputs, n) for n in ("formed", "valid", "test"))
        if self.args.random:
            test = test.subset(np.arange(8))
        apart = np.arange(len(formed)) % texts.HELD_OUT == 0
        held = texts.join(held, formed.subset(apart))
        spell = lambda docs: in_parts(texts.Documents.respelt, docs, self.parts, self.counts)  # noqa: E731
        train = spell(texts.join(train, formed.subset(~apart), valid))
        log(f"to train on, small vocabulary: {shares(train)}")
        out = {"train": train, "held": spell(held), "held_teacher": held, "test": spell(test), "test_teacher": test}
        np.savez(self.dir / "texts.npz", **{k: v for name, docs in out.items() for k, v in docs.arrays(name).items()})

    def adapt(self):
        shape, p = self.teacher()
        kept = int(self.parts.max()) + 1
        p["embed"] = torch.cat([p["embed"][:kept], p["embed"].mean(0, keepdim=True).expand(self.vocab - kept, -1)])
        p = {k: v.to(self.device).requires_grad_() for k, v in p.items()}
        net, pool = nets.Net(self.adapted_shape()), self.pool(1, self.sizes.adapt_rows)
        adam = torch.optim.AdamW(p.values(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0, fused=self.device.type == "cuda")
        clock, peak = Clock(self.args.adapt_seconds, self.device), 3e-4
        cross = nets.compiled(cross_entropy)
        while clock.running():
            ids, _ = pool.next()
            q = working(p)
            loss = cross(net.hidden(q, ids)[0], q["embed"], ids)
            loss.backward()
            parallel.average_gradients(p.values())
            adam.param_groups[0]["lr"] = peak * rate(clock.progress(), warm=0.05, flat=0.3)
            adam.step()
            adam.zero_grad()
            clock.tick(lambda: f"adapt: cross entropy {loss.item():.4f}, epoch {pool.epochs}", ids.numel())
        self.save("adapted.pt", {k: v.detach().bfloat16() for k, v in p.items()})

    def begin(self):
        shape, student = self.adapted_shape(), self.student_shape()
        p = self.load("adapted.pt")
        rows = self.pool(2, self.sizes.watched * parallel.WORLD).next()[0]
        layers = moefy.choose_layers(shape, p, rows[:, : self.sizes.length // 2], student.layers, log)
        log(f"layers kept: {layers}")
        first = moefy.student_from(shape, nets.cast(p, torch.float32), layers, student, rows, self.args.seed)
        self.save("student.pt", {"p": first, "optimiser": None, "spent": 0.0, "layers": layers})

    def again(self):
        p = export.read_parameters(self.args.shipped, self.student_shape())
        layers = json.loads((self.args.shipped / "report.json").read_text())["layers"]
        self.save("student.pt", {"p": p, "optimiser": None, "spent": 0.0, "layers": layers})

    def train(self):
        state = self.load("student.pt")
        p = {k: v.to(self.device).requires_grad_() for k, v in state["p"].items()}
        shape = self.student_shape()
        optimiser = Optimiser(p, shape.experts)
        if state["optimiser"]:
            optimiser.load(state["optimiser"])
        teacher, teacher_net, net = self.load("adapted.pt"), nets.Net(self.adapted_shape()), nets.Net(shape)

        @torch.no_grad()
        def teach(ids):
            return teacher_net.hidden(teacher, ids)[0]

        given, own = self.pool(3 + int(state["spent"]), self.sizes.rows, teach), None
        author, distance = Author(self), nets.compiled(divergences)
        clock = Clock(self.args.total, self.device, self.args.seconds, state["spent"])
        saved, due = clock.spent, max(OWN_FROM, clock.progress())

        def save():
            parallel.equalise(p.values())
            self.save("student.pt", {"p": {k: v.detach() for k, v in p.items()}, "optimiser": optimiser.state(), "spent": clock.spent, "layers": state["layers"]})

        while clock.running():
            if clock.progress() >= due:
                own = None  # its memory is used again
                own = author.pool(p, teach, clock.ticks)
                due = clock.progress() + OWN_EVERY
            of_student = own is not None and clock.ticks % 2 == 1
            ids, told = (own if of_student else given).next()
            q = working(p, quantised=clock.progress() >= QUANTISED_FROM)
            hidden, routing = net.hidden(q, ids)
            kl, reverse, cross = distance(hidden, q["embed"], told, teacher["embed"], ids)
            chosen, probability = (torch.stack(x) for x in zip(*routing))
            balance = (chosen * probability).sum(-1).mean() * shape.experts
            learnt = (1 - REVERSE) * kl + REVERSE * reverse if of_student else kl + CROSS * cross
            (learnt + BALANCE * balance).backward()
            parallel.average_gradients(p.values())
            optimiser.step(self.args.rate * rate(clock.progress(), warm=0.01, flat=0.35))
            clock.tick(lambda: f"train: KL {kl.item():.4f}, reverse {reverse.item():.4f}, cross entropy {cross.item():.4f}, balance {balance.item():.3f}, rarest expert {chosen.min().item() * shape.experts:.3f}, "
                               f"{'own' if of_student else 'given'} text, epoch {given.epochs}", ids.numel())  # fmt: skip
            if clock.spent - saved > SAVE_EVERY:
                save()
                saved = clock.spent
        save()

    def export(self):
        export.write(self.dir / "model", self.student_shape(), {k: v.cpu() for k, v in self.load("student.pt")["p"].items()})

    def report(self):
        data = self.texts()
        held, test = data["held_teacher"], data["test_teacher"]
        tokens = {"held": measure.written(held), "test": measure.written(test)}
        out = {"layers": self.load("student.pt")["layers"], "teacher_tokens": {k: int(v.sum()) for k, v in tokens.items()}}

        def add(name, shape, p, suffix):
            found = {}
            for text, docs in (("held", data["held" + suffix]), ("test", data["test" + suffix])):
                each, n = measure.nats(shape, p, docs), tokens[text]
                if text == "held":
                    found["held by kind"] = measure.perplexities(each, n, docs.kinds, KINDS)
                    for group, kinds in GROUPS.items():
                        of = np.isin(docs.kinds, kinds)
                        found[group] = measure.perplexities(each[of], n[of], docs.kinds[of], KINDS)["all"]
                        out["teacher_tokens"][group] = int(n[of].sum())
                else:
                    found["test"] = measure.perplexities(each, n, docs.kinds, KINDS)["all"]
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

    def own_texts(self):
        """This process's share of the texts to train on."""
        train = self.texts()["train"]
        return train.subset(np.arange(parallel.RANK, len(train), parallel.WORLD))

    def pool(self, seed, rows, teach=None):
        rng = np.random.default_rng([self.args.seed, seed, parallel.RANK])
        packed = texts.rows(self.own_texts(), WEIGHTS, self.sizes.length, rng)
        return self.pool_of(packed, rows, teach, self.sizes.room, seed)

    def pool_of(self, packed, rows, teach, room, seed):
        return Pool(packed, max(rows // parallel.WORLD, 1), self.device, teach, self.sizes.teacher.hidden, room, seed)


class Author:
    """The student writes its own answers to the prompts of the training texts."""

    def __init__(self, run):
        self.run, self.writer = run, None

    def prompts(self):
        run, longest = self.run, self.run.sizes.own_prompt
        docs = run.own_texts()
        docs = docs.subset(np.isin(docs.kinds, ANSWERS))
        head = np.concatenate([run.parts[i, : run.counts[i]] for i in run.inputs["answer"]])
        ids, lengths = texts.until(docs, head, longest)
        order = np.random.default_rng(run.args.seed).permutation(len(ids))
        return ids[order], lengths[order], np.ones(len(ids), int), *(np.full(len(ids), x, np.float32) for x in (OWN_HEAT, OWN_HEAT, OWN_LEAST))

    def pool(self, p, teach, seed):
        run, s = self.run, self.run.sizes
        p = {k: v.detach() for k, v in working(quantise.through_file(p)).items()}
        if self.writer:
            self.writer.restart(p)
        else:
            torch.manual_seed(run.args.seed + parallel.RANK)
            self.asked = self.prompts()
            self.writer = Writer(run.student_shape(), p, self.asked, s.writer_rows, s.own_longest, s.own_steps, run.device)
        self.writer.run(run.args.own_seconds, log, again=True)
        ids, offsets, numbers, whole = self.writer.documents()
        docs = texts.Documents(ids, offsets, self.asked[1][numbers], np.zeros(len(numbers), int))
        kept = texts.clean(docs)
        log(f"the student's own: {len(docs.ids) / 1e6:.1f} M tokens, {len(kept.ids) / 1e6:.1f} M in {len(kept)} of {len(docs)} documents kept; {whole.mean():.3f} whole")
        packed = texts.rows(kept, [1.0], s.length, np.random.default_rng(seed))
        return run.pool_of(packed, s.rows, teach, s.room, seed)


class Clock:
    """Progress by time: the work is what the machines do in `total` seconds, `now` of them in this call. Compilation, the first ticks, is not counted."""

    UNCOUNTED, LOOK, SAY = 2, 10, 80  # ticks

    def __init__(self, total, device, now=None, spent=0.0):
        self.total, self.left, self.spent, self.device = total, min(now or total, total - spent), spent, device
        self.ticks, self.last, self.tokens, self.since = 0, time.time(), 0, time.time()

    def progress(self):
        return min(self.spent / self.total, 1.0)

    def running(self):
        return self.left > 0

    def tick(self, text, tokens):
        """After a step; the time is looked at every LOOK of them, by the first process for all."""
        self.ticks += 1
        self.tokens += tokens * parallel.WORLD
        if self.ticks > self.UNCOUNTED and self.ticks % self.LOOK:
            return
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        now = time.time()
        if self.ticks > self.UNCOUNTED:
            passed = parallel.first_s(now - self.last, self.device)
            self.spent += passed
            self.left -= passed
        else:
            self.since, self.tokens = now, 0
        self.last = now
        if self.ticks % self.SAY == 0 or self.ticks == 1 or self.left <= 0:
            log(f"{text()}; step {self.ticks}, {self.spent:.0f} of {self.total} s, {self.tokens / max(now - self.since, 1e-9) / 1e3:.0f} k tokens/s")


def in_parts(work, docs, *args):
    """work(part of the documents, *args) -> documents, by as many processes as there are cores."""
    count = max(1, min(os.cpu_count(), len(docs) // 500))
    if count == 1:
        return work(docs, *args)
    edges = np.linspace(0, len(docs), count + 1).astype(int)
    parts = [(texts.slice_of(docs, a, b), *args) for a, b in zip(edges, edges[1:])]
    with multiprocessing.get_context("fork").Pool(count) as pool:
        return texts.join(*pool.starmap(work, parts))


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


def divergences(hidden, embed, told, told_embed, ids):
    """KL(teacher || student), KL(student || teacher) and cross entropy with the text, means over tokens."""
    q = F.linear(hidden, embed).float().log_softmax(-1)
    p = F.linear(told, told_embed).float().log_softmax(-1)
    kl, reverse = (p.exp() * (p - q)).sum(-1).mean(), (q.exp() * (q - p)).sum(-1).mean()
    return kl, reverse, -q[:, :-1].gather(-1, ids[:, 1:, None]).mean()


STAGES = {"write": Run.write, "texts": Run.clean_texts, "adapt": Run.adapt, "begin": Run.begin, "again": Run.again, "train": Run.train, "export": Run.export, "report": Run.report}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=Path)
    parser.add_argument("stages", nargs="+", choices=STAGES)
    parser.add_argument("--try", dest="random", choices=("tiny", "full"))
    parser.add_argument("--write-seconds", type=float, default=170)
    parser.add_argument("--adapt-seconds", type=float, default=100)
    parser.add_argument("--total", type=float, default=900, help="seconds of training over all calls")
    parser.add_argument("--seconds", type=float, help="seconds of training in this call")
    parser.add_argument("--own-seconds", type=float, default=10, help="how long the student writes each time")
    parser.add_argument("--rate", type=float, default=3e-3, help="3e-3 from the first weights, 2e-3 from trained ones")
    parser.add_argument("--shipped", type=Path, default=Path(__file__).resolve().parents[2] / "models/sluice-smol-moe")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    run = Run(args)
    for stage in args.stages:
        log(f"stage {stage}")
        STAGES[stage](run)
    parallel.end()


if __name__ == "__main__":
    main()
