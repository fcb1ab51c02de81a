#!/usr/bin/env python3
"""LiteLLM, instructor, pydantic-ai and LangChain against the nano model: the recipes of docs/clients.md, streams, and what they make of a prompt
that is too long."""
import sys

import clients

import litellm
import pydantic_ai
from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI

LONG = "word " * 3000
HI = [{"role": "user", "content": "Repeat: apple"}]


def run(recorder, heading):
    return clients.run_python(clients.at(clients.recipe(heading), recorder.url))


def refusal(call):
    try:
        return call()
    except Exception as e:
        return e


def test_litellm(program):
    with clients.served(program, "--context", 2048) as (_, recorder):
        printed, _ = run(recorder, "LiteLLM")
        yield printed.strip(), printed  # sampled, so anything
        yield recorder.statuses() == [200, 200] and recorder.bodies()[1]["max_tokens"] > 2048, (recorder.statuses(), recorder.bodies())
        for model, base in (("openai/nano", recorder.url + "/v1"), ("anthropic/nano", recorder.url)):
            ask = {"model": model, "api_base": base, "api_key": "none", "num_retries": 0, "temperature": 0}
            chunks = list(litellm.completion(messages=HI, stream=True, **ask))
            yield "apple" in "".join(c.choices[0].delta.content or "" for c in chunks if c.choices), chunks
            e = refusal(lambda ask=ask: litellm.completion(messages=[{"role": "user", "content": LONG}], **ask))
            yield isinstance(e, litellm.ContextWindowExceededError), (model, type(e), e)
        r = litellm.responses(model="openai/nano", input="Repeat: apple", api_base=recorder.url + "/v1", api_key="none", temperature=0)
        yield "apple" in str(r.output), r


def test_instructor(program):
    with clients.served(program, "--context", 2048) as (_, recorder):
        printed, _ = run(recorder, "instructor")
        yield printed.strip(), printed
        yield 200 in recorder.statuses() and recorder.bodies()[0]["tool_choice"]["function"]["name"] == "get_price", recorder.statuses()


def test_pydantic_ai(program):
    with clients.served(program, "--context", 2048) as (_, recorder):
        _, names = run(recorder, "pydantic-ai")
        yield recorder.statuses() == [200] * len(recorder.seen) and len(recorder.seen) >= 2, recorder.statuses()
        roles = [m["role"] for m in recorder.bodies()[-1]["messages"]]
        yield roles[:3] == ["user", "assistant", "tool"], roles
        e = refusal(lambda: names["agent"].run_sync(LONG))
        yield isinstance(e, pydantic_ai.exceptions.ModelHTTPError) and "maximum context length" in str(e), e


def test_langchain(program):
    with clients.served(program, "--context", 2048) as (_, recorder):
        printed, names = run(recorder, "LangChain")
        yield "apple" in printed.split("\n")[0] and "get_price" in printed.split("\n")[1], printed
        yield recorder.statuses() == [200] * len(recorder.seen), recorder.statuses()
        yield "apple" in "".join(c.content for c in names["model"].stream("Repeat: apple")), "a stream"
        e = refusal(lambda: names["model"].invoke(LONG))
        yield type(e).__name__ == "OpenAIContextOverflowError", (type(e), e)
        e = refusal(lambda: ChatOpenAI(model="nano", base_url=recorder.url + "/v1", api_key="none", use_responses_api=True).invoke(LONG))
        yield type(e).__name__ == "OpenAIContextOverflowError", (type(e), e)
        e = refusal(lambda: ChatAnthropic(model="nano", base_url=recorder.url, api_key="none").invoke(LONG))
        yield type(e).__name__ == "AnthropicContextOverflowError", (type(e), e)


if __name__ == "__main__":
    sys.exit(clients.run_tests(__doc__, clients.tests_in(globals())))
