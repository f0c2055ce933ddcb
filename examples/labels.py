"""A batch of calls to an unreliable service: answers are saved, and failed calls are retried by the next run.

python examples/labels.py URL          # repeat until it exits with 0
"""

import asyncio
import json
import sys
import urllib.request

from oncemore import checkpoint_scope, checkpointed

ROWS = [f"review number {number}" for number in range(60)]


def post(url: str, text: str) -> dict:
    request = urllib.request.Request(url, json.dumps({"text": text}).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


@checkpointed(version="prompt-2")
async def label(text: str) -> str:
    answer = await asyncio.to_thread(post, sys.argv[1], text)
    return answer["label"]


async def main() -> int:
    async with checkpoint_scope("labels") as run:
        results = await run.map(label, ROWS, concurrency=6, on_error="collect")
    for failure in results.failures:
        print(f"failed: {failure.item}: {failure.error}", file=sys.stderr)
    print(f"{len(results) - len(results.failures)} of {len(ROWS)} labelled, {run.reused['label']} of them before")
    if not results.failures:
        print(json.dumps(results))
    return 1 if results.failures else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
