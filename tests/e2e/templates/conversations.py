"""Conversations as clients send them: what every template is rendered with."""

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a place.\nReturns degrees.",
        "parameters": {
            "type": "object",
            "properties": {
                "location": {"type": "string", "description": "City & country, e.g. \"Oslo\" <no zip>"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
                "days": {"type": ["integer", "null"], "description": "How many", "nullable": True, "default": 1},
            },
            "required": ["location"],
        },
    },
}
SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Searches the wéb — 搜索",
        "parameters": {
            "type": "object",
            "properties": {
                "query": {"type": "string"},
                "filters": {
                    "type": "object",
                    "properties": {"site": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}}},
                    "additionalProperties": False,
                },
                "limit": {"type": "number", "default": 10.5},
                "any": {"oneOf": [{"type": "string", "description": "words", "default": "x"}, {"type": "integer"}]},
                "matrix": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}, "minItems": 1},
                "strict": {"type": "boolean", "default": True},
            },
            "required": ["query", "filters"],
            "$defs": {"a": 1},
        },
        "return": {"type": "string", "description": "hits"},
        "strict": True,
    },
}
NO_ARGUMENTS = {"type": "function", "function": {"name": "now", "description": "The time.", "parameters": {"type": "object", "properties": {}}}}
BARE = {"name": "bare", "description": "Not wrapped.", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}}
TOOLS = [WEATHER, SEARCH, NO_ARGUMENTS]


def system(text="You are terse."):
    return {"role": "system", "content": text}


def user(text="What is the weather in Oslo?"):
    return {"role": "user", "content": text}


def assistant(text="It rains.", **more):
    return {"role": "assistant", "content": text, **more}


def call(name="get_weather", arguments=None, id="abcdefghi"):
    arguments = {"location": "Oslo", "days": 2, "note": "a \"b\" <c> é"} if arguments is None else arguments
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def calls(*them, content="", **more):
    return {"role": "assistant", "content": content, "tool_calls": list(them), **more}


def result(content='{"degrees": 7}', **more):
    return {"role": "tool", "name": "get_weather", "tool_call_id": "abcdefghi", "content": content, **more}


def text_part(text):
    return {"type": "text", "text": text}


CONVERSATIONS = {
    "user only": {"messages": [user()]},
    "system and user": {"messages": [system(), user()]},
    "multi-turn": {"messages": [system(), user("Hi"), assistant("Hello!"), user("And now?"), assistant("Now this."), user("Thanks")]},
    "ends with assistant": {"messages": [user("Hi"), assistant("Hello!")], "add_generation_prompt": False},
    "prefilled answer": {"messages": [user("Hi"), assistant("Sure, ")], "add_generation_prompt": False, "continue_final_message": True},
    "no generation prompt": {"messages": [system(), user()], "add_generation_prompt": False},
    "empty": {"messages": []},
    "empty, no prompt": {"messages": [], "add_generation_prompt": False},
    "system alone": {"messages": [system()]},
    "two systems": {"messages": [system("One."), system("Two."), user()]},
    "system later": {"messages": [user("Hi"), system("Now be kind."), user("Hi again")]},
    "developer": {"messages": [{"role": "developer", "content": "Be exact."}, user()]},
    "unknown role": {"messages": [user(), {"role": "critic", "content": "Hm."}]},
    "assistant first": {"messages": [assistant("I begin."), user("Do you?")]},
    "users in a row": {"messages": [user("One"), user("Two"), user("Three")]},
    "white space": {"messages": [system("  padded \n"), user("\n\n line\t\n"), assistant(" \n answer \n\n"), user("  ")]},
    "empty strings": {"messages": [system(""), user(""), assistant(""), user("")]},
    "unicode": {"messages": [system("Réponds en français 🇫🇷"), user("你好，世界 👩‍👩‍👧 \u00a0é\u0301"), assistant("مرحبا"), user("Ωmega ß ﬁ")]},
    "markup": {"messages": [user("<b>&amp;\"quotes\"'</b> {{ x }} {% if %} \\n"), assistant("</s><|im_end|>"), user("[INST] x [/INST]")]},
    "parts": {"messages": [system([text_part("Part one. "), text_part("Part two.")]), {"role": "user", "content": [text_part("Look: "), {"type": "image"}, text_part("what?")]}]},
    "parts with media": {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}, text_part("And this?"), {"type": "video"}, {"type": "audio"}]}, assistant([text_part("A cat.")]), user("Sure?")]},
    "mixed parts": {"messages": [{"role": "user", "content": ["plain", text_part("typed")]}]},
    "tools, no call": {"messages": [system(), user()], "tools": TOOLS},
    "tools without system": {"messages": [user()], "tools": [WEATHER]},
    "tool call": {"messages": [user(), calls(call())], "tools": TOOLS, "add_generation_prompt": False},
    "tool call and result": {"messages": [system(), user(), calls(call()), result()], "tools": TOOLS},
    "tool round trip": {"messages": [user(), calls(call()), result(), assistant("7 degrees."), user("Tomorrow?")], "tools": TOOLS},
    "two calls": {"messages": [user(), calls(call(), call("search", {"query": "q", "filters": {"site": "x.org", "tags": ["a", "b"]}, "limit": 2.5, "strict": False, "any": None}, "bcdefghij")), result(), result("[]", name="search", tool_call_id="bcdefghij")], "tools": TOOLS},
    "call with text": {"messages": [user(), calls(call(), content="Let me look."), result(), assistant("Done.")], "tools": TOOLS, "add_generation_prompt": False},
    "call without content": {"messages": [user(), {"role": "assistant", "tool_calls": [call()]}, result()], "tools": TOOLS},
    "call with null content": {"messages": [user(), calls(call(), content=None), result()], "tools": TOOLS},
    "string arguments": {"messages": [user(), calls(call(arguments='{"location": "Oslo"}')), result()], "tools": TOOLS},
    "no arguments": {"messages": [user(), calls(call("now", {})), result("12:00", name="now")], "tools": TOOLS},
    "bare call": {"messages": [user(), calls({"name": "get_weather", "arguments": {"location": "Oslo"}, "id": "abcdefghi"}), result()], "tools": TOOLS},
    "short id": {"messages": [user(), calls(call(id="x")), result(tool_call_id="x")], "tools": TOOLS},
    "result object": {"messages": [user(), calls(call()), result({"degrees": 7, "list": [1, None, True]})], "tools": TOOLS},
    "result parts": {"messages": [user(), calls(call()), result([text_part("7"), {"output": "deg"}])], "tools": TOOLS},
    "result without call": {"messages": [user(), result()], "tools": TOOLS},
    "ipython": {"messages": [user(), calls(call()), {"role": "ipython", "content": {"output": 7}}], "tools": TOOLS, "tools_in_user_message": False},
    "tool rounds": {"messages": [user(), calls(call()), result(), calls(call("search", {"query": "x"}, "bcdefghij")), result("none", name="search"), user("Well?"), calls(call("now", {}, "cdefghijk")), result("12:00")], "tools": TOOLS},
    "bare tools": {"messages": [user()], "tools": [BARE]},
    "empty tools": {"messages": [user()], "tools": []},
    "null tools": {"messages": [user()], "tools": None},
    "built-in tools": {"messages": [system(), user()], "builtin_tools": ["browser", "python", "brave_search"], "tools": [WEATHER]},
    "reasoning": {"messages": [user("2+2?"), assistant("4", reasoning_content="Two and two.\n"), user("And 3+3?")]},
    "reasoning at the end": {"messages": [user("2+2?"), assistant("4", reasoning_content="Two and two.")], "add_generation_prompt": False},
    "reasoning before calls": {"messages": [user(), calls(call(), reasoning_content="I need the tool."), result(), calls(call(), reasoning_content="Once more."), result()], "tools": TOOLS},
    "thinking field": {"messages": [user("2+2?"), assistant("4", thinking="Two and two."), user("Sure?")]},
    "thinking before a call": {"messages": [user(), calls(call(), thinking="Tool."), result(), assistant("7.", thinking="Easy.")], "tools": TOOLS, "add_generation_prompt": False},
    "thinking and content": {"messages": [user(), calls(call(), content="Hm", thinking="Tool."), result()], "tools": TOOLS},
    "think tags": {"messages": [user("2+2?"), assistant("<think>\nTwo and two.\n</think>\n\n4"), user("Sure?"), assistant("<think>x</think>Yes")]},
    "unclosed think": {"messages": [user("2+2?"), assistant("Two and two.\n</think>\n\n4"), user("Go on")]},
    "thinking on": {"messages": [system(), user()], "enable_thinking": True, "thinking": True},
    "thinking off": {"messages": [system(), user()], "enable_thinking": False, "thinking": False},
    "thinking off, multi-turn": {"messages": [user("a"), assistant("b", reasoning_content="c"), user("d")], "enable_thinking": False},
    "no_think": {"messages": [system("/no_think"), user("Hi /think"), assistant("x"), user("y /nothink")]},
    "preserve thinking": {"messages": [user("a"), assistant("b", reasoning_content="c"), user("d")], "preserve_thinking": True, "clear_thinking": False, "truncate_history_thinking": False},
    "reasoning effort": {"messages": [system(), user()], "reasoning_effort": "high", "model_identity": "You are a test."},
    "documents": {"messages": [system(), user("Who won?")], "documents": [{"title": "One", "text": "A won."}, {"title": "Two", "text": "B lost.\n"}]},
    "date": {"messages": [user()], "date_string": "01 Feb 2027", "strftime_now": None},
    "channel tags": {"messages": [user(), assistant("<|channel|>analysis<|message|>x")]},
    "missing content": {"messages": [{"role": "user"}]},
    "null content": {"messages": [user(), assistant(None), user()]},
    "missing role": {"messages": [{"content": "Who?"}]},
    "names": {"messages": [{"role": "user", "name": "ann", "content": "Hi"}, assistant("Hello ann")]},
    "no messages": {},
    "messages is text": {"messages": "Hi"},
    "long": {"messages": [m for i in range(60) for m in (user(f"question {i} " + "word " * (i % 7)), assistant(f"answer {i}"))]},
}

DEFAULTS = {"add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


def all_globals():
    """name -> the globals of a rendering; undefined `tools` and `documents` in one half, null as transformers passes them in the other."""
    out = {}
    for name, values in CONVERSATIONS.items():
        out[name] = {**DEFAULTS, **values}
        out[name + " (nulls)"] = {"tools": None, "documents": None, **DEFAULTS, **values}
    return out
