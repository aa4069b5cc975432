from native.core.columns import PathDelayColumns

def encode_path_delays(
    nic: str,
    shard: str,
    window: int,
    part: int,
    parts: int,
    window_start_ns: int,
    window_end_ns: int,
    state: int,
    columns: PathDelayColumns,
    begin: int,
    end: int,
) -> bytes: ...
