#!/usr/bin/env python3
"""Claude Code and Codex against the nano model: the recipes of docs/clients.md, a turn with a tool, a conversation that outgrows the context.

The nano model does not call an agent's tools. So for one request the recorder asks for a tool that it knows, and gives the agent that call
under the name of one of its own.
"""
import asyncio
import json
import os
import re
import sys

import clients

import claude_agent_sdk
import codex_cli_bin
from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient

CLAUDE = os.path.join(os.path.dirname(claude_agent_sdk.__file__), "_bundled", "claude")
CODEX = os.path.join(os.path.dirname(codex_cli_bin.__file__), "bin", "codex")
ASK = "What does a umbrella cost? Look up the price of a guitar."
PRICE = {"name": "get_price", "description": "Look up the price of a product"}
SCHEMA = {"type": "object", "properties": {"product": {"type": "string"}}, "required": ["product"]}
PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="  # 1 x 1


def new_folder(program):
    folder = program.path()
    os.mkdir(folder)
    return folder


def claude_variables(url):
    return dict(re.findall(r"export (\w+)=(\S+)", clients.at(clients.recipe("Claude Code"), url)))


# ---- Claude Code

def test_claude_code(program):
    """With the two variables alone it asks for 128,000 tokens; then as the recipe has it."""
    for only_two in (True, False):
        with clients.served(program, "--context", 65536) as (_, recorder):
            variables = claude_variables(recorder.url)
            flags = re.search(r"claude (.*)", clients.recipe("Claude Code")).group(1).split()
            if only_two:
                variables, flags = {k: v for k, v in variables.items() if k.startswith("ANTHROPIC")}, []
            folder = new_folder(program)
            status, out, err = clients.run_program([CLAUDE, *flags, "-p", "Repeat: apple", "--output-format", "json"], folder, **variables)
            result = json.loads(out.strip().split("\n")[-1])
            yield status == 0 and not result["is_error"] and result["stop_reason"] == "end_turn", (out, err)
            yield recorder.statuses() == [200] * len(recorder.seen) and recorder.bodies()[0]["max_tokens"] > 65536 or not only_two, recorder.statuses()
            yield only_two or recorder.bodies()[0]["model"] == "nano", recorder.bodies()[0]["model"]


async def claude_session(folder, variables, prompts, **options):
    """The messages of each turn."""
    turns = []
    options = ClaudeAgentOptions(model="nano", system_prompt="You answer.", tools=[], setting_sources=[], env={**variables, "HOME": folder}, cwd=folder,
                                 stderr=lambda _: None, **options)
    async with ClaudeSDKClient(options) as client:
        for prompt in prompts:
            await client.query(prompt)
            turns.append([m async for m in client.receive_response()])
    return turns


def test_claude_code_compacts(program):
    """A conversation that outgrows the context: it reads the two numbers, shortens the conversation and goes on."""
    with clients.served(program, "--context", 12288) as (_, recorder):
        folder = new_folder(program)
        variables = {k: v for k, v in claude_variables(recorder.url).items() if k.startswith("ANTHROPIC")}
        turns = asyncio.run(asyncio.wait_for(claude_session(folder, variables, [f"Message {i}. " + "word " * 3500 for i in range(5)]), 400))
        kinds = [getattr(m, "subtype", "") for turn in turns for m in turn]
        yield 400 in recorder.statuses() and recorder.statuses()[-1] == 200, recorder.statuses()
        yield "compact_boundary" in kinds, kinds
        yield len(turns) == 5 and all(not turn[-1].is_error for turn in turns), [turn[-1] for turn in turns]
        tokens = [m.usage["cache_read_input_tokens"] for turn in turns[1:3] for m in turn if type(m).__name__ == "ResultMessage"]
        yield all(n > 3000 for n in tokens), ("what was said before is in the cache", tokens)


def test_claude_code_calls_a_tool(program):
    called = []

    @claude_agent_sdk.tool("get_price", PRICE["description"], {"product": str})
    async def get_price(args):
        called.append(args)
        return {"content": [{"type": "text", "text": "7 coins"}, {"type": "image", "data": PICTURE, "mimeType": "image/png"}]}

    def change(body):
        if called or not body.get("tools"):
            return None
        return ({"model": "nano", "max_tokens": 200, "temperature": 0, "stream": True, "thinking": {"type": "disabled"}, "messages": [{"role": "user", "content": ASK}],
                 "tools": [{**PRICE, "input_schema": SCHEMA}]}, b'"name":"get_price"', b'"name":"mcp__shop__get_price"')

    with clients.served(program, "--context", 16384, change=change) as (_, recorder):
        folder = new_folder(program)
        shop = claude_agent_sdk.create_sdk_mcp_server("shop", "1.0", [get_price])
        turns = asyncio.run(asyncio.wait_for(claude_session(folder, claude_variables(recorder.url), [ASK, "Thank you."], mcp_servers={"shop": shop},
                                                            allowed_tools=["mcp__shop__get_price"], max_turns=6), 300))
        yield called and "product" in called[0], (called, recorder.seen and recorder.seen[0][4][-2000:])
        yield recorder.statuses() == [200] * len(recorder.seen) and len(recorder.seen) >= 3, recorder.statuses()
        results = [b for m in recorder.bodies()[-1]["messages"] for b in m["content"] if isinstance(b, dict) and b["type"] == "tool_result"]
        yield results and all("7 coins" in json.dumps(r) for r in results), results
        yield any(b.get("type") == "image" for r in results for b in r["content"]), ("a picture came back and did not end the session", results)
        yield all(not turn[-1].is_error for turn in turns), [turn[-1] for turn in turns]


# ---- Codex

def codex(recorder, folder, *args, window=None):
    os.makedirs(os.path.join(folder, ".codex"), exist_ok=True)
    config = clients.at(clients.recipe("Codex"), recorder.url)
    if window:
        config = config.replace("model_context_window = 60000", f"model_context_window = {window}")
    with open(os.path.join(folder, ".codex", "config.toml"), "w", encoding="utf-8") as f:
        f.write("check_for_update_on_startup = false\n" + config + "\n[analytics]\nenabled = false\n")
    variable = re.search(r'env_key = "(\w+)"', config).group(1)
    status, out, err = clients.run_program([CODEX, "exec", "--json", "--skip-git-repo-check", *args], folder, CODEX_HOME=os.path.join(folder, ".codex"), **{variable: "none"})
    return status, [json.loads(line) for line in out.split("\n") if line.startswith("{")], err


def test_codex(program):
    """The recipe, then a second turn of the same session."""
    with clients.served(program, "--context", 65536) as (_, recorder):
        folder = new_folder(program)
        for args in (["Repeat: apple"], ["resume", "--last", "Again."]):
            status, events, err = codex(recorder, folder, *args)
            yield status == 0 and events[-1]["type"] == "turn.completed", (events, err[-1000:])
            yield any(e.get("item", {}).get("type") == "agent_message" for e in events), events
        yield recorder.statuses() == [200] * len(recorder.seen) and len(recorder.seen) >= 2, recorder.statuses()
        roles = [i.get("role") for i in recorder.bodies()[-1]["input"]]
        yield "assistant" in roles, roles


def test_codex_calls_a_tool(program):
    """The call has arguments that its tool does not know: the result that it sends says so."""
    def change(body):
        if any("call" in i.get("type", "") for i in body["input"]):
            return None
        return ({"model": "nano", "temperature": 0, "stream": True, "reasoning": {"effort": "none"}, "input": ASK, "store": False,
                 "tools": [{"type": "function", **PRICE, "parameters": SCHEMA}]}, b'"name":"get_price"', b'"name":"exec_command"')

    with clients.served(program, "--context", 65536, change=change) as (_, recorder):
        status, events, err = codex(recorder, new_folder(program), ASK)
        yield status == 0 and events[-1]["type"] == "turn.completed", (events, err[-1000:], recorder.seen and recorder.seen[0][4][-1500:])
        yield recorder.statuses() == [200] * len(recorder.seen) and len(recorder.seen) >= 2, recorder.statuses()
        kinds = [i["type"] for i in recorder.bodies()[-1]["input"]]
        yield kinds.count("function_call") == kinds.count("function_call_output") >= 1, kinds


def test_codex_runs_out_of_room(program):
    """It says what happened instead of repeating a refused request."""
    with clients.served(program, "--context", 8192) as (_, recorder):
        status, events, _ = codex(recorder, new_folder(program), "Repeat: apple", window=8192)
        yield status != 0 and "ran out of room" in json.dumps(events), events
        yield recorder.statuses() == [200] and b"context_length_exceeded" in recorder.seen[0][4], recorder.statuses()


if __name__ == "__main__":
    sys.exit(clients.run_tests(__doc__, clients.tests_in(globals())))
