#!/usr/bin/env python3
"""lm-eval against the nano model: the recipe of docs/clients.md on two small tasks, choices that are scored and answers that are generated."""
import json
import os
import re
import shlex
import sys

import clients

CAPITALS = [{"country": "France", "answer": 0}, {"country": "Germany", "answer": 1}]
SCORED = """task: capitals
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: multiple_choice
doc_to_text: "The capital of {{country}} is"
doc_to_choice: [" Paris", " Berlin"]
doc_to_target: answer
"""
GENERATED = """task: capitals
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: generate_until
doc_to_text: "What is the capital of {{country}}?"
doc_to_target: "{{['The capital of France is Paris.', 'The capital of Germany is Berlin.'][answer]}}"
generation_kwargs: {until: ["\\n\\n"], max_gen_toks: 200, temperature: 0}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""


def run(program, recorder, task, change=lambda text: text):
    folder = program.path()
    os.mkdir(folder)
    data = os.path.join(folder, "data.jsonl")
    with open(data, "w", encoding="utf-8") as f:
        f.write("".join(json.dumps(c) + "\n" for c in CAPITALS))
    with open(os.path.join(folder, "capitals.yaml"), "w", encoding="utf-8") as f:
        f.write(task.replace("DATA", data))
    command = shlex.split(change(clients.at(clients.recipe("lm-eval"), recorder.url)).replace("TASK", "capitals").replace("\\\n", " "))
    command[0] = os.path.join(os.path.dirname(sys.executable), command[0])
    status, out, err = clients.run_program([*command, "--include_path", folder], folder)
    found = re.search(r"\|(?:acc|exact_match) *\|[^|]*\| *([\d.]+)\|", out)
    return status, float(found.group(1)) if found else None, out + err


def test_choices_are_scored(program):
    with clients.served(program, "--context", 4096) as (_, recorder):
        status, accuracy, text = run(program, recorder, SCORED)
        yield status == 0 and accuracy == 1.0, (status, accuracy, text[-2000:])
        yield set(recorder.statuses()) == {200}, recorder.statuses()
        paths = {path for _, path, _, _, _ in recorder.seen}
        yield {"/tokenizer_info", "/tokenize", "/v1/completions"} <= paths, paths


def test_answers_are_generated(program):
    def chat(text):
        return text.replace("local-completions", "local-chat-completions").replace("/v1/completions", "/v1/chat/completions").replace(",tokenizer_backend=remote", "") + \
            " --apply_chat_template"

    with clients.served(program, "--context", 4096) as (_, recorder):
        status, accuracy, text = run(program, recorder, GENERATED, chat)
        yield status == 0 and accuracy is not None, (status, text[-2000:])
        yield recorder.statuses() == [200, 200], recorder.statuses()
        yield accuracy and accuracy >= 0.5, (accuracy, [d for *_, d in recorder.seen])


if __name__ == "__main__":
    sys.exit(clients.run_tests(__doc__, clients.tests_in(globals())))
