"""
A program that fills a disk on command: `python -m tests.real_disk.filler '{"path": ..., "history": ..., ...}'`.

Commands come line by line; each is answered by one line of JSON:

    fill LOGS         append until every log named (comma-separated) has refused three times in a row
    append LOG COUNT  append so many single messages; says how many were acknowledged
    read              read every message of every log
    retain            take checkpoints and remove all segments that may go, from all logs
    topic NAME        create a topic with four partitions
    maintain          one turn of the maintenance, unless it runs in the background; then wait until it holds the reserve again
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from typing import Any

from penstock.errors import PenstockError
from tests.real_disk.history import HistoryWriter
from tests.real_disk.writer import LOGS, Writer, open_volume, read_all


class Filler:
    """Carries the commands out."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._background = config["background"]
        self._history = HistoryWriter(config["history"])
        self._volume = open_volume(config, background=config["background"])
        self._writer = Writer({"threads": 0, **config}, self._volume, self._history)
        self._writer.create_topics()

    def do(self, command: str, *words: str) -> dict[str, Any]:
        """Carry out one command."""
        answer: dict[str, Any] = getattr(self, "do_" + command)(*words)
        failure = self._volume._committer.failure
        return {**answer, "failure": failure}

    def do_fill(self, names: str) -> dict[str, Any]:
        refused = dict.fromkeys(names.split(","), 0)
        sent = 0
        while min(refused.values()) < 3 and self._volume._committer.failure is None:
            for name, times in refused.items():
                topic, partition = name.split("/")
                # Large ones first, then ever smaller ones, so that it is full to the last block.
                size = (800, 60, 0)[min(times, 2)]
                before = self._writer.refusals
                self._writer.append(0, [(topic, int(partition))], 20 if size == 800 else 1, size)
                refused[name] = times + 1 if self._writer.refusals > before else 0
                sent += 1
        return {"sent": sent}

    def do_append(self, name: str, count: str) -> dict[str, Any]:
        topic, partition = name.split("/")
        before = self._writer.refusals
        for _ in range(int(count)):
            self._writer.append(0, [(topic, int(partition))], 1, 200)
        return {"acknowledged": int(count) - (self._writer.refusals - before)}

    def do_read(self) -> dict[str, Any]:
        messages = 0
        for topic, partition in LOGS:
            log = self._volume.log(topic, partition)
            found = sum(len(batch) for batch in read_all(log))
            assert found == log.committed_end - log.log_start, f"{found} messages in {log!r}"
            messages += found
        return {"messages": messages}

    def do_retain(self) -> dict[str, Any]:
        errors = []
        for _ in range(4):
            try:
                self._volume.checkpoint()
            except PenstockError as error:
                # The first one on a full disk gives up the reserve, so that the next has room.
                errors.append(type(error).__name__)
        removed = 0
        for topic, partition in LOGS:
            log = self._volume.log(topic, partition)
            self._history.line("retain", f"{topic}/{partition}")
            segments, _ = self._volume.retain(log, messages_max=1)
            if segments:
                self._history.line("retained", f"{topic}/{partition}", log.log_start)
            removed += segments
        return {"removed": removed, "errors": errors}

    def do_maintain(self) -> dict[str, Any]:
        deadline = time.monotonic() + 30
        if not self._background:
            self._volume.maintain_once()
        while self._background and not self._volume._space.has_reserve and time.monotonic() < deadline:
            time.sleep(0.01)
        return {"reserve": self._volume._space.has_reserve}

    def do_topic(self, name: str) -> dict[str, Any]:
        self._volume.create_topic(name, 4)
        return {"made": name}


def main() -> None:
    """Answer commands until there are no more; then die without closing."""
    filler = Filler(json.loads(sys.argv[1]))
    os.write(1, b"ready\n")
    for line in sys.stdin:
        try:
            answer = filler.do(*line.split())
        except Exception as error:
            answer = {"error": type(error).__name__, "text": str(error), "where": traceback.format_exc()}
        os.write(1, json.dumps(answer).encode() + b"\n")
    os._exit(0)


if __name__ == "__main__":
    main()
