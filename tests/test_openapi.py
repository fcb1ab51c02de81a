#!/usr/bin/env python3
"""docs/openapi.yaml against a running service: schemathesis sends what the description allows and what it just does not, and nothing may answer 5xx or
in another shape than described."""
import argparse
import os
import re
import subprocess
import sys

from program import ROOT, Count, Program
from serving import Server

CHECKS = "not_a_server_error,response_schema_conformance,content_type_conformance"


def run(server, examples):
    st = os.path.join(os.path.dirname(sys.executable), "schemathesis")
    command = [st, "run", os.path.join(ROOT, "docs", "openapi.yaml"), "--url", server.url, "--checks", CHECKS, "-n", str(examples), "--seed", "1",
               "--phases", "coverage,fuzzing", "--no-color"]
    p = subprocess.run(command, cwd=server.program.folder.name, capture_output=True, text=True, timeout=900)
    return p.returncode, p.stdout + p.stderr


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", default="build/deepinfer")
    parser.add_argument("--examples", type=int, default=5, help="random requests for each operation")
    args = parser.parse_args()
    program, count = Program(args.binary), Count()
    with Server(program, "--context", 1024, "--max-batch", 4, "--quiet", "--response-store", 4) as server:
        status, text = run(server, args.examples)
        tested = re.search(r"(\d+) generated", text)
        count.group("nothing answers 5xx or in another shape", [(status == 0, text[-3000:])])
        count.group("requests were sent", [(tested and int(tested.group(1)) > 500, text[-1000:])])
        count.group("the service is still there", [(server.get("/health").status == 200, server.messages())])
    count.group("it ended well", [(server.status == 0, server.status)])
    return count.finish()


if __name__ == "__main__":
    sys.exit(main())
