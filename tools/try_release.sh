#!/usr/bin/env bash
# Installs a built wheel, then the sdist, each into an environment of its own, and answers a query with it: try_release.sh DIST
set -euo pipefail
dist=$(cd "$1" && pwd)
constraints=$(cd "$(dirname "$0")/.." && pwd)/constraints.txt
there=$(mktemp -d)
trap 'rm -rf "$there"' EXIT
cd "$there"
{
  echo unit,ts
  for ((i = 0; i < 1800; i++)); do printf '%d,2026-01-01 00:%02d:%02d\n' $((i % 200)) $((i / 60)) $((i % 60)); done
} > made.csv
cat > query.sql <<'SQL'
CREATE STREAM made (unit INT64, ts TIMESTAMP) WITH (source = 'files', path = 'made.csv', event_time = ts);
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (
  epsilon = 4, delta = 1e-6, privacy_unit_column = unit, max_rows_contributed = 10,
  start = '2026-01-01', end = '2026-01-01 00:30:00') COUNT(*) AS n FROM made EMIT EVERY INTERVAL 10 MINUTE;
SQL
for package in "$dist"/*.whl "$dist"/*.tar.gz; do
  rm -rf try state
  python3 -m venv try
  try/bin/pip install -q --disable-pip-version-check -c "$constraints" "$package"
  try/bin/streamveil --version
  try/bin/streamveil run query.sql --state state --quiet > /dev/null
  try/bin/streamveil verify state > /dev/null
  try/bin/python -c "import streamveil, pathlib; assert (pathlib.Path(streamveil.__file__).parent / 'py.typed').exists()"
  echo "works: $(basename "$package")"
done
