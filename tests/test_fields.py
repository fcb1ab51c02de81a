#!/usr/bin/env python3
"""Every field of docs/openapi.yaml with every JSON type that it does not allow: a 400 whose error names the field, on every path, streamed and not.

The requests are made from the description alone: one that is accepted for each operation, then one more for each field, also inside objects and
lists, and each wrong type. null counts as absent everywhere.
"""
import argparse
import copy
import json
import os
import re
import sys

import yaml

from program import ROOT, Count, Program
from serving import Server

VALUES = {"boolean": True, "integer": 7, "number": 7.5, "string": "x", "array": [], "object": {}}


class Page:
    def __init__(self):
        with open(os.path.join(ROOT, "docs", "openapi.yaml"), encoding="utf-8") as f:
            self.page = yaml.safe_load(f)

    def branches(self, schema):
        """The schemas without $ref and anyOf whose union it is; allOf is one object with all properties."""
        if "$ref" in schema:
            node = self.page
            for key in schema["$ref"][2:].split("/"):
                node = node[key]
            return self.branches(node)
        if "anyOf" in schema:
            return [b for s in schema["anyOf"] for b in self.branches(s)]
        if "allOf" in schema:
            whole = {"type": "object", "properties": {}, "required": []}
            for part in [b for s in schema["allOf"] for b in self.branches(s)]:
                whole["properties"].update(part.get("properties", {}))
                whole["required"] += part.get("required", [])
            return [whole]
        return [schema]

    @staticmethod
    def types(branch):
        if "const" in branch or "enum" in branch:
            return {{str: "string", bool: "boolean", int: "integer"}[type(v)] for v in branch.get("enum", [branch.get("const")])}
        t = branch.get("type", [])
        found = {t} if isinstance(t, str) else set(t)
        return found | {"integer"} if "number" in found else found

    def example(self, schema):
        branch = self.branches(schema)[0]
        if "const" in branch or "enum" in branch:
            return branch.get("const", branch.get("enum", [None])[0])
        kind = next(t for t in ("boolean", "integer", "number", "string", "array", "object") if t in self.types(branch))
        if kind in ("integer", "number"):
            return max(branch.get("minimum", 1), min(1, branch.get("maximum", 1)))
        if kind == "array":
            return [self.example(branch["items"])] if "items" in branch else []
        if kind == "object":
            return {k: self.example(branch["properties"][k]) for k in branch.get("required", []) if k in branch["properties"]}
        return VALUES[kind]

    def operations(self):
        for path, item in self.page["paths"].items():
            if "requestBody" in item.get("post", {}):
                yield path, item["post"]["requestBody"]["content"]["application/json"]["schema"]

    def fields(self, schema, place=()):
        """(place, schema) of every member and list entry below it; a place is the keys and indices that lead there."""
        for branch in self.branches(schema):
            for key, value in branch.get("properties", {}).items():
                yield (*place, key), value
                yield from self.fields(value, (*place, key))
            if "items" in branch:
                yield (*place, 0), branch["items"]
                yield from self.fields(branch["items"], (*place, 0))
            if isinstance(branch.get("additionalProperties"), dict):
                yield (*place, "7"), branch["additionalProperties"]


def name_of(place):
    return "".join(f"[{k}]" if isinstance(k, int) else f".{k}" for k in place)[1:]


def put(page, request, schema, place, value):
    """The request with this value there; what stands around it is made from the description, in the branch that has such a place."""
    if not place:
        return value
    key, rest = place[0], place[1:]
    for branch in page.branches(schema):
        inner = branch.get("items") if isinstance(key, int) else branch.get("properties", {}).get(key, branch.get("additionalProperties"))
        if not isinstance(inner, dict):
            continue
        whole = copy.deepcopy(request)
        if not isinstance(whole, list if isinstance(key, int) else dict) or not fits(branch, whole):
            whole = page.example(branch) if not isinstance(key, int) else [page.example(inner)]
        old = (whole[0] if whole else None) if isinstance(key, int) else whole.get(key)
        try:
            new = put(page, page.example(inner) if old is None else old, inner, rest, value)
        except LookupError:
            continue
        if isinstance(key, int):
            return [new, *whole[1:]]
        return {**whole, key: new}
    raise LookupError(f"no {place} in {schema}")


def fits(branch, value):
    if isinstance(value, list):
        return branch.get("type") == "array"
    return all(value.get(k) == s["const"] for k, s in branch.get("properties", {}).items() if "const" in s and k in value)


def wrong_values(page, schema):
    """(place, kind, value): a field may stand in several forms of its request."""
    allowed = {}
    for place, field in page.fields(schema):
        allowed.setdefault(place, set()).update(*(page.types(b) for b in page.branches(field)))
    return [(place, kind, value) for place, types in allowed.items() if types for kind, value in VALUES.items() if kind not in types]


def named(error, place):
    """Does the error name the field, or the list that it is an entry of?"""
    want = name_of(place)
    names = {want, name_of(place[:-1])} if isinstance(place[-1], int) else {want}
    names |= {re.sub(r"\.7$", "", want)} if place[-1] == "7" else set()
    message = error.get("message", "")
    return any(message.startswith(n + ":") and error.get("param", n) == n for n in names if n)


def check(page, server, path, schema, stream):
    base = page.example(schema)
    limit = next((k for k in ("max_tokens", "max_output_tokens") if k in page.branches(schema)[0].get("properties", {})), None)
    if limit:
        base[limit] = 1
    if stream:
        base["stream"] = True
    good = server.post(path, base)
    yield good.status == 200, (path, base, good)
    for place, kind, value in wrong_values(page, schema):
        request = put(page, base, schema, place, value)
        if "stream_options" in request:
            request["stream"] = True
        r = server.post(path, request)
        try:
            error = r.json().get("error") or {}
        except ValueError:
            error = {}
        yield r.status == 400 and named(error, place), f"{path} {name_of(place)} of type {kind}: {json.dumps(request)[:300]} {r.status} {r.body[:300]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", default="build/deepinfer")
    args = parser.parse_args()
    program, count, page = Program(args.binary), Count(), Page()
    with Server(program, "--context", 1024, "--max-batch", 4, "--quiet", "--response-store", 4) as server:
        for path, schema in page.operations():
            streams = any("stream" in b.get("properties", {}) for b in page.branches(schema))
            for stream in (False, True)[:1 + streams]:
                count.group(f"{path}{', streamed' if stream else ''}", check(page, server, path, schema, stream))
    count.group("it ended well", [(server.status == 0, server.status)])
    return count.finish()


if __name__ == "__main__":
    sys.exit(main())
