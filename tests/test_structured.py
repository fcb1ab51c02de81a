"""Answers that have a form: what is asked for is what comes, whatever runs beside it; what cannot be enforced is refused by name.

    python tests/test_structured.py --binary build/deepinfer [--count 120] [--filter TEXT]
also run with sanitizers: --short (not run under TSan: no threads that form_test does not have)
"""
import argparse
import json
import random
import re
import sys

import jsonschema_rs

from program import NANO, Count, Program, tests_in

ASK = "Name a city in json."
OFF = {"type": "disabled"}
CITY = {"type": "object", "properties": {"city": {"type": "string"}, "people": {"type": "integer"}}, "required": ["city", "people"]}
COUNT = 120


def ask(text=ASK, **fields):
    return {"messages": [{"role": "user", "content": text}], "thinking": OFF, "max_tokens": 60, "temperature": 0, **fields}


def form(schema, **more):
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, **more}}}


def answers(prog, requests, *flags):
    result = prog.generate(requests, *flags)
    return result.records()


def random_schema(rng, depth=0):
    """A schema of the kinds that clients send, whose shortest document takes some tens of tokens at most."""
    kinds = ["string", "integer", "number", "boolean", "null", "enum", "length", "range", "pattern"] + ["object", "array", "union"] * (depth < 2)
    kind = "object" if depth == 0 and rng.random() < 0.8 else rng.choice(kinds)
    if kind == "enum":
        return {"enum": rng.sample(["red", "green", "blue", 1, 2.5, None, True, "a \"quoted\" word", "naïve"], 3)}
    if kind == "length":
        return {"type": "string", "minLength": rng.randrange(3), "maxLength": rng.randrange(3, 12)}
    if kind == "range":
        return {"type": "integer", "minimum": rng.randrange(-20, 5), "maximum": rng.randrange(5, 300)}
    if kind == "pattern":
        return {"type": "string", "pattern": rng.choice(["^[a-z]{1,5}$", "^[0-9]{4}-[0-9]{2}$", "^(yes|no)$"])}
    if kind == "array":
        return {"type": "array", "items": random_schema(rng, depth + 1), "minItems": rng.randrange(2), "maxItems": rng.randrange(2, 5)}
    if kind == "union":
        return {"anyOf": [random_schema(rng, depth + 1) for _ in range(2)]}
    if kind == "object":
        names = rng.sample(["city", "name", "people", "tags", "id", "größe", "x-y"], rng.randrange(1, 4))
        return {"type": "object", "properties": {n: random_schema(rng, depth + 1) for n in names}, "required": rng.sample(names, rng.randrange(len(names) + 1)),
                "additionalProperties": rng.random() < 0.2}
    return {"type": kind}


def is_valid(record, schema):
    """The whole text of the answer is one document of the schema, and it ended by itself."""
    try:
        return record["finish_reason"] == "stop" and "constrained" not in record and jsonschema_rs.is_valid(schema, json.loads(record["text"]))
    except (KeyError, ValueError):
        return False


def test_mixed_batches(prog):
    """Schema requests among others: every document is valid, and what the others say does not depend on them."""
    rng = random.Random(5)
    requests, schemas = [], []
    for k in range(COUNT):
        plain, thinking = k % 5 == 4, k % 3 == 0
        schemas.append(None if plain else random_schema(rng))
        more = {"thinking": {"type": "enabled"}, "thinking_token_budget": rng.randrange(1, 12)} if thinking else {}
        requests.append(ask(rng.choice([ASK, "Count to five.", "The sun"]), temperature=k % 2, seed=k, max_tokens=70, **more,
                            **({} if plain else form(schemas[-1]))))
    got = answers(prog, requests, "--max-batch", 16)
    yield len(got) == COUNT, len(got)
    for record, request, schema in zip(got, requests, schemas):
        if schema is not None:
            yield is_valid(record, schema), (schema, record)
    alone = [k for k in range(COUNT) if schemas[k] is None]
    for k, record in zip(alone, answers(prog, [requests[k] for k in alone], "--max-batch", 5)):
        yield record["token_ids"] == got[k]["token_ids"], (record, got[k])


def test_alone_and_in_company(prog):
    """A structured answer is the same in any batch."""
    rng = random.Random(6)
    requests = [ask(temperature=1, seed=k, **form(random_schema(rng))) for k in range(12)]
    full = answers(prog, requests, "--max-batch", 16, "--prefill-chunk", 7)
    for k in (0, 5, 11):
        yield answers(prog, [requests[k]], "--max-batch", 1)[0]["token_ids"] == full[k]["token_ids"], k


def test_every_way_to_ask(prog):
    cases = [({"response_format": {"type": "json_object"}}, lambda t: isinstance(json.loads(t), dict)),
             (form(CITY), lambda t: jsonschema_rs.is_valid(CITY, json.loads(t))),
             ({"guided_json": CITY}, lambda t: jsonschema_rs.is_valid(CITY, json.loads(t))),
             ({"guided_json": json.dumps(CITY)}, lambda t: jsonschema_rs.is_valid(CITY, json.loads(t))),
             ({"json_schema": json.dumps(CITY)}, lambda t: jsonschema_rs.is_valid(CITY, json.loads(t))),
             ({"structured_outputs": {"json": CITY}}, lambda t: jsonschema_rs.is_valid(CITY, json.loads(t))),
             ({"structured_outputs": {"json_object": True}}, lambda t: isinstance(json.loads(t), dict)),
             ({"structured_outputs": {"regex": "[a-z]{3} [0-9]"}}, lambda t: re.fullmatch("[a-z]{3} [0-9]", t)),
             ({"response_format": {"type": "regex", "regex": "[a-z]{3} [0-9]"}}, lambda t: re.fullmatch("[a-z]{3} [0-9]", t)),
             ({"guided_regex": "(ab){2,4}"}, lambda t: re.fullmatch("(ab){2,4}", t)),
             ({"regex": "x[^y]y"}, lambda t: re.fullmatch("x[^y]y", t)),
             ({"guided_choice": ["Paris", "Rome", "naïve"]}, lambda t: t in ("Paris", "Rome", "naïve")),
             ({"structured_outputs": {"choice": ["a", "ab"]}}, lambda t: t in ("a", "ab")),
             ({"guided_grammar": 'root ::= "yes" | "no"'}, lambda t: t in ("yes", "no")),
             ({"ebnf": 'root ::= [0-9] "," [0-9]'}, lambda t: re.fullmatch("[0-9],[0-9]", t)),
             ({"structured_outputs": {"grammar": 'start: NAME "=" /[0-9]/\nNAME: /[a-z]{2}/'}}, lambda t: re.fullmatch("[a-z]{2}=[0-9]", t))]
    for thinking in ({}, {"thinking": {"type": "enabled"}, "thinking_token_budget": 5}):
        for (fields, good), record in zip(cases, answers(prog, [ask(temperature=1, **{**f, **thinking}) for f, _ in cases])):
            yield "text" in record and good(record["text"]) and record["finish_reason"] == "stop" and "constrained" not in record, (fields, record)
            yield bool(record.get("reasoning")) == bool(thinking), (fields, record)
    raw = answers(prog, [{"prompt": "The sun", "max_tokens": 40, "temperature": 0, "guided_json": CITY}])[0]
    yield jsonschema_rs.is_valid(CITY, json.loads(raw["text"])), raw


def test_white_space_and_order(prog):
    schema = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "boolean"}}, "required": ["a", "b"], "additionalProperties": False}
    got = answers(prog, [ask(temperature=1, seed=k, structured_outputs={"json": schema, "disable_any_whitespace": True, "property_order": "declared"}) for k in range(6)])
    for r in got:
        yield re.fullmatch(r'\{"b":-?(0|[1-9]\d*),"a":(true|false)\}', r["text"]), r
    strict = answers(prog, [ask(temperature=1, seed=k, **form(schema, strict=True)) for k in range(6)])
    for r in strict:
        yield list(json.loads(r["text"])) == ["b", "a"], r


def test_few_tokens(prog):
    """The end comes in time where the shortest document fits; told not to, the answer is cut off."""
    letters = {"type": "object", "properties": {"text": {"type": "string", "minLength": 40}}, "required": ["text"]}
    for thinking in ({}, {"thinking": {"type": "enabled"}}):
        for tokens in (20, 40, 80):
            r = answers(prog, [ask("Count to five.", max_tokens=tokens, **form(CITY), **thinking)])[0]
            yield is_valid(r, CITY), r
        r = answers(prog, [ask("Count to five.", max_tokens=100, **form(letters), **thinking)])[0]
        yield is_valid(r, letters), r
    cut = answers(prog, [ask(max_tokens=30, structured_outputs={"json": {"type": "array", "items": {"type": "integer"}, "minItems": 40}, "end_in_time": False})])[0]
    yield cut["finish_reason"] == "length", cut


def test_what_stands_beside_a_form(prog):
    """Penalties, biases, min_tokens, log-probabilities, stop strings."""
    got = answers(prog, [ask(frequency_penalty=2, repetition_penalty=1.5, **form(CITY)), ask(logit_bias={"1": 100}, **form(CITY)),
                         ask(min_tokens=30, temperature=1, **form({"type": "string", "minLength": 2})), ask(logprobs=True, top_logprobs=3, **form(CITY)),
                         ask(stop=["\"city"], **form(CITY)), ask(min_tokens=9, guided_choice=["a", "b"])])
    yield is_valid(got[0], CITY) and is_valid(got[1], CITY) and len(got[2]["token_ids"]) > 30, got[:3]
    yield is_valid(got[3], CITY) and len(got[3]["logprobs"]["content"]) == len(got[3]["token_ids"]), got[3]
    yield got[4]["finish_reason"] == "stop" and '"city' not in got[4]["text"], got[4]
    yield "min_tokens" in got[5]["error"]["message"] and "token 1 of the answer" in got[5]["error"]["message"], got[5]
    end = answers(prog, [ask(stop_token_ids=[67], guided_regex="[ab]c+d"), ask(stop_token_ids=[67], guided_regex="aa+b")])  # 67 is "a": an end only
    yield re.fullmatch("bc+d", end[0]["text"]) and "nothing may follow" in end[1]["error"]["message"], end
    # an end in good time is spelled without ids that end answers (here of "}, the tokenizer's last one)
    name = {"type": "object", "properties": {"name": {"type": "string", "minLength": 9}}, "required": ["name"]}
    short = answers(prog, [ask(stop_token_ids=[529], max_tokens=n, **form(name)) for n in range(22, 40, 3)])
    yield all("text" in r and is_valid(r, name) for r in short), short
    on = answers(prog, [ask(ignore_eos=True, max_tokens=12, guided_choice=["yes"])])[0]
    yield on["text"] == "yes" and len(on["token_ids"]) == 12, on


def test_letters_that_numbers_have(prog):
    """Numbers are written without exponents; a word of a list may be an e."""
    for schema in ({"enum": ["n", "e", "s", "w"]}, {"type": "object", "properties": {"x": {"const": 1}, "e": {"const": 2}},
                                                      "additionalProperties": False, "minProperties": 1}):
        r = answers(prog, [ask(logit_bias={"71": 100}, **form(schema))])[0]  # 71 is "e"
        yield '"e"' in r["text"] and is_valid(r, schema), r


def test_newlines_of_a_form(prog):
    """A newline at the beginning is part of what was asked for."""
    for thinking in ({}, {"thinking": {"type": "enabled"}, "thinking_token_budget": 3}):
        r = answers(prog, [ask(guided_choice=["\nyes"], **thinking)])[0]
        yield r["text"] == "\nyes" and bool(r["reasoning"]) == bool(thinking), r


def test_an_end_before_min_tokens(prog):
    """An end that comes before min_tokens is not the last one that is looked for."""
    for r in answers(prog, [ask(temperature=1, seed=k, max_tokens=40, min_tokens=38, guided_regex="([a-z]{3} )+") for k in (1, 2, 3)]):
        yield r["finish_reason"] == "stop" and re.fullmatch("([a-z]{3} )+", r["text"]) and len(r["token_ids"]) > 38, r


def test_unknown_members_are_refused(prog):
    """A form that is misspelled is none, and nothing would be enforced."""
    r = answers(prog, [ask(structured_outputs={"regexp": "a"}), ask(structured_outputs={"regex": "a", "whitespace_pattern": None, "end_in_time": True})])
    yield "structured_outputs.regexp" in r[0]["error"]["message"], r[0]
    yield r[1].get("text") == "a", r[1]


def test_a_mark_of_calls_does_not_end_reasoning(prog):
    """Without tools it is text: the budget of the reasoning holds beside it. 5080 and 5081: </think> and the mark."""
    r = answers(prog, [ask(max_tokens=20, logit_bias={"5081": 90}, thinking={"type": "enabled"}, thinking_token_budget=5)])[0]
    yield r["token_ids"][:6] == [5081] * 5 + [5080], r


WEATHER = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}, "unit": {"enum": ["C", "F"]},
                                            "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 2}}, "required": ["city", "days"], "additionalProperties": False}
NOTE = {"type": "object", "properties": {"text": {"type": ["string", "null"]}, "at": {"$ref": "#/$defs/point"}}, "required": ["at"], "additionalProperties": False,
        "$defs": {"point": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"], "additionalProperties": False}}}
SCHEMAS = {"get_weather": WEATHER, "note": NOTE, "now": {"type": "object", "properties": {}}, "odd": {"type": "object", "properties": {"a \\b": {"type": "boolean"}}},
           "price": {"type": "object", "properties": {"item": {"type": "string", "pattern": "^[a-z]{2,6}$"}, "euros": {"type": "number", "minimum": 0}}, "required": ["item", "euros"],
                     "additionalProperties": False}}


def tools(*names, strict=False):
    return [{"type": "function", "function": {"name": n, "description": "", "parameters": SCHEMAS[n], **({"strict": True} if strict else {})}} for n in names]


def calls_fit(record, names=SCHEMAS):
    """Each call is one of an offered tool whose arguments fit its schema; one that the limit cut off counts for nothing."""
    calls = [c["function"] for c in record["tool_calls"]]
    whole = calls if record["finish_reason"] != "length" else calls[:-1]
    return "constrained" not in record and all(c["name"] in names and jsonschema_rs.is_valid(SCHEMAS[c["name"]], json.loads(c["arguments"])) for c in whole)


def test_forced_calls(prog):
    """tool_choice required and named, with and without thinking: calls come, and they fit."""
    requests = []
    for k in range(24 if COUNT > 100 else 8):
        names = list(SCHEMAS) if k % 2 else ["get_weather", "now"]
        choice = "required" if k % 4 < 2 else {"type": "function", "function": {"name": names[0]}}
        thinking = {"thinking": {"type": "enabled"}, "thinking_token_budget": 4} if k % 3 == 0 else {}
        requests.append(ask("How is the weather in Rome?", temperature=1, seed=k, max_tokens=150, tools=tools(*names), tool_choice=choice, **thinking))
    got = answers(prog, requests)
    for q, r in zip(requests, got):
        named = q["tool_choice"] != "required"
        yield calls_fit(r, [q["tools"][0]["function"]["name"]] if named else SCHEMAS), r
        yield r["finish_reason"] == "length" or (r["finish_reason"] == "tool_calls" and r["tool_calls"] and not r["text"]), r
    yield sum(r["finish_reason"] == "tool_calls" for r in got) > len(got) / 3, [r["finish_reason"] for r in got]
    single = answers(prog, [ask(temperature=1, seed=k, max_tokens=150, tools=tools("now", "get_weather"), tool_choice="required", parallel_tool_calls=False) for k in range(4)])
    for r in single:
        yield len(r["tool_calls"]) == 1 and calls_fit(r), r


def test_calls_when_the_model_wants(prog):
    """tool_choice auto: what the model opens is held to the tools; what it does not open is as free as without them."""
    requests = [ask("How is the weather in Rome?", temperature=1, seed=k, max_tokens=150, tools=tools("price" if k % 2 else "get_weather", strict=k % 2 == 1),
                    tool_choice="required" if k == 5 else "auto") for k in range(6)]
    for r in answers(prog, requests):
        yield calls_fit(r) or not r["tool_calls"], r


def test_forms_beside_tools(prog):
    """The answer is of the form, or calls."""
    forms = [({"guided_choice": ["yes", "no"]}, lambda t: t in ("yes", "no")), (form(CITY), lambda t: jsonschema_rs.is_valid(CITY, json.loads(t))),
             ({"guided_regex": "[a-c]{2,3}/x"}, lambda t: re.fullmatch("[a-c]{2,3}/x", t))]
    for fields, good in forms:
        for thinking in ({}, {"thinking": {"type": "enabled"}, "thinking_token_budget": 4}):
            r = answers(prog, [ask("How is the weather in Rome?", max_tokens=150, tools=tools("get_weather"), **fields, **thinking)])[0]
            yield r["finish_reason"] == "length" or (calls_fit(r) and (r["tool_calls"] and not r["text"] or good(r["text"]))), (fields, r)
    refused = answers(prog, [ask(tools=tools("now"), guided_grammar='root ::= "a"')])[0]
    yield refused["error"]["code"] == "unsupported" and "grammar" in refused["error"]["message"], refused


# ---- what was reported of other engines (docs/reports.md)

def test_white_space_comes_to_an_end(prog):
    """A model that writes nothing but line breaks in JSON mode is made to write JSON."""
    for k in range(4):
        r = answers(prog, [{"prompt": "The sun", "max_tokens": 300, "temperature": 1, "seed": k, "logit_bias": {"201": 90}, "response_format": {"type": "json_object"}}])[0]
        yield re.fullmatch(r" ?\{.*", r["text"], re.S), r


def report_43_bad_expressions_are_refused(prog):
    bad = [{"guided_regex": "(a"}, {"guided_regex": "a{3,2}"}, {"guided_regex": "[z-a]"}, {"guided_grammar": 'root ::= "a'}, {"guided_grammar": "root ::= missing"},
           {"response_format": {"type": "regex", "regex": "(?<=a)b"}}, {"guided_json": {"type": "strin"}}, {"guided_json": {"$ref": "#/$defs/none"}},
           {"guided_choice": []}, form({"type": "string", "pattern": "("})]
    for fields, r in zip(bad, answers(prog, [ask(**f) for f in bad])):
        yield r.get("error", {}).get("code") in ("invalid", "unsupported") and next(iter(fields)) in r["error"]["message"], (fields, r)


def report_45_a_token_over_the_end(prog):
    """Tokens that go on behind the end of the text are not allowed; those that end on it are."""
    for expression in ("th", "the", "ther", "\\{\"a\":1\\}", " ?json"):
        for k in range(3):
            r = answers(prog, [ask(temperature=1, seed=k, guided_regex=expression)])[0]
            yield re.fullmatch(expression, r["text"]) and r["finish_reason"] == "stop", r


def report_48_an_object_without_required(prog):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}
    for thinking in (OFF, {"type": "enabled"}):
        for strict in (False, True):
            r = answers(prog, [ask(temperature=1, max_tokens=80, **{**form(schema, strict=strict), "thinking": thinking})])[0]
            yield is_valid(r, schema), r


def report_49_json_schema_while_thinking(prog):
    r = answers(prog, [ask(max_tokens=80, **{**form(CITY), "thinking": {"type": "enabled"}})])[0]
    yield r["reasoning"] and is_valid(r, CITY), r


def report_50_json_mode_with_and_without_thinking(prog):
    for thinking in (OFF, {"type": "enabled"}):
        r = answers(prog, [ask(max_tokens=80, thinking=thinking, response_format={"type": "json_object"})
                           if thinking == OFF else {**ask(max_tokens=80, response_format={"type": "json_object"}), "thinking": thinking}])[0]
        yield bool(r["reasoning"]) == (thinking != OFF) and isinstance(json.loads(r["text"]), dict), r


def main():
    global COUNT
    a = argparse.ArgumentParser()
    a.add_argument("--binary", required=True)
    a.add_argument("--count", type=int, default=COUNT, help="requests of the mixed batches")
    a.add_argument("--short", action="store_true", help="few of them")
    a.add_argument("--filter", default="")
    args = a.parse_args()
    COUNT = 40 if args.short else args.count
    count, prog = Count(), Program(args.binary)
    for test in tests_in(globals(), args.filter, ("test_", "report_")):
        count.attempt(test, prog)
    return count.finish()


if __name__ == "__main__":
    sys.exit(main())
