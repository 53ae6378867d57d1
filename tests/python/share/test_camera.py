# SPDX-License-Identifier: Apache-2.0
"""The example of a camera that is killed and started again, beside a recorder of every frame and a viewer."""

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tenon as tn

EXAMPLE = Path(__file__).parents[3] / "examples/camera.py"
SECONDS = 60


class Role:
    """A process of the example. Its lines come to a file, so that it never waits for the reader."""

    def __init__(self, folder, *arguments):
        self.output = folder / f"{arguments[0]}-{time.monotonic_ns()}"
        with self.output.open("w") as file:
            self.process = subprocess.Popen(
                [sys.executable, EXAMPLE, *map(str, arguments)], stdout=file, stderr=subprocess.STDOUT
            )
        self.pid = self.process.pid

    def frames(self):
        """(run, number, first element) of each frame that it has received."""
        lines = self.output.read_text().splitlines(keepends=True)
        found = [
            re.match(r"run (\d+), frame (\d+): (\d+), [\d.]+ ms\n", line) for line in lines if "\n" in line
        ]
        assert all(found), lines
        return [tuple(map(int, match.groups())) for match in found]

    def ended(self):
        assert self.process.wait(SECONDS) == 0, self.output.read_text()

    def kill(self):
        self.process.kill()
        self.process.wait(SECONDS)


@pytest.fixture
def started(tmp_path):
    roles = []

    def start(*arguments):
        roles.append(Role(tmp_path, *arguments))
        return roles[-1]

    yield start
    for role in roles:
        role.kill()


def until(condition):
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.01)


def test_a_recorder_gets_each_frame_of_a_camera_that_is_killed_and_a_viewer_holds_nobody_back(started):
    recorder, viewer = started("every"), started("latest")
    watch = None

    def sees_both():
        nonlocal watch
        try:
            watch = watch or tn.Channel.attach("camera")
        except FileNotFoundError:
            return False
        return watch.stats()["consumers"] == 2

    until(sees_both)
    runs = []
    for n in range(2):
        camera = started("camera")
        runs.append(camera.pid)
        until(lambda camera=camera: sum(run == camera.pid for run, _, _ in recorder.frames()) >= 20)
        if n == 1:  # it keeps the frame that it shows
            viewer.process.send_signal(signal.SIGSTOP)
            before = len(recorder.frames())
            until(lambda before=before: len(recorder.frames()) >= before + 30)
        camera.kill()
    # What the killed ones have sent comes before the frames of the next one, which ends by itself.
    last = started("camera", 40)
    runs.append(last.pid)
    last.ended()
    recorder.ended()
    viewer.process.send_signal(signal.SIGCONT)
    viewer.ended()
    recorded, seen, now = recorder.frames(), viewer.frames(), watch.stats()
    assert list(dict.fromkeys(run for run, _, _ in recorded)) == runs
    for run in runs:
        numbers = [k for of, k, _ in recorded if of == run]
        assert numbers == list(range(len(numbers))), "a frame is missing, or came twice"
        assert run != last.pid or len(numbers) == 40
    assert now["sent"] == len(recorded) and now["dropped"] == 0
    assert all(element == k % 256 for _, k, element in [*recorded, *seen])
    order = [(runs.index(run), k) for run, k, _ in seen]
    assert order == sorted(set(order)), "a viewer never receives an older frame"
    assert (runs.index(last.pid), 39) == order[-1]


def test_the_three_roles_take_25_lines_at_most():
    lines = EXAMPLE.read_text().split('"""')[-1].splitlines()
    assert sum(bool(line.strip()) for line in lines) <= 25
