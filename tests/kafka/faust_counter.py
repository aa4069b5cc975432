"""A Faust worker for the tests: counts messages a key in a table and reports the counts."""

import os

import faust

app = faust.App(
    os.environ["APP"],
    broker=f"kafka://{os.environ['BOOTSTRAP']}",
    datadir=os.environ["DATA"],
    store="memory://",
    topic_replication_factor=1,
    topic_partitions=4,
    broker_session_timeout=15,  # a worker that gets no processor for seconds is not a dead one
    broker_heartbeat_interval=1,
    broker_commit_interval=0.2,
    web_enabled=False,
)
input_topic = app.topic(
    f"{os.environ['APP']}-in",
    key_type=bytes,
    value_type=bytes,
    key_serializer="raw",
    value_serializer="raw",
    partitions=4,
)
counts_out = app.topic(
    f"{os.environ['APP']}-out",
    key_type=bytes,
    value_type=bytes,
    key_serializer="raw",
    value_serializer="raw",
    partitions=4,
)
counts = app.Table("counts", default=int, partitions=4)


@app.agent(input_topic)
async def count(stream):
    async for key, _ in stream.items():
        counts[key.decode()] += 1
        await counts_out.send(key=key, value=b"%d" % counts[key.decode()])


if __name__ == "__main__":
    app.main()
