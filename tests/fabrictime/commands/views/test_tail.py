"""`tail` on a real embedded log: decoded records, rejects of unreadable ones, nothing lost at the end."""

import json
import subprocess
import sys
import threading
from pathlib import Path

from confluent_kafka import Producer

from schemas import codec

ROOT = Path(__file__).resolve().parents[4]


def reject(number, detail="ends early"):
    return codec.encode(
        "Reject",
        {
            "topic": "fabric.probes",
            "partition": 0,
            "offset": number,
            "append_ns": 1,
            "reader": "map",
            "reason": "TRUNCATED",
            "detail": detail,
            "key": b"",
            "size_bytes": 3,
            "head": b"\x01\x02\x03",
        },
    )


def produce(log, topic, *values):
    producer = Producer({"bootstrap.servers": log, "partitioner": "murmur2_random"})
    for value in values:
        producer.produce(topic, value, key=b"k")
    assert producer.flush(10) == 0


def tail(log, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "fabrictime", "tail", *arguments, "--log", log],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )


def test_records_come_decoded_from_the_beginning(log):
    numbers = [str(number) for number in range(1000, 1060)]
    produce(log, "fabric.rejects", reject(1, " ".join(numbers)), b"garbage", reject(2))
    done = tail(log, "fabric.rejects", "--from", "beginning", "--limit", "3", "--json")
    assert done.returncode == 0, done.stderr
    first, bad, second = (json.loads(line) for line in done.stdout.splitlines())
    assert (first["record"]["offset"], first["record"]["head"], first["key"]) == (1, "AQID", "k")
    assert second["offset"] == first["offset"] + 2
    assert bad["error"].startswith("UNKNOWN_SCHEMA")
    pretty = tail(log, "fabric.rejects", "--from", "beginning", "--limit", "1")
    assert "'reason': 'TRUNCATED'" in pretty.stdout
    assert all(number in pretty.stdout for number in numbers), "a sentence is printed as a whole"


def test_from_the_end_only_new_records_are_shown(log):
    produce(log, "fabric.delays", b"old")
    command = [
        sys.executable,
        "-m",
        "fabrictime.commands.cli",
        "tail",
        "fabric.delays",
        "--json",
        "--limit",
        "1",
        "--log",
        log,
    ]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as reader:
        done = threading.Event()

        def produce_later():
            while not done.wait(0.2):
                produce(log, "fabric.delays", b"new")

        feeder = threading.Thread(target=produce_later)
        feeder.start()
        line = json.loads(reader.stdout.readline())
        done.set()
        feeder.join()
    assert line["offset"] > 0
    assert reader.returncode == 0


def test_log_that_does_not_answer_is_one_line():
    done = tail("127.0.0.1:1", "fabric.probes")
    assert done.returncode == 2
    assert done.stderr.startswith("fabrictime: log 127.0.0.1:1: ")
    assert done.stderr.count("\n") == 1
