"""What the teacher is asked to write: prompts made from tables of phrases and WordNet's words, drawn with a seed.

A prompt is (kind, text, ends, first temperature, later temperature). The teacher continues `text` until it has ended `ends` turns: with 1 it only
answers, with 2 it first writes the user's turn itself, with 4 two turns of each side. User turns are drawn hotter than answers, so that questions
differ while answers stay clean; raw text is drawn at 0.9, because at 1 this teacher loses itself after a hundred tokens.
"""

import random

from . import everyday

SYSTEM = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
USER, ASSISTANT, END = "<|im_start|>user\n", "<|im_start|>assistant\n", "<|im_end|>\n"
TEXT_START = "<|endoftext|>"

# Shares of the prompts by kind.
SHARES = {"chat": 0.13, "begun": 0.20, "turns": 0.04, "question": 0.14, "everyday": 0.20, "story": 0.20, "article": 0.05, "entry": 0.03, "free": 0.01}

# How a user's turn may begin; the teacher goes on.
BEGINNINGS = """What is|What are|How do I|How can I|How does|Why do|Why is|Why are|Can you explain|Can you tell me|Tell me about|Explain|Describe|Write a|
Write a short|Give me|List|I need|I want to|I'm trying to|I have a|What's the best way to|What's the difference between|Who was|When did|Where is|Please|
Could you|Is it|Should I|Hi, I|Hello! I|Help me|Summarize|Create a|Compare|Which|My friend|Suggest|In your opinion,|Imagine""".replace("\n", "").split("|")  # fmt: skip

# {n} noun, {m} another noun, {a} adjective, {v} verb, {N} named thing.
QUESTIONS = """What is {n}?|What is {n} used for?|Explain {n} in simple words.|Explain to a child what {n} is.|What is the difference between {n} and {m}?|
Why is {n} important?|How does {n} work?|Give me three facts about {n}.|Give me five tips about {n}.|Tell me something interesting about {n}.|
Write a short paragraph about {n}.|Write a poem about {n}.|Write a haiku about {n}.|Write a short poem about {a} {n}.|Describe {n} in two sentences.|
List five words related to {n}.|How can I learn more about {n}?|What should I know about {n} and {m}?|What does the word "{a}" mean?|What does "{v}" mean?|
Use the word "{a}" in a sentence.|Use "{n}" and "{m}" in one sentence.|Give me a synonym for "{a}".|What is the opposite of "{a}"?|How do I {v}?|
Who or what is {N}?|Tell me about {N}.|Write a short article about {N}.|What is {N} known for?|Why is {N} famous?|Give me two facts about {N}.|
Summarize the history of {n}.|What are the advantages and disadvantages of {n}?|Write an email to a friend about {n}.|Write a polite email about {n}.|
Write a short dialogue between two friends about {n}.|Suggest a name for a shop that sells {n}.|Write a slogan for {n}.|Make a list of things to do with {n}.|
Is {n} {a}? Explain briefly.|Can {n} be {a}?|Write three questions about {n}.|How is {n} related to {m}?|Give an example of {n}.|
Write step by step instructions for someone who wants to {v}.|I feel {a} today. What should I do?|My teacher asked me about {n}. What can I say?|
Rewrite this sentence to be more formal: "The {n} is really {a}."|Correct the grammar: "The {n} are very {a} and it {v} yesterday."|
Translate into plain English: the {a} {n} of {N}.|Classify as positive or negative: "This {n} is {a}."|Answer in one sentence: what is {n}?|
Plan a day around {n}.|What would happen if there were no {n}?|Recommend a hobby for someone who likes {n} and {m}.|Compare {n} with {m}.""".replace("\n", "").split("|")  # fmt: skip

STORIES = """Write a short story about {w} and {n}.|Tell me a story about {a} {n}.|Write a story about {w} who finds {n}.|Tell me a bedtime story about {w}.|
Write a story that begins with the words: "{W} had never seen such {a} {n}."|Write a short story with the words "{n}", "{m}" and "{a}".|
Tell me a funny story about {w} and {n}.|Write a short adventure story set in {N}.|Write a fairy tale about {w} and {a} {n}.|
Write the first paragraph of a novel about {n}.|Tell a story about {w} who learns about {n}.|Write a mystery story about a missing {n}.|
Write a story for children about {w}, {n} and {m}.|Write a short science fiction story about {n}.|Tell me a story with a happy ending about {w}.|
Continue this story: "{W} opened the door and saw {a} {n}."|Write a story about a friendship between {w} and {x}.""".replace("\n", "").split("|")  # fmt: skip

WHO = """a little girl named Lily|a boy named Tom|an old fisherman|a brave knight|a young fox|a clever mouse|a lonely robot|a small dragon|a curious cat|
a farmer and his dog|a princess|a wizard|two sisters|a lost puppy|a tired teacher|a young doctor named Anna|a baker|a sailor|a bear named Bruno|
a shy boy named Sam|a girl named Maya|a grandmother|a detective|an astronaut|a painter|a musician named Leo|a talking tree|a tiny bird|a kind giant|
a king|a thief|a turtle|a rabbit named Clover|a scientist|a gardener|a boy named Ben and his sister Sue|a student named Omar|an owl|a snowman|
a pirate|a horse|a girl named Zoe|a clockmaker|a shepherd|a queen|a lion|a frog|a mother and her son""".replace("\n", "").split("|")  # fmt: skip

# {N} the name, {g} what WordNet says of it.
ENTRIES = """{N} is {g}.|{N} was|{N} is|{N} (|{N}, {g},|The history of {N}|{N}\n\n{N} is {g}. | = {N} = \n \n {N} ( | = {N} = \n \n {N} is| = {N} = \n \n {N} was| = {N} = \n \n The""".split("|")  # fmt: skip


class Prompts:
    """words: of words.load; articles: pieces of encyclopedic text that the teacher goes on from."""

    def __init__(self, words, articles, seed):
        self.words, self.articles, self.random = words, articles, random.Random(seed)
        self.makers = {k: getattr(self, k) for k in SHARES}

    def draw(self):
        kind = self.random.choices(list(SHARES), SHARES.values())[0]
        return kind, *self.makers[kind]()

    def fill(self, template):
        pick, words = self.random.choice, self.words
        name, _, gloss = pick(words["named"])
        who = pick(WHO)
        values = {"n": pick(words["noun"]), "m": pick(words["noun"]), "a": pick(words["adj"]), "v": pick(words["verb"]), "N": name, "g": gloss}
        return template.format(w=who, W=who[0].upper() + who[1:], x=pick(WHO), **values)

    def chat(self):
        return SYSTEM + USER, 2, 1.0, 0.7

    def begun(self):
        return SYSTEM + USER + self.random.choice(BEGINNINGS), 2, 1.0, 0.7

    def turns(self):
        start = self.random.choice(["", *BEGINNINGS])
        return SYSTEM + USER + start, 4, 0.9, 0.7

    def answer_to(self, text, temperature):
        return SYSTEM + USER + text + END + ASSISTANT, 1, temperature, temperature

    def question(self):
        return self.answer_to(self.fill(self.random.choice(QUESTIONS)), 0.7)

    def everyday(self):
        return self.answer_to(everyday.draw(self.random), 0.7)

    def story(self):
        return self.answer_to(self.fill(self.random.choice(STORIES)), 0.8)

    def article(self):
        return TEXT_START + self.random.choice(self.articles), 1, 0.9, 0.9

    def entry(self):
        return TEXT_START + self.fill(self.random.choice(ENTRIES)), 1, 0.9, 0.9

    def free(self):
        return TEXT_START, 1, 0.9, 0.9
