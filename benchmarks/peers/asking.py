"""What all clients share: the arguments, the clock, and one JSON object on the last line."""

import json
import os
import sys
import tempfile
import time


def run(ask):
    """Asks as often as wanted; prints answers, seconds, and the lines between the marks."""
    path, epsilon, delta, groups, rows, runs = sys.argv[1:7]
    arguments = path, float(epsilon), float(delta), int(groups), int(rows)
    told(lambda: [ask(*arguments)], int(runs))


def run_weekly(ask):
    """The same with a list of weeks, of which each gives a table."""
    path, epsilon, delta, groups, rows, runs, *weeks = sys.argv[1:]
    arguments = path, float(epsilon), float(delta), int(groups), int(rows), weeks
    told(lambda: ask(*arguments), int(runs))


def told(answer, runs):
    """Prints what all runs gave."""
    answers, seconds, cpu = [], [], []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)  # for a state directory, where there is one
            begun, worked = time.perf_counter(), time.process_time()
            tables = answer()
            seconds.append(time.perf_counter() - begun)
            cpu.append(time.process_time() - worked)  # of this process alone, not of a JVM
            os.chdir("/")
        answers.append([{str(key): float(n) for key, n in one.items()} for one in tables])
    with open(HERE) as file:
        written = file.read().split("# begin\n")[1].split("# end")[0].splitlines()
    lines = sum(bool(line.strip()) for line in written)
    print(json.dumps({"answers": answers, "seconds": seconds, "cpu": cpu, "lines": lines}))


HERE = os.path.abspath(sys.argv[0])
