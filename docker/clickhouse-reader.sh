#!/bin/sh
# Makes the user that page and Grafana read with; run once, when ClickHouse's volume is empty.
set -eu
hash=$(tr -d '\n' < /run/secrets/reader_password | sha256sum | cut -d' ' -f1)
clickhouse-client --user "$CLICKHOUSE_USER" --password "$(cat "$CLICKHOUSE_PASSWORD_FILE")" --multiquery <<SQL
CREATE USER IF NOT EXISTS reader IDENTIFIED WITH sha256_hash BY '$hash' SETTINGS readonly = 2, max_execution_time = 30;
GRANT SELECT, SHOW ON fabrictime.* TO reader;
SQL
