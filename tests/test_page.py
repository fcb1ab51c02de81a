#!/usr/bin/env python3
"""The web page in a headless Chromium: conversations, tools, settings, what is kept, hostile text, keyboard, phone, accessibility.

usage: test_page.py [--binary build/deepinfer] [--shots DIRECTORY]
Most of it runs against page_server.py, whose answers are known. Needs Chromium (tools/install-deps --test): without it the test fails.
"""
import argparse
import json
import os
import pathlib
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

import axe_playwright_python
from playwright.sync_api import Error, sync_playwright

from page_server import CSP, MARKDOWN, PAGE, REASONING, TYPES, Server
from program import NANO, Count, eval_items

BUDGET = 66 * 1024
AXE = pathlib.Path(axe_playwright_python.__file__).parent / "axe.min.js"
WAIT = 20000  # milliseconds
SKIPPED = 77  # exit status; the test may be skipped: Ubuntu's packages have no browser (they are snaps)


def start_browser(playwright):
    """The system's Chromium, or else the one that `playwright install chromium` brings."""
    names = ["chromium", "chromium-browser", "google-chrome-stable", "google-chrome"]
    path = next(filter(None, map(shutil.which, names)), None)
    if not path and not os.path.exists(playwright.chromium.executable_path):
        print("test_page.py: there is no Chromium here: run tools/install-deps --test, or `playwright install chromium`")
        sys.exit(SKIPPED if "\nID=ubuntu" in pathlib.Path("/etc/os-release").read_text() else 1)
    return playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])


class Tab:
    """A page in a browser profile of its own. `faults`: what must not happen on any page."""

    def __init__(self, browser, server, width=1280, height=800, **options):
        self.server, self.faults = server, []
        self.context = browser.new_context(viewport={"width": width, "height": height}, **options)
        self.context.route(lambda url: not url.startswith(server.url), self.outside)
        self.page = self.context.new_page()
        self.page.set_default_timeout(WAIT)
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("console", self.console)
        self.page.goto(server.url)

    def outside(self, route):
        self.faults.append(f"external request: {route.request.url}")
        route.abort()

    def console(self, message):
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            self.faults.append(message.text)

    def send(self, text, wait=True):
        self.page.fill("#input", text)
        self.page.press("#input", "Enter")
        if wait:
            self.idle()

    def idle(self):
        self.page.wait_for_selector("#send", state="visible")

    def last(self):
        return self.page.locator("article").last

    def request(self):
        return self.server.requests[-1]

    def until(self, condition, seconds=5):
        end = time.monotonic() + seconds
        while not condition() and time.monotonic() < end:
            self.page.wait_for_timeout(20)
        return condition()

    def close(self):
        self.context.close()


# ---- the files ----

def check_files():
    sizes = {}
    for path in sorted(pathlib.Path(PAGE).iterdir()):
        text = path.read_text(encoding="utf-8")
        sizes[path.name] = len(text.encode())
        code = re.sub(r"^\s*//.*$", "", text, flags=re.M)
        markup = re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\(|new Function|DOMParser", code)
        yield not markup, f"{path.name} parses markup"
        yield path.suffix == ".svg" or max(map(len, text.split("\n"))) <= 140, f"{path.name} has a long line"
        if path.suffix == ".html":
            yield not re.search(r"\son\w+=|\sstyle=|<style|<script(?![^>]*\ssrc=)|https?://", text), "inline code, or an address elsewhere"
    counted = sum(size for name, size in sizes.items() if not name.endswith(".svg"))
    yield counted <= BUDGET, f"{counted} bytes: {sizes}"


# ---- conversation ----

def check_conversation(tab):
    page = tab.page
    tab.send("How do I sort?")
    request, answer = tab.request(), tab.last()
    yield request["messages"] == [{"role": "user", "content": "How do I sort?"}], request
    yield request["model"] == "nano" and request["stream"] is True and request["stream_options"] == {"include_usage": True}, request
    yield request["thinking"] == {"type": "enabled"} and request["reasoning_effort"] == "high" and 0 <= request["seed"] < 2**32, request
    yield not {"temperature", "top_p", "top_k", "min_p", "max_tokens", "stop", "tools"} & set(request), request
    body = answer.locator("> .body")
    yield body.locator("h3").inner_text() == "Sorting", "heading"
    yield (body.locator("em").inner_text(), body.locator("strong").inner_text()) == ("stable", "equal"), "emphasis"
    yield body.locator("ol > li").first.inner_text() == "Compare keys", "list"
    yield body.locator("ol > li:nth-child(2) > ul > li").count() == 2, "list in a list"
    code = MARKDOWN.split("```python\n")[1].split("```")[0]
    yield body.locator("pre code").text_content() == code, body.locator("pre code").text_content()
    yield body.locator("td").all_inner_texts() == ["merge", "n log n", "yes", "heap", "n log n", "no"], "table"
    yield body.locator("blockquote").inner_text() == "Premature optimisation is the root of all evil.", "quote"
    yield body.locator("p").last.inner_text() == "Done: snake_case_name and 2 * 3 * 4 stay as they are.", "no emphasis in words"
    yield body.locator("a").evaluate_all("all => all.map(a => [a.href, a.rel, a.target])") == [
        ["https://example.org/sort", "noopener noreferrer", "_blank"], ["https://example.org/a", "noopener noreferrer", "_blank"]], "links"
    yield "257 tokens" in answer.inner_text() and "1,088 of it cached" in answer.inner_text(), answer.inner_text()
    body.locator(".code button").click()
    yield tab.until(lambda: page.evaluate("navigator.clipboard.readText()") == code), "copy of a code block"
    yield answer.locator("details .body").is_hidden(), "reasoning is folded"
    answer.locator("summary").click()
    yield tab.until(lambda: "Then a table." in answer.locator("details").inner_text()), "reasoning unfolds"
    tab.send("tool-result again")
    yield tab.request()["messages"][1] == {"role": "assistant", "content": MARKDOWN, "reasoning_content": REASONING}, tab.request()
    yield page.locator("nav li .title").first.inner_text() == "How do I sort?", "title"


def check_changes(tab):
    tab.send("echo one")
    tab.last().get_by_role("button", name="Regenerate").click()
    tab.idle()
    first, second = tab.server.requests[-2:]
    yield first["messages"] == second["messages"] and first["seed"] != second["seed"], "regenerate asks again, with another seed"
    yield tab.page.locator("article").count() == 2, "one answer"
    yield "limit of tokens" in tab.last().inner_text(), "finish reason length is said"
    tab.send("echo two")
    tab.page.get_by_role("button", name="Edit").click()
    yield tab.page.input_value("#input") == "echo two", "edit brings the message back"
    tab.page.press("#input", "Escape")
    yield tab.page.input_value("#input") == "", "Esc leaves editing"
    tab.page.get_by_role("button", name="Edit").click()
    tab.send("echo three")
    yield [m["content"] for m in tab.request()["messages"]] == ["echo one", "one", "echo three"], tab.request()
    yield tab.page.locator("article").count() == 4 and "three" in tab.last().inner_text(), "the edited message replaces the old one"


def check_tools(tab):
    tab.send("tool please")
    call = tab.last().locator(".call")
    focused = "document.activeElement.closest('label')?.textContent ?? document.activeElement.id"
    yield tab.page.evaluate(focused) == "Result of get_weather", "what is typed next is the result: " + tab.page.evaluate(focused)
    want = '''{
  "city": "Zürich",
  "days": 3,
  "station": 12345678901234567890,
  "units": {
    "temperature": "celsius",
    "wind": []
  }
}'''
    yield call.locator(".bar code").first.inner_text() == "get_weather", "name"
    yield call.locator("pre code").text_content() == want, call.locator("pre code").text_content()
    call.get_by_label("Result of get_weather").fill('{"temp":7}')
    tab.last().get_by_role("button", name="Send the result").click()
    tab.idle()
    messages = tab.request()["messages"]
    yield messages[2] == {"role": "tool", "tool_call_id": "call_0", "content": '{"temp":7}'}, messages
    yield "12345678901234567890" in messages[1]["tool_calls"][0]["function"]["arguments"], messages
    yield 'The tool said: {"temp":7}' in tab.last().inner_text(), tab.last().inner_text()
    yield '"temp": 7' in tab.page.locator("article").nth(1).inner_text(), "the result stands with its call"
    yield tab.page.evaluate("document.activeElement.id") != "input" or tab.page.input_value("#input") == "", "nothing is lost"
    tab.send("tool, and go on", wait=False)
    tab.page.keyboard.type("already typing")
    tab.idle()
    tab.page.wait_for_timeout(100)
    yield tab.page.evaluate("document.activeElement.id") == "input", "who types already is not interrupted"
    tab.send("tool once more")
    tab.send("echo no, leave it")
    yield [m["role"] for m in tab.request()["messages"][-3:]] == ["assistant", "tool", "user"], "a call without result gets one"
    tab.send("break-in-call")
    yield tab.last().locator(".call").count() == 1 and tab.last().locator("textarea").count() == 0, "no result is asked for half a call"
    tab.send("echo go on")
    yield tab.request()["messages"][-2] == {"role": "assistant", "content": "I look it up."}, "and it is not sent back"


def check_stop(tab):
    for how in (lambda: tab.page.click("#stop"), lambda: tab.page.press("#input", "Escape")):
        gone = tab.server.disconnects
        tab.send("slow answer", wait=False)
        yield tab.until(lambda: re.search(r"\b5\b", tab.last().inner_text())), "streams"
        yield tab.page.is_hidden("#send"), "send is replaced by stop"
        how()
        tab.idle()
        yield tab.until(lambda: tab.server.disconnects > gone), "the server sees the disconnect"
        yield re.search(r"\b5\b(?s:.*)Stopped\.", tab.last().inner_text()), tab.last().inner_text()
    tab.send("echo on")
    messages = tab.request()["messages"]
    yield len(messages) == 5 and messages[1]["content"].startswith("0 1 2"), "what came stays in the history"


def check_settings(tab):
    page = tab.page
    values = {"temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "max_tokens": 77, "seed": 9007199254740991}
    for name, value in values.items():
        page.fill(f"[name={name}]", str(value))
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    page.fill("[name=system]", "It's \"short\" & $HOME `id` 'quoted'")
    page.fill("[name=stop]", "END\n\n###")
    page.fill("[name=tools]", json.dumps(tools))
    page.select_option("[name=effort]", "max")
    tab.send("echo a\nb")
    request = tab.request()
    yield {k: request[k] for k in values} == values, request
    yield request["stop"] == ["END", "###"] and request["tools"] == tools and request["reasoning_effort"] == "max", request
    yield request["messages"][0] == {"role": "system", "content": "It's \"short\" & $HOME `id` 'quoted'"}, request
    tab.last().get_by_role("button", name="Copy as curl").click()
    words = []
    yield tab.until(lambda: words.extend(shlex.split(page.evaluate("navigator.clipboard.readText()"))) or words), "curl"
    yield words[0] == "curl" and words[2] == tab.server.url + "v1/chat/completions" and json.loads(words[-1]) == request, words
    page.uncheck("[name=thinking]")
    tab.send("echo b")
    yield tab.request()["thinking"] == {"type": "disabled"} and "reasoning_effort" not in tab.request(), tab.request()
    sent = len(tab.server.requests)
    for name, wrong, said in (("temperature", "3", "Temperature is a number from 0 to 2."), ("top_k", "1.5", "Top k is a whole number"),
                              ("max_tokens", "many", "Max tokens is a whole number"), ("tools", "[{]", "Tools is not JSON"),
                              ("tools", "{}", "Tools is a list"), ("stop", "x\n" * 17, "There can be 16 stop strings.")):
        before = page.input_value(f"[name={name}]")
        page.fill(f"[name={name}]", wrong)
        page.fill("#input", "echo never")
        page.press("#input", "Enter")
        yield said in page.inner_text("#settings-error") and page.get_attribute(f"[name={name}]", "aria-invalid") == "true", (name, wrong)
        page.fill(f"[name={name}]", before)
    yield len(tab.server.requests) == sent and page.is_hidden("#settings-error"), "nothing wrong is sent"
    page.click("#new")
    yield page.input_value("[name=top_k]") == "40", "a new conversation begins with the settings of the last"
    page.click("#reset")
    yield page.input_value("[name=top_k]") == "" and page.is_checked("[name=thinking]"), "defaults"


# ---- what is kept ----

def titles(page):
    return page.locator("nav .title").all_inner_texts()


def check_kept(tab):
    page = tab.page
    yield page.get_by_text("New conversation").count() == 1, "an empty one is not listed"
    tab.send("echo first")
    page.click("#new")
    yield page.get_by_text("New conversation").count() == 1 and titles(page) == ["echo first"], titles(page)
    tab.send("How about the second?")
    page.get_by_role("button", name="Rename").click()
    page.fill("#ask-value", "Second & <b>best</b>")
    page.click("#ask-yes")
    page.reload()
    yield titles(page) == ["Second & <b>best</b>", "echo first"], titles(page)
    yield page.locator("article h3").inner_text() == "Sorting" and page.locator("article td").count() == 6, "drawn again after a reload"
    yield "257 tokens" in tab.last().inner_text(), "figures are kept"
    with page.expect_download() as download:
        page.get_by_role("button", name="Export").click()
    with open(download.value.path(), encoding="utf-8") as f:
        exported = json.load(f)
    yield download.value.suggested_filename == "Second & _b_best__b_.json" and exported["messages"][1]["content"] == MARKDOWN, exported
    page.get_by_role("button", name="Delete").click()
    page.click("#ask-yes")
    yield tab.until(lambda: titles(page) == ["echo first"]), "delete"
    page.reload()
    yield titles(page) == ["echo first"] and "first" in tab.last().inner_text(), "deleted for good"
    other = tab.context.new_page()
    other.goto(tab.server.url)
    other.click("#new")
    other.fill("#input", "echo from another tab")
    other.press("#input", "Enter")
    yield tab.until(lambda: "echo from another tab" in titles(page)), "tabs see each other's conversations"
    other.close()


def check_no_storage(browser, server):
    tab = Tab(browser, server)
    tab.context.add_init_script("for (const name of ['localStorage', 'sessionStorage']) "
                                "Object.defineProperty(window, name, {get() { throw new DOMException('forbidden', 'SecurityError'); }})")
    tab.page.reload()
    tab.send("echo one")
    tab.page.click("#new")
    tab.send("echo two")
    yield "two" in tab.last().inner_text() and titles(tab.page) == ["echo two", "echo one"], "works without"
    yield not tab.faults, tab.faults
    tab.close()


def check_bounds(tab):
    store = "import('/store.js').then(s => { %s })"
    made = tab.page.evaluate(store % """localStorage.clear(); localStorage.setItem('other', 'x');
        for (let i = 0; i < 70; i++) s.save({...s.create(s.DEFAULTS), title: 't' + i, updated: i + 1});
        return [s.loadAll().length, s.MOST_TALKS, s.loadAll().at(-1).title, localStorage.getItem('other')]""")
    yield made == [60, 60, "t10", "x"], made
    made = tab.page.evaluate(store % """localStorage.clear();
        const of = (i, n) => ({...s.create(s.DEFAULTS), title: 'big' + i, updated: i + 1,
            messages: [{role: 'user', content: 'x'.repeat(n)}]});
        const kept = [1, 2, 3, 4, 5, 6].map(i => s.save(of(i, 900000)).saved), huge = s.save(of(9, 4100000));
        const size = Object.values({...localStorage}).reduce((n, v) => n + v.length, 0);
        return [kept.every(Boolean), size <= s.MOST_CHARACTERS, s.loadAll().map(c => c.title), huge]""")
    yield made == [True, True, ["big6", "big5", "big4", "big3"], {"saved": False, "dropped": []}], made
    made = tab.page.evaluate(store % """localStorage.clear(); localStorage.setItem('foreign', 'x'.repeat(4500000));
        const c = {...s.create(s.DEFAULTS), messages: [{role: 'user', content: 'x'.repeat(900000)}]};
        const full = s.save(c).saved; localStorage.removeItem('foreign'); return [full, s.save(c).saved]""")
    yield made == [False, True], made


def check_two_at_once(tab):
    tab.send("slow one", wait=False)
    tab.page.click("#new")
    tab.send("echo quick")
    yield "quick" in tab.last().inner_text(), "another conversation runs meanwhile"
    tab.page.get_by_role("button", name="slow one").click()
    yield tab.page.is_visible("#stop"), "the first still runs"
    now = tab.last().inner_text()
    yield tab.until(lambda: len(tab.last().inner_text()) > len(now) + 20), "and goes on being drawn"
    tab.page.click("#stop")
    tab.idle()


# ---- errors, key ----

def check_errors(tab):
    tab.send("busy")
    yield "Too many requests are waiting. Try again in 2 s." in tab.last().inner_text(), tab.last().inner_text()
    tab.last().get_by_role("button", name="Try again").click()
    tab.idle()
    yield tab.last().locator("h3").inner_text() == "Sorting" and tab.page.locator("article").count() == 2, "a retry replaces the error"
    for words, said in (("break", "The connection ended before the answer was complete."), ("fail", "The engine failed in step 7.")):
        tab.send(words)
        text = tab.last().inner_text()
        yield "It begins" in text and said in text, text
    yield tab.last().locator(".error[role=alert]").count() == 1, "errors are alerts"
    tab.server.loading = True
    tab.page.reload()
    yield tab.until(lambda: "idle" in tab.page.inner_text("#summary")), "the model is being loaded"
    yield tab.page.inner_text("#model") == "deepinfer", "and has no name yet"
    tab.server.loading = False
    yield tab.until(lambda: tab.page.inner_text("#model") == "nano"), "and then it is there"
    tab.context.set_offline(True)
    tab.send("echo offline")
    yield "The server cannot be reached." in tab.last().inner_text(), tab.last().inner_text()
    tab.context.set_offline(False)
    tab.last().get_by_role("button", name="Try again").click()
    tab.idle()
    yield "offline" in tab.last().inner_text(), "and then it can"


def check_key(browser, server):
    server.key = "top secret"
    tab = Tab(browser, server, permissions=["clipboard-read", "clipboard-write"])
    page = tab.page
    page.wait_for_selector("#ask[open]")
    page.fill("#ask-value", "wrong")
    page.click("#ask-yes")
    tab.send("echo hello", wait=False)
    page.wait_for_selector("#ask[open]")
    yield "The API key is missing or wrong." in page.inner_text("#ask-text"), page.inner_text("#ask-text")
    page.fill("#ask-value", "top secret")
    page.press("#ask-value", "Enter")
    yield tab.until(lambda: "hello" in tab.last().inner_text() and "missing" not in tab.last().inner_text()), "goes on with the key"
    yield tab.until(lambda: page.inner_text("#model") == "nano"), "the model's name is read with the key"
    page.reload()
    tab.send("echo again")
    yield "again" in tab.last().inner_text(), "a reload keeps the key"
    yield "top secret" not in page.evaluate("JSON.stringify({...localStorage}) + location.href"), "not in local storage"
    tab.last().get_by_role("button", name="Copy as curl").click()
    yield tab.until(lambda: "$DEEPINFER_API_KEY" in page.evaluate("navigator.clipboard.readText()")), "curl takes the key from the shell"
    yield "top secret" not in page.evaluate("navigator.clipboard.readText()"), "and does not show it"
    other = tab.context.new_page()
    other.goto(server.url)
    yield bool(other.wait_for_selector("#ask[open]")), "another tab asks"
    server.key = ""
    yield not tab.faults, tab.faults
    tab.close()


# ---- hostile text ----

ELEMENTS = "[...document.querySelectorAll('#messages *')].map(e => e.localName)"


def check_hostile_output(tab):
    page = tab.page
    tab.send("xss")
    page.locator("#log summary").click()
    page.wait_for_timeout(200)
    names = set(page.evaluate(ELEMENTS))
    yield not names & {"img", "script", "iframe", "svg", "object", "embed", "style", "link", "form"}, names
    links = page.locator("#messages a").evaluate_all("all => all.map(a => a.protocol)")
    yield links == ["https:", "https:"], links  # the image, in reasoning and answer, is a link
    yield page.evaluate("window.pwned") is None, page.evaluate("window.pwned")
    yield '<img src=x onerror="window.pwned=1"><script>window.pwned=2</script>' in tab.last().inner_text(), "shown as text"
    yield page.locator(".call .bar code").inner_text() == '<img src=x onerror="window.pwned=9">', "name of a tool"


HOSTILE = [
    {"id": "a1", "title": "<img src=x onerror=window.pwned=1>", "updated": 9,
     "settings": {"system": "</textarea><script>window.pwned=2</script>", "tools": 7, "effort": "\"><b>", "__proto__": {"polluted": 1}},
     "messages": [
         {"role": "user", "content": "<script>window.pwned=3</script>"},
         {"role": "assistant", "content": {"x": 1}, "tool_calls": "no", "meta": 5},
         {"role": "<b>", "content": "x"}, None, 7,
         {"role": "assistant", "content": "fine", "meta": {"finish": "<i>", "error": "<img src=x onerror=window.pwned=4>",
                                                          "usage": {"prompt": "<b>"}, "seconds": "1"}}]},
    {"id": "../x", "messages": []}, {"id": "a2", "messages": {"length": 1e9}, "settings": []}, [], None, 5, "text"]


def check_hostile_store(tab):
    page = tab.page
    page.evaluate("""items => {
        localStorage.clear();
        localStorage.setItem('deepinfer.theme', '"><b>');
        localStorage.setItem('deepinfer.conversation.bad', '{');
        items.forEach((item, i) => localStorage.setItem('deepinfer.conversation.' + (item?.id ?? i), JSON.stringify(item)));
    }""", HOSTILE)
    page.reload()
    page.wait_for_selector("article")
    yield titles(page) == ["<img src=x onerror=window.pwned=1>"], titles(page)
    yield page.evaluate("window.pwned") is None and page.evaluate("({}).polluted") is None, "ran"
    yield not set(page.evaluate(ELEMENTS)) & {"img", "script", "b", "i"}, page.evaluate(ELEMENTS)
    yield page.input_value("[name=system]") == "</textarea><script>window.pwned=2</script>", "settings"
    yield page.input_value("[name=effort]") == "high", "an effort that does not exist"
    tab.last().get_by_role("button", name="Try again").click()
    tab.idle()
    yield [m["role"] for m in tab.request()["messages"]] == ["system", "user"], "and it goes on from there"


SPLITS = """async ([text, seeds]) => {
    const {Markdown} = await import('/markdown.js');
    const draw = (cut) => {
        const root = document.createElement('div'), markdown = new Markdown(root);
        for (let at = 0; at < text.length;) { const n = cut(); markdown.push(text.slice(at, at + n)); at += n; }
        markdown.finish();
        root.normalize();
        return root.innerHTML;
    };
    const whole = draw(() => text.length);
    const drawn = [whole, ...seeds.map((seed) => draw(() => 1 + (seed = (seed * 48271) % 2147483647) % 9)), draw(() => 1)];
    return drawn.findIndex((html) => html !== whole);
}"""
PARTS = ["# H\n", "text ", "**bold** ", "*it* ", "`code` ", "- item\n", "  - inner\n", "1. one\n", "\n", "\n\n", "```c\nint x;\n```\n",
         "~~~\n", "| a | b |\n|---|---|\n", "| 1 | 2 |\n", "> quote\n", "---\n", "    deep\n", "`", "*", "_", "**", "[a](https://x.y)", "[", "](", "\\", "\t",
         "\\[\nx_1*y*\n\\]\n", "\\(a*b*", "\\)", "$a*b*$ ", "$$", "~~s~~ ", "~", "- [x] t\n", "[ ] ", "```py\nx = \"\"\"a\nb\"\"\" # c\n```\n", "/* ",
         "\r\n", "<b>", "x" * 30, "word " * 500, "``` ", "3) c\n"]


def check_splits(tab):
    generator = random.Random(1)
    texts = ["".join(generator.choices(PARTS, k=generator.randint(1, 40))) for _ in range(150)] + [MARKDOWN]
    for text in texts:
        different = tab.page.evaluate(SPLITS, [text, [generator.randint(1, 10**6) for _ in range(3)]])
        yield different == -1, (different, text)


RICH = r"""Euler: \(e_{i}*\pi*\) costs $5 and $10, $a_1 * b_2 * c$, $$x_1*y*$$, \[z*w*\] and \(open \$3 \*

\[
x_1 = \frac{a}{b}

- \[
  y_1 * z * w
  - 1
  \]
- [x] done *well*
- [ ] to ~~do~~
- [x](https://a.b) [ ] plain

$$
| a | b
---
$$
*end*

```Python title="x"
x = f(42, "a # b")  # None
y = \"\"\"two
lines\"\"\" or None
```
```
if 1: "plain"
```
"""
MARKED = """text => import('/markdown.js').then(({Markdown}) => {
    const root = document.createElement('div'), markdown = new Markdown(root), all = (query) => [...root.querySelectorAll(query)];
    for (const c of text) markdown.push(c);
    markdown.finish();
    const text_of = (query) => all(query).map(e => (e.localName === 'p' || e.localName === 'li') ? e.innerHTML : e.textContent);
    return {first: root.children[0]?.innerHTML, second: root.children[1]?.innerHTML, items: text_of('li'), em: text_of('em'), del: text_of('del'),
        boxes: all('li > input').map(e => [e.checked, e.disabled]), last: text_of('p').at(-1), code: text_of('pre code'),
        spans: all('pre span').map(e => e.className + ' ' + e.textContent)};
})"""


def check_markdown(tab):
    made = tab.page.evaluate(MARKED, RICH.replace('\\"', '"'))
    yield made["first"] == r"Euler: \(e_{i}*\pi*\) costs $5 and $10, $a_1 * b_2 * c$, $$x_1*y*$$, \[z*w*\] and \(open $3 *", made["first"]
    yield made["second"] == r"\[<br>x_1 = \frac{a}{b}", "mathematics that is never closed ends at the empty line: " + made["second"]
    yield made["items"][0] == r"\[<br>y_1 * z * w<br>- 1<br>\]", made["items"]
    yield made["boxes"] == [[True, True], [False, True]] and made["del"] == ["do"] and len(made["items"]) == 4, made
    yield made["last"] == "$$<br>| a | b<br>---<br>$$<br><em>end</em>" and made["em"] == ["well", "end"], made
    yield made["code"] == ['x = f(42, "a # b")  # None\ny = """two\nlines""" or None\n', 'if 1: "plain"\n'], made["code"]
    yield made["spans"] == ["n 42", 's "a # b"', "c # None", 's """two', 's lines"""', "k or", "k None"], made["spans"]
    for language, line, want in (("c", "int f(char *s) /* a", ["k int", "k char", "c /* a"]), ("js", "`a` // `b", ["s `a`", "c // `b"]),
                                 ("SQL", "SELECT x -- '", ["k SELECT", "c -- '"]), ("json", '{"a": 1e5, "b": null}', ['s "a"', "n 1e5", 's "b"', "k null"]),
                                 ("sh", 'echo $# "x" # y', ['s "x"', "c # y"]), ("html", "<!-- a --> b", ["c <!-- a -->"]),
                                 ("text", "int 5", []), ("", "int 5", []), ("rust", "let x = 'unclosed", ["k let"])):
        spans = tab.page.evaluate(MARKED, f"```{language}\n{line}\n")["spans"]
        yield spans == want, (language, spans)


# ---- speed ----

def check_speed(tab):
    page = tab.page
    made = page.evaluate("""async () => {
        const {Markdown} = await import('/markdown.js');
        const root = document.createElement('div'), markdown = new Markdown(root);
        let added = 0;
        const count = (all) => { for (const m of all) added += m.addedNodes.length; };
        new MutationObserver(count).observe(root, {childList: true, subtree: true});
        const time = (from, n) => {
            const start = performance.now();
            for (let i = from; i < from + n; i++)
                markdown.push(i % 20 ? 'word ' : '\\n\\n');
            return performance.now() - start;
        };
        const first = time(0, 4000);
        time(4000, 60000);
        const last = time(64000, 4000);
        await new Promise((done) => setTimeout(done));
        return [first, last, added];
    }""")
    yield made[1] < 6 * made[0] + 20, f"pushes at the end take {made[1]:.1f} ms, at the beginning {made[0]:.1f}"
    yield made[2] < 5 * 68000, f"{made[2]} nodes for 68000 pushes"
    for text in ("*" * 2000, "`a" * 1000, "[" * 2000, "_a" * 1000, "**a" * 700, "|" * 2000, "http://" * 285, "--a" * 666, "\\" * 2000,
                 "(`" * 1000, " " * 1999 + "x", "# " + " #" * 999, "$a" * 1000, "\\(" * 1000,
                 "\\[a" * 660, "~~a" * 660, *("```c\n" + part * 1000 for part in ("'a", '\\"', "/*", "1.", '""'))):
        spent = page.evaluate("""async (text) => { const {Markdown} = await import('/markdown.js');
            const start = performance.now(), m = new Markdown(document.createElement('div'));
            for (let i = 0; i < 5; i++) m.push(text); m.finish(); return performance.now() - start; }""", text)
        yield spent < 1500, f"{text[:12]}: {spent:.0f} ms"
    tab.send("count 3000")
    yield tab.last().locator("> .body").inner_text().split() == [str(i) for i in range(3000)], "a long answer is complete"
    tab.send("paragraph 3000")
    text = tab.last().locator("> .body").inner_text()
    yield text.split() == [f"word{i}" for i in range(3000)] and tab.last().locator("p").count() == 1, "a long paragraph stays one"
    yield tab.last().locator("br").count() == 0, "and has no breaks"


# ---- looks, keys, screen readers ----

def overflow(page):
    """Pixels by which something is wider than its place; what scrolls by itself is left out."""
    return page.evaluate("""(() => {
        const log = document.getElementById('log'), seen = [...document.querySelectorAll('#messages *, #composer *, header *')]
            .filter(e => !e.closest('pre, [role=region] table, [hidden], .hidden'));
        return Math.max(0, document.documentElement.scrollWidth - innerWidth, log.scrollWidth - log.clientWidth,
            ...seen.map(e => Math.ceil(e.getBoundingClientRect().right - innerWidth)));
    })()""")


def check_phone(tab, shot):
    page = tab.page
    yield page.is_hidden("nav") and page.is_hidden("aside"), "only the conversation is shown"
    tab.send("How do I sort?")
    shot(tab, "phone")
    tab.send("echo " + "W" * 400 + " `" + "v" * 300 + "` https://example.org/" + "a" * 300)
    tab.send("tool " + "x" * 300)
    yield overflow(page) <= 0, f"{overflow(page)} px too wide"
    page.click("#toggle-side")
    yield page.is_visible("aside") and page.evaluate("document.querySelector('main').inert"), "settings lie over the conversation"
    yield overflow(page) <= 0, "nothing wider than the screen"
    tops = page.evaluate("[...document.querySelectorAll('aside h2')].map(e => [e.getBoundingClientRect().top, e.textContent]).sort((a, b) => a[0] - b[0])")
    yield [title for _, title in tops] == ["Settings of this conversation", "Engine"], tops
    page.fill("[name=top_k]", "5")
    page.keyboard.press("Escape")
    yield page.is_hidden("aside") and page.evaluate("document.activeElement.id") == "toggle-side", "Esc closes, the focus returns"
    page.click("#toggle-list")
    page.click("#new")
    yield page.is_hidden("nav") and page.evaluate("document.activeElement.id") == "input", "new conversation"
    page.click("#toggle-list")
    page.mouse.click(350, 400)
    yield page.is_hidden("nav"), "a tap beside it closes it"


def luminance(page):
    return sum(map(int, re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))[:3]))


def check_themes(browser, server):
    for scheme, dark in (("light", False), ("dark", True)):
        tab = Tab(browser, server, color_scheme=scheme)
        yield (luminance(tab.page) < 200) == dark, f"{scheme} by preference"
        tab.page.click("#theme")
        yield (luminance(tab.page) < 200) != dark, "the button changes it"
        tab.page.reload()
        yield (luminance(tab.page) < 200) != dark, "for good"
        tab.close()
    tab = Tab(browser, server, reduced_motion="reduce")
    tab.send("slow", wait=False)
    still = "[...document.querySelectorAll('*')].every(e => getComputedStyle(e).animationName === 'none')"
    yield tab.page.evaluate(still), "reduced motion"
    tab.close()


def check_keyboard(tab):
    page = tab.page
    page.focus("#toggle-list")
    page.keyboard.press("Shift+Tab")
    yield page.evaluate("document.activeElement.className") == "skip", "the first stop is the skip link"
    page.keyboard.press("Enter")
    page.keyboard.type("echo two")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("lines")
    yield page.input_value("#input") == "echo two\nlines" and len(tab.server.requests) == 0, "Shift+Enter starts a line"
    page.keyboard.press("Enter")
    tab.idle()
    yield tab.request()["messages"][0]["content"] == "echo two\nlines", "Enter sends"
    yield page.evaluate("document.activeElement.id") == "input", "the focus stays"
    page.fill("#input", "echo half a word")
    page.evaluate("""document.getElementById('input').dispatchEvent(
        new KeyboardEvent('keydown', {key: 'Enter', isComposing: true, bubbles: true}))""")
    yield page.input_value("#input") == "echo half a word" and len(tab.server.requests) == 1, "Enter of an input method does not send"
    unseen, seen = [], set()
    for _ in range(40):
        page.keyboard.press("Tab")
        stop = page.evaluate("""(() => { const e = document.activeElement, s = getComputedStyle(e.id === 'input' ? e.parentNode : e);
            return [e.id || e.name || e.className || e.textContent, s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 1]; })()""")
        seen.add(stop[0])
        if not stop[1] and "side-open" not in stop[0]:
            unseen.append(stop[0])
    yield not unseen, f"no visible focus: {unseen}"
    yield {"toggle-list", "theme", "toggle-side", "new", "input", "log", "temperature", "tools", "key"} <= seen, seen


def check_announcing(tab):
    page = tab.page
    page.evaluate("""window.heard = []; new MutationObserver(() => heard.push(document.getElementById('announce').textContent))
        .observe(document.getElementById('announce'), {childList: true, characterData: true, subtree: true})""")
    tab.send("lines 600")
    heard = page.evaluate("heard")
    yield heard[0] == "The model answers." and 2 <= len(heard) <= 8, f"{len(heard)} announcements"
    yield "".join(heard[1:]).split() == [str(i) for i in range(600)], "all of the answer, once"
    yield page.locator("[aria-live], [role=log]").count() == 1, "one live region"


def check_axe(browser, server, shot):
    for name, width, scheme in (("wide", 1280, "light"), ("wide", 1280, "dark"), ("phone", 360, "light")):
        tab = Tab(browser, server, width=width, color_scheme=scheme, bypass_csp=True)
        states = {"empty": lambda: None, "answer": lambda: tab.send("How do I sort?"), "open": lambda: tab.page.locator("#log summary").click(),
                  "tool": lambda: tab.send("tool"), "error": lambda: tab.send("fail"),
                  "side": lambda: width < 500 and tab.page.click("#toggle-side"),
                  "list": lambda: width < 500 and tab.page.click("#toggle-list"),
                  "wrong": lambda: tab.page.fill("[name=top_p]", "7") if width > 500 else None,
                  "dialog": lambda: tab.page.get_by_role("button", name="Delete").click()}
        tab.page.evaluate(AXE.read_text(encoding="utf-8"))
        for state, go in states.items():
            go()
            found = tab.page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
            serious = [(v["id"], v["impact"], [n["html"][:120] for n in v["nodes"]][:3]) for v in found if v["impact"] != "minor"]
            yield not serious, (name, scheme, state, serious)
        tab.close()


# ---- the live panel ----

def check_panel(tab):
    page = tab.page
    tab.send("slow", wait=False)
    yield tab.until(lambda: "1 running, 0 waiting" in page.inner_text("#engine"), 4), page.inner_text("#engine")
    yield tab.until(lambda: int(page.inner_text(".rate strong")) > 10, 6), page.inner_text(".rate")
    yield tab.until(lambda: len(page.get_attribute(".spark polyline", "points").split()) >= 3, 6), "sparkline"
    yield "1 running" in page.inner_text("#summary"), page.inner_text("#summary")
    text = page.inner_text("#engine")
    for part in ("20.7 % of 1,024 blocks", "75.0 % of prompt tokens", "76.0 % of drafts", "151 GiB", "173 GiB", "65,536 tokens", "26.1 h"):
        yield part in text, (part, text)
    page.click("#engine summary")
    text = page.inner_text("#engine details")
    yield "cache blocks" in text and "11.0 GiB" in text and "in the file" in text, text
    page.click("#stop")
    tab.server.status, kept = lambda: {"running": "<b>", "memory": {"cache": "x", "regions": [None, {"bytes": "y"}]}, "kv_blocks": None}, tab.server.status
    yield tab.until(lambda: "0 running, 0 waiting" in page.inner_text("#engine"), 4), page.inner_text("#engine")
    yield "KV" not in page.inner_text("#engine") and "Regions" not in page.inner_text("#engine"), page.inner_text("#engine")
    tab.server.status = kept


def check_idle(browser, server, shot):
    """What everybody sees first: a server that has answered nothing yet."""
    began = time.monotonic()
    server.status = lambda: {"model": "nano", "context": 65536, "uptime_s": int(time.monotonic() - began), "running": 0, "waiting": 0, "prompt_tokens": 0,
                             "generation_tokens": 0, "kv_used_blocks": 0, "kv_blocks": 1024, "cached_tokens": 0, "lookup_tokens": 0, "drafted": 0,
                             "accepted": 0, "memory": {"weights_packed": 1 << 30, "cache": 0, "total": 1 << 31}}
    for name, scheme, size, options in (("light", "light", (1280, 800), {}), ("dark", "dark", (1280, 800), {}),
                                        ("phone", "light", (360, 740), {"has_touch": True, "is_mobile": True}),
                                        ("phone-dark", "dark", (360, 740), {"has_touch": True, "is_mobile": True})):
        tab = Tab(browser, server, *size, color_scheme=scheme, **options)
        yield tab.until(lambda: tab.page.inner_text("#summary") == "idle" or tab.page.evaluate("document.getElementById('summary').textContent") == "idle"), name
        yield bool(shot(tab, f"idle-{name}")), "a picture of it"
        if size[0] < 500:
            tab.page.click("#toggle-side")
            yield bool(shot(tab, f"idle-{name}-side")), "and of what lies beside"
        text, engine = tab.page.inner_text("body"), tab.page.inner_text("#engine")
        yield not re.search(r"NaN|undefined|null|Infinity|\[object", text), text
        yield "0.0 % of 1,024 blocks" in engine and "Hit rate" not in engine and "Acceptance" not in engine and "0 min" in engine, engine
        yield not tab.faults, tab.faults
        tab.close()


# ---- the real service ----

class Service:
    """`deepinfer serve` on the nano model; `url` as Server's."""

    def __init__(self, binary):
        command = [binary, "serve", "--model", NANO, "--port", "0", "--quiet", "--context", "2048", "--max-batch", "4"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.url = ""
        for line in self.process.stdout:
            found = re.match(r"listening on (\S+)", line)
            if found:
                self.url = found.group(1).rstrip("/") + "/"
                break
            print("   ", line.rstrip())

    def get(self, path, **headers):
        try:
            with urllib.request.urlopen(urllib.request.Request(self.url + path, headers=headers), timeout=20) as response:
                return response.status, dict(response.headers), response.read()
        except urllib.error.HTTPError as error:
            return error.code, dict(error.headers), error.read()

    def ask(self, request):
        """The same request without streaming."""
        body = {k: v for k, v in request.items() if k not in ("stream", "stream_options")}
        request = urllib.request.Request(self.url + "v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)["choices"][0]["message"]

    def end(self):
        self.process.terminate()
        try:
            return self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


def check_served_files(service):
    for path in sorted(pathlib.Path(PAGE).iterdir()):
        status, headers, body = service.get(path.name)
        yield (status, body == path.read_bytes(), headers["Content-Type"]) == (200, True, TYPES[path.suffix]), (path.name, status, headers)
        yield headers["Content-Security-Policy"] == CSP and headers["X-Content-Type-Options"] == "nosniff", headers
        yield service.get(path.name, **{"If-None-Match": headers["ETag"]})[0] == 304, "not sent again"
    yield service.get("")[2] == service.get("index.html")[2], "index.html is at /"
    status, _, body = service.get("api/status")
    yield status == 200 and set(json.loads(body)) >= {"model", "context", "running", "memory", "kv_blocks"}, body


def check_served(tab, shot):
    """Nothing here depends on what the model says: the page shows what the same request without streaming gets."""
    page, service = tab.page, tab.server
    requests = []
    page.on("request", lambda request: request.method == "POST" and requests.append(json.loads(request.post_data)))
    item = next(item for item in eval_items() if item["id"] == "tool_call-1")
    page.fill("[name=temperature]", "0")
    tab.send("What is 24 / 8?")
    answer = service.ask(requests[-1])
    yield tab.last().locator("> .body").inner_text().strip() == answer["content"].strip() != "", answer
    tab.last().locator("summary").click()
    yield tab.until(lambda: answer["reasoning_content"].strip().split("\n")[0] in tab.last().inner_text()), answer
    yield tab.until(lambda: re.search(r"[1-9]\d* in, [1-9]\d* out", page.inner_text("#engine"))), page.inner_text("#engine")
    yield not re.search("NaN|undefined", page.inner_text("body")), page.inner_text("body")
    yield "2,048 tokens" in page.inner_text("#engine") and "MiB" in page.inner_text("#engine"), page.inner_text("#engine")
    page.click("#new")
    page.fill("[name=system]", item["messages"][0]["content"])
    page.fill("[name=tools]", json.dumps(item["tools"]))
    tab.send(item["messages"][1]["content"])
    calls = [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in service.ask(requests[-1])["tool_calls"]]
    shown = [(call.locator(".bar code").inner_text(), json.loads(call.locator("pre code").inner_text()))
             for call in tab.last().locator(".call").all()]
    yield len(calls) == 2 and calls == shown, (calls, shown)
    for field in tab.last().locator("textarea").all():
        field.fill('{"price": 120, "currency": "EUR"}')
    shot(tab, "served")
    tab.last().get_by_role("button", name="Send the results").click()
    tab.idle()
    yield [m["role"] for m in requests[-1]["messages"]] == ["system", "user", "assistant", "tool", "tool"], requests[-1]
    yield tab.last().locator("> .body").inner_text().strip() == service.ask(requests[-1])["content"].strip() != "", tab.last().inner_text()
    page.fill("[name=max_tokens]", "100000")
    tab.send("Too much")
    yield re.search(r"context|tokens", tab.last().locator(".error").inner_text()), tab.last().inner_text()
    service.process.send_signal(signal.SIGTERM)
    service.process.wait(30)
    tab.send("Gone")
    yield "The server cannot be reached." in tab.last().inner_text(), tab.last().inner_text()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/deepinfer")
    parser.add_argument("--shots", help="leave screenshots there")
    parser.add_argument("--filter", default="")
    args = parser.parse_args()
    count = Count()

    def shot(tab, name):
        """The picture as bytes; with --shots also a file."""
        if args.shots:
            os.makedirs(args.shots, exist_ok=True)
        return tab.page.screenshot(path=os.path.join(args.shots, name + ".png") if args.shots else None)

    with sync_playwright() as playwright:
        browser = start_browser(playwright)

        def group(name, check, *more, own=False, **options):
            if args.filter not in name:
                return
            server = Server()
            try:
                if own:
                    count.group(name, check(browser, server, *more))
                    return
                tab = Tab(browser, server, permissions=["clipboard-read", "clipboard-write"], **options)
                count.group(name, [*check(tab, *more), (not tab.faults, tab.faults)])
                tab.close()
            except (Error, LookupError, ValueError) as error:
                count.group(name, [(False, f"{type(error).__name__}: {error}")])
            finally:
                server.shutdown()

        count.group("files", check_files())
        group("conversation", check_conversation)
        group("regenerate and edit", check_changes)
        group("tool calls", check_tools)
        group("stop", check_stop)
        group("settings", check_settings)
        group("kept", check_kept)
        group("bounds of what is kept", check_bounds)
        group("nothing can be kept", check_no_storage, own=True)
        group("two at once", check_two_at_once)
        group("errors", check_errors)
        group("key", check_key, own=True)
        group("hostile output", check_hostile_output)
        group("hostile store", check_hostile_store)
        group("markdown", check_markdown)
        group("markdown: any split", check_splits)
        group("speed", check_speed)
        group("phone", check_phone, shot, width=360, height=740, has_touch=True, is_mobile=True)
        group("themes", check_themes, own=True)
        group("keyboard", check_keyboard)
        group("announcing", check_announcing)
        group("panel", check_panel)
        group("idle", check_idle, shot, own=True)
        group("axe", check_axe, shot, own=True)
        if args.filter in "served":
            service = Service(args.binary)
            try:
                count.group("served files", check_served_files(service))
                tab = Tab(browser, service)
                count.group("served", [*check_served(tab, shot), (not tab.faults, tab.faults)])
            except (Error, OSError, LookupError, ValueError) as error:
                count.group("served", [(False, f"{type(error).__name__}: {error}")])
            count.group("the service ends", [(service.end() == 0, "exit status")])
        browser.close()
    return count.finish()


if __name__ == "__main__":
    sys.exit(main())
