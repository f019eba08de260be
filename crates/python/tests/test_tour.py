"""The examples of docs/python.md, each as it stands."""

import pathlib
import subprocess
import sys

import pytest

TOUR = pathlib.Path(__file__).resolve().parents[3] / "docs" / "python.md"
EXAMPLES = [part.partition("```")[0] for part in TOUR.read_text().split("```python\n")[1:]]


def test_there_are_ten():
    assert len(EXAMPLES) >= 10


# What torch says of one process, and of machines with one processor.
NOT_ERRORS = ["torch.distributed is disabled", "This DataLoader will create"]


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_example(number):
    warnings = ["-W", "error", *(part for text in NOT_ERRORS for part in ("-W", f"ignore:{text}"))]
    done = subprocess.run([sys.executable, *warnings, "-c", EXAMPLES[number]], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, EXAMPLES[number] + done.stdout + done.stderr
