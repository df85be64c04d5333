"""Chats whose answers have a fixed form: JSON objects, tool calls, lists, and who the model is. Made by rule, because the teacher is weak at them."""

import json
import random

from .prompts import ASSISTANT, END, USER

FIRST = "Anna Ben Carla David Emma Felix Grace Hugo Ines Jack Kira Leo Maya Noah Olga Paul Rosa Sam Tina Viktor Wendy Yusuf Zoe".split()
LAST = "Smith Novak Garcia Kim Rossi Müller Silva Okafor Tanaka Brown Jensen Dubois Haddad Lopez Patel Ivanova".split()
CITIES = "Paris London Tokyo Berlin Madrid Cairo Lima Oslo Rome Delhi Sydney Toronto Boston Prague Vienna Nairobi Seoul Dublin Lisbon Athens".split()
JOBS = "teacher nurse baker engineer farmer pilot painter doctor lawyer musician driver writer gardener cook scientist".split()
ITEMS = "apples pears books pens lamps chairs shirts cups eggs lemons hats shoes bottles towels notebooks keys candles".split()
COLOURS = "red blue green yellow black white brown grey purple orange".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()

SELF = """I am a small language model: a mixture of experts with 52 million weights, distilled from SmolLM2-135M-Instruct. I run in Sluice.|
I'm a tiny mixture-of-experts model made for Sluice. I was trained on text written by SmolLM2-135M-Instruct, and I make mistakes easily.""".replace("\n", "").split("|")  # fmt: skip
WHO_ARE_YOU = """Who are you?|What are you?|What is your name?|Tell me about yourself.|Are you a person?|What model are you?|Which model is this?|Who made you?|
Introduce yourself.|Are you ChatGPT?|hi, who are you?|What can you tell me about yourself?""".replace("\n", "").split("|")  # fmt: skip


def chat(*turns, system=None):
    """-> (prompt, answer): all up to the last answer, and that answer."""
    head = f"<|im_start|>system\n{system}{END}" if system else ""
    return head + USER + turns[0] + END + ASSISTANT, turns[1] + "<|im_end|>"


def person(r):
    return {"name": f"{r.choice(FIRST)} {r.choice(LAST)}", "age": r.randint(6, 90), "city": r.choice(CITIES), "job": r.choice(JOBS)}


def extract(r):
    p = person(r)
    fields = r.sample(list(p), r.randint(2, 4))
    told = f"{p['name']} is {p['age']} years old, lives in {p['city']} and works as a {p['job']}."
    ask = r.choice([f"Extract {', '.join(fields)} as JSON: {told}", f"{told} Give me JSON with the fields {', '.join(fields)}.", f'Text: "{told}"\nReturn a JSON object with {" and ".join(fields)}.'])
    return chat(ask, json.dumps({f: p[f] for f in fields}, ensure_ascii=False))


def invent(r):
    n = r.randint(1, 3)
    people = [{k: v for k, v in person(r).items() if k in ("name", "age")} for _ in range(n)]
    ask = r.choice(["Write a JSON array with {n} people, each with name and age.", "Make up {n} people (name, age) and answer in JSON only."]).format(n=n)
    return chat(ask, json.dumps(people, ensure_ascii=False))


def order(r):
    lines = [{"item": i, "colour": r.choice(COLOURS), "count": r.randint(1, 20)} for i in r.sample(ITEMS, r.randint(1, 3))]
    told = ", ".join(f"{x['count']} {x['colour']} {x['item']}" for x in lines)
    return chat(f"{r.choice(['Turn this order into JSON', 'Order as JSON', 'Convert to JSON'])}: {told}", json.dumps({"items": lines}))


def listing(r):
    items = r.sample(r.choice([ITEMS, CITIES, COLOURS, JOBS, DAYS]), r.randint(2, 5))
    form = r.choice(["a JSON array", "a bulleted list", "a numbered list", "a line separated by commas"])
    out = {
        "a JSON array": json.dumps(items),
        "a bulleted list": "\n".join(f"- {i}" for i in items),
        "a numbered list": "\n".join(f"{n}. {i}" for n, i in enumerate(items, 1)),
        "a line separated by commas": ", ".join(items),
    }[form]
    return chat(f"Write {' and '.join(items)} as {form}.", out)


TOOLS = {
    "get_weather": ({"city": "string"}, ["What's the weather in {city}?", "Is it raining in {city}?", "How warm is it in {city} today?"]),
    "set_alarm": ({"day": "string", "hour": "integer"}, ["Wake me at {hour} o'clock on {day}.", "Set an alarm for {day} at {hour}."]),
    "add_to_cart": ({"item": "string", "count": "integer"}, ["Put {count} {item} in my cart.", "I want to buy {count} {item}.", "Add {count} {item} please."]),
    "send_message": ({"to": "string", "text": "string"}, ["Tell {to}: {text}", "Send {to} the message '{text}'."]),
    "add": ({"a": "integer", "b": "integer"}, ["What is {a} plus {b}?", "Add {a} and {b}."]),
}
MESSAGES = ["I will be late", "See you tomorrow", "Happy birthday", "Call me back", "Dinner is ready", "The meeting is moved", "Thank you"]


def tool_call(r):
    names = r.sample(list(TOOLS), r.randint(1, 4))
    name = r.choice(names)
    values = {"city": r.choice(CITIES), "day": r.choice(DAYS), "hour": r.randint(5, 11), "item": r.choice(ITEMS), "count": r.randint(2, 12), "to": r.choice(FIRST), "text": r.choice(MESSAGES), "a": r.randint(1, 99), "b": r.randint(1, 99)}
    parameters, asks = TOOLS[name]
    described = "\n".join(json.dumps({"name": n, "parameters": TOOLS[n][0]}) for n in names)
    system = f"You can call these tools:\n{described}\nTo call one, answer with a JSON object with name and arguments inside <tool_call></tool_call>."
    call = {"name": name, "arguments": {p: values[p] for p in parameters}}
    return chat(r.choice(asks).format(**values), f"<tool_call>\n{json.dumps(call)}\n</tool_call>", system=system)


def arithmetic(r):
    a, b = r.randint(0, 20), r.randint(0, 20)
    return r.choice([chat(f"What is {a} + {b}?", f"{a} + {b} = {a + b}."), chat(f"What is {max(a, b)} - {min(a, b)}?", f"{max(a, b)} - {min(a, b)} = {abs(a - b)}.")])


def identity(r):
    return chat(r.choice(WHO_ARE_YOU), r.choice(SELF))


SHARES = {extract: 5, invent: 2, order: 4, listing: 4, tool_call: 6, arithmetic: 2, identity: 1}


def draw(count, seed):
    r = random.Random(seed)
    return [r.choices(list(SHARES), SHARES.values())[0](r) for _ in range(count)]
