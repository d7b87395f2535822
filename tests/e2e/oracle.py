"""vLLM's own code, in a process of its environment, that answers questions."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, Self


class Oracle:
    """Runs a script of this folder with vLLM's Python: a line of JSON in, a line of JSON out."""

    def __init__(self, vllm: Path, script: str, log: Path) -> None:
        with log.open("w") as errors:
            self._process = subprocess.Popen(
                [vllm / "bin/python", Path(__file__).with_name(script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def ask(self, question: object) -> Any:
        """The answer to a question."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        return self.answer()

    def answer(self) -> Any:
        """The next line that it writes."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"vLLM's process ended with {self._process.wait()}"
        return json.loads(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._process.communicate()
