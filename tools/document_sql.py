"""Writes docs/sql.md from the tables that the parser reads: `make docs/sql.md`.

A test compares the file with `render()`, so the page cannot drift from the code.
"""

from __future__ import annotations

import sys

from streamveil.plan.check import HABITS
from streamveil.plan.options import OPTIONS
from streamveil.sql.aggregates import FORMS, REFUSED
from streamveil.sql.options import REFUSED_OPTIONS

INTRODUCTION = """\
# SQL

You find every statement, option and function of the SQL that streamveil reads. It is GoogleSQL's
differential-privacy clause: a query that is written for one table runs unchanged over a file and
gives one answer, and a few more words make it continual. This page is
generated from the tables of the parser (`make docs/sql.md`).

## A one-shot query
```sql
SELECT WITH DIFFERENTIAL_PRIVACY
    OPTIONS (epsilon = 1, delta = 1e-6, privacy_unit_column = user_id, max_groups_contributed = 3)
  country, COUNT(*) AS visits, AVG(age, contribution_bounds_per_row => (0, 100)) AS age
FROM 'visits.parquet'
GROUP BY country
```
`streamveil run query.sql --state visits.veil` prints it. FROM takes the path of a file, a declared
table, or a name given with `--table name=path`.

## Each person's own rows
A subquery that groups, or has windows, by the privacy unit combines rows of one person, before
anything is bounded: first and last events, new and returning, totals of a person's day, sessions.
```sql
SELECT WITH DIFFERENTIAL_PRIVACY
    OPTIONS (epsilon = 1, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 1)
  visits, COUNT(*) AS people
FROM (SELECT user_id, COUNT(*) AS visits FROM 'visits.parquet' GROUP BY user_id)
GROUP BY visits
```
Groups: `COUNT`, `COUNT(DISTINCT x)`, `COUNTIF`, `SUM`, `AVG`, `MIN`, `MAX`, `LOGICAL_OR`,
`LOGICAL_AND`, `ANY_VALUE` (of the first row), `MIN_BY(x, t)` and `MAX_BY(x, t)` (also `ANY_VALUE(x
HAVING MAX t)`), HAVING and DISTINCT. Windows (`OVER (PARTITION BY user_id ...)`, named by `WINDOW`
or not, also in QUALIFY): the same, and `ROW_NUMBER`, `RANK`, `DENSE_RANK`, `LAG`, `LEAD`,
`FIRST_VALUE`, `LAST_VALUE` over the whole partition, and `COUNT` and `SUM` of integers up to a row
(`ORDER BY`). Subqueries may be nested, and be the table of `TUMBLE`, whose time is then their own
(the month of somebody's first visit). In Python
`.protect("user_id").per_unit(visits="COUNT(*)")`, `.per_unit(k="ROW_NUMBER() OVER (ORDER BY ts)")`.

`FROM t, UNNEST(SPLIT(tags, ',')) AS tag`, or `UNNEST(column)` of lists, makes several rows of one,
which count against the bounds as any rows do; `.unnest(tag="SPLIT(tags, ',')")` in Python. This
needs no other row, so it runs on live data as well. A row becomes at most 1,000 rows, and fewer if
the texts and lists beside the parts would take more than 16 MiB. Further parts are in no count of
cut rows and in no interval.

To combine rows, all of them are held in memory, so the source must end: a one-shot query, or a
replay by time. On live data, where a row to come would change what was released,
`max_rows_contributed = 1` counts everybody's first row alone (new people), and `COUNT(DISTINCT
user_id)` in windows those who came. What would let rows of two people meet is refused. Proof:
`streamveil.plan.own_rows`.

## Joins
Rows of a person may be joined with rows of the same person elsewhere: for funnels, retention or
attributes of people. Any row may be joined with rows of a table that is about nobody.
```sql
CREATE STREAM visits WITH (source = 'files', path = 'visits.parquet', event_time = 'ts');
CREATE TABLE people WITH (source = 'files', path = 'people.parquet');
CREATE TABLE regions WITH (source = 'files', path = 'regions.csv', public = TRUE);

SELECT WITH DIFFERENTIAL_PRIVACY
    OPTIONS (epsilon = 1, delta = 1e-6, privacy_unit_column = user_id)
  r.region, p.plan, COUNT(DISTINCT user_id) AS people
FROM visits AS v
JOIN people AS p ON v.user_id = p.user_id
JOIN regions AS r ON v.country = r.country
WHERE user_id NOT IN (SELECT user_id FROM 'complaints.parquet')
GROUP BY r.region, p.plan
```
| form | meaning |
|---|---|
| `v JOIN p ON v.user_id = p.user_id`, `v LEFT JOIN p USING (user_id)` | by the privacy unit, and \
by more equalities and other conditions. Tables, subqueries by the unit, the \
table itself under another name, whose rows are of one person: it is joined by the same column |
| `v JOIN r ON v.country = r.country` | r is declared `public = TRUE`: one file, read when the \
query is made; the job goes on with the same rows only |
| `WHERE user_id IN (SELECT user_id FROM ...)`, `NOT IN`, \
`WHERE EXISTS (SELECT 1 FROM p WHERE p.user_id = v.user_id)` | people who are in the other \
relation, or not in it. A null there is nobody: `NOT IN` passes it over, where standard SQL would \
leave no row of anybody |
| `(SELECT user_id, ts FROM a UNION ALL SELECT user_id, ts FROM b)` | rows of both |

A row is joined to the first 1,000 rows that match it, and becomes 1,000 rows at most in all joins
together, or 16 MiB of texts and lists. A join by the unit needs all rows, as everything that
combines rows does; a join with a public table needs no other row and runs on live
data as well. On live data (a followed source, `clock = 'wall'`) a join by the unit keeps as many
rows of each person as the query says: `join_rows = 1` keeps the newest row of a table that
changes, and a row of the stream is joined to the rows kept when it arrives; a LEFT JOIN that finds
none has nulls. `join_within =
INTERVAL 1 HOUR` joins two streams of events: rows whose times are at most that far apart,
whichever came first, among the newest `join_rows` rows of each person in either stream. A pair
arrives with its later row, so windows need a `lateness` as long. In a LEFT JOIN a row that meets
nothing arrives alone in the first step that begins more than twice the interval after its time, or
when newer rows of its person take its place: then windows need twice the interval and the time
between releases. The state holds the kept rows as
they arrived. Neighbouring inputs have or lack a person's rows in all tables. Every other join could
match rows of two people, and is refused. In Python `visits.protect("user_id").join(people,
on="user_id", how="left")`, and `sv.memory(table, public=True)`; a column of both tables is
`name:column`. The first table's column of times (`event_time`) keeps its name. Proof:
`streamveil.plan.joins`.

## Totals beside groups
`GROUP BY ROLLUP (country, city)`, `CUBE` and `GROUPING SETS ((country), (city), ())` give several
groupings at once; a column `grouping_set` says which. Each set is charged: bounds are given for one
set, are multiplied by the number of sets where they count rows, and noise follows from them as for
any groups. In Python `.group_by("country", "city", sets=[("country", "city"), ("country",), ()])`.

## A continual query
```sql
CREATE STREAM clicks WITH (source = 'files', path = 'clicks/*.parquet', event_time = 'ts');
CREATE SINK pages WITH (sink = 'files', path = 'out/', format = 'parquet');

INSERT INTO pages
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (
         epsilon = 6, delta = 1e-9, privacy_unit_column = user_id,
         privacy_unit_period = INTERVAL 1 DAY, max_rows_contributed = 32, max_rows_per_group = 1,
         start = '2026-01-01', end = '2026-02-01')
       window_start, url, COUNT(*) AS n, SUM(ms, contribution_bounds_per_row => (0, 60000)) AS ms
FROM TUMBLE(TABLE clicks, DESCRIPTOR(ts), size => INTERVAL 1 DAY)
GROUP BY window_start, url
EMIT EVERY INTERVAL 15 MINUTE;
```

## Statements
| statement | meaning |
|---|---|
| `CREATE STREAM name (column TYPE, ...) WITH (source = '...', ...)` | rows to read; \
`CREATE TABLE` without `changelog` is the same. Column types are for CSV and JSON lines; \
columns of CSV without one are texts (in a public table, of the type that all \
values look like), `event_time` and `arrival` times (ISO 8601; without an \
offset in UTC). An empty field of CSV is null, and so are words such as NA and NULL, but not in \
texts. Fields end with a comma, or with the `delimiter` that is given (`';'`, `'|'`, `'\\t'`); \
quoted texts hold line breaks with `allow_quoted_newlines = TRUE` \
([files](files.md#csv-of-other-programs)). \
Files may be packed (`.csv.gz`, `.jsonl.zst`, `.bz2`); lines longer than `max_line_bytes` \
(16 MiB), and JSON nested deeper than 500 or of more than 1,048,576 values, are counted, not \
read. All options but `source` and `event_time` are the connector's own. Sources: `files` \
([files](files.md)); `kafka` ([kafka](kafka.md)); `nats` ([nats](nats.md)); `sse` \
([sse](sse.md)); `postgres`, `postgres_changes`, `sqlite`, `duckdb` \
([databases](databases.md)); `delta`, `iceberg` \
([lakes](lakes.md)) |
| `CREATE TABLE name (column TYPE CHECK (...), ...) WITH (source = ..., changelog = '...')` | a \
changing table: rows insert and delete its records (below) |
| `ASK table COUNT(*) WHERE condition` | a question to a changing table, answered \
at the end of the run |
| `CREATE SINK name WITH (sink = '...', ...)` | where releases go: `files` (Parquet, CSV, JSON \
lines), `delta`, `iceberg`, `console`, `kafka` ([kafka](kafka.md)), `sqlite`, `duckdb` and \
`postgres` ([databases](databases.md)); with \
`escape_formulas = TRUE` a text that a spreadsheet would compute gets `'` put before it in CSV |
| `INSERT INTO sink, sink SELECT WITH DIFFERENTIAL_PRIVACY ...` | a query whose releases go \
there: to each of several sinks exactly once, in this order; the first one names the job. A sink \
that is added later gets the last release and those that follow (`streamveil read` gives the \
others) |
| `SELECT ... FROM (SELECT WITH DIFFERENTIAL_PRIVACY ...) WHERE ... ORDER BY ... LIMIT n` | what \
is done with released rows, free of charge: [post-processing](post-processing.md) |
| `CREATE VIEW name AS SELECT ...` | a name for a query in what follows, private or not; a private \
one names its job, so several queries over it are one job in one state |
| `EXPLAIN PRIVACY [INSERT INTO sink] SELECT ...` | describes the query instead of running it |

Statements end with `;`. Names are matched without case where that is unambiguous. Spell the column
of the privacy unit alike everywhere: until rows are read, `User` and `user` might be two columns.

## FROM
| form | meaning |
|---|---|
| `'path.parquet'`, `'dir/*.csv'`, `name` | files, or a declared stream |
| `TUMBLE(TABLE t, DESCRIPTOR(ts), size => INTERVAL n UNIT)` | windows side by side |
| `HOP(TABLE t, DESCRIPTOR(ts), slide => ..., size => ...)` | overlapping windows; a row counts \
in each, and each time against `max_rows_contributed` |
| `CUMULATE(TABLE t, DESCRIPTOR(ts), step => ..., size => ...)` | windows that share a start and \
grow; rows count as in HOP |
| `(SELECT columns FROM ... WHERE ...) AS s`, `WITH s AS (...)` | computed columns and filters, \
row by row |
| `t RIGHT JOIN (SELECT DISTINCT k FROM UNNEST(['a', 'b']) AS k) USING (k)`, \
`t RIGHT JOIN catalogue USING (k)` | public groups: a list, or a table declared with \
`public = TRUE`. A value that stands there twice is one group, and one without rows counts 0 |

Lengths are named, because their positions differ between engines. `window_start` and `window_end`
may be selected and grouped by; every release carries them.

## Calendar time
```sql
CREATE STREAM visits WITH (source = 'files', path = 'visits.parquet', event_time = 'ts');

SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (
         epsilon = 1, delta = 1e-9, privacy_unit_column = user_id,
         privacy_unit_period = INTERVAL 1 MONTH, max_rows_contributed = 8,
         time_zone = 'Europe/Berlin', start = '2026-01-01', end = '2026-07-01')
       window_start, country, COUNT(DISTINCT user_id) AS visitors
FROM TUMBLE(TABLE visits, DESCRIPTOR(ts), size => INTERVAL 1 MONTH)
GROUP BY window_start, country
EMIT EVERY INTERVAL 1 MONTH
```
Lengths of windows, unit-periods and `EMIT EVERY` are `INTERVAL n UNIT` with MINUTE, HOUR, DAY,
WEEK, MONTH, QUARTER or YEAR. With `time_zone` those of days and longer, and of 2, 3, 4, 6, 8 or 12
hours, follow the clocks of the zone, by the rules of the installed package `tzdata`: a day may have
23 or 25 hours. Shorter ones are real time. Every instant is in exactly one window: an hour that
clocks show twice belongs to one, and a day that was left out has none. `start` and `end` without an
offset are on those clocks.

| argument of TUMBLE, HOP, CUMULATE | meaning |
|---|---|
| `week_start => 'sunday'` | the day on which windows of weeks begin; Monday if left out. \
7 days are no week: they count from 1970-01-01 |
| `origin => TIMESTAMP '2026-07-01'` | a time, on the clocks of the zone, at which a window \
begins; midnight of 1970-01-01 if left out |
| `offset => INTERVAL 6 HOUR` | how much later windows begin than they would |

Unit-periods begin where windows do. Steps are counted from `start`: `INTERVAL 1 MONTH` from the
15th releases on every 15th. Where no window begins at `start`, windows get more releases than they
need, and noise for each: `EXPLAIN PRIVACY` warns of it and names a better start. Noise is sized for
the window with the most releases: the longest month, the day with 25 hours. CUMULATE may grow by
days up to months; in HOP both lengths are in months or neither is. Calendars end with the year
2199. A state refuses to go on under other rules of its zone.

In Python: `sv.tumble("1 month", tz="Europe/Berlin")`, `sv.tumble("1 week", week_start="sunday")`,
`release(every="1 month", ...)`. `TIMESTAMP_TRUNC(ts, MONTH, 'Europe/Berlin')` is the start of the
window that holds a time, to group by in a one-shot query.

## Changing tables
```sql
CREATE TABLE people (op STRING, id INT64, city STRING CHECK (city IN ('Lima', 'Oslo', 'Rome')),
                     age INT64 CHECK (age BETWEEN 0 AND 99))
WITH (source = 'files', path = 'changes/*.csv', changelog = 'insert-delete', operation = op,
      id = id);

SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (
         epsilon = 1, delta = 1e-6, expected_size = 20000, steps = 365, ask_share = 0.3)
       city, age, COUNT(*) AS n, COUNTIF(age < 18) AS young
FROM people
GROUP BY GROUPING SETS ((city), (age), ())
EMIT EVERY 1000 ROWS;

ASK people COUNT(*) WHERE city = 'Oslo' AND age > 66;
```
`CHECK (column IN (...))` or `CHECK (column BETWEEN low AND high)` declares the public values of a
column; records with others are not in the table and are counted for the operator. A column may
have a CHECK without a type. `source` is a connector, or the name of rows handed over (`--table`,
Python).

| setting | meaning |
|---|---|
| `changelog` | `'insert'`: every row inserts; `'insert-delete'`: `operation` says what a row does |
| `operation` | column with `+` or `-`; `I`, `D` or `U`; `insert`, `delete`, `update`; Debezium's \
`c`, `r`, `u` or `d`; in any case of letters. Other rows are counted and left out. An update \
deletes the record and inserts it with its new values |
| `id` | column that names a record. A deletion of no record and an insertion of one that is there \
change nothing |
| `lives` | how often one id may be inserted, updates included; the guarantee is for \
all its lives. With 1, the default, an update only deletes |

Answers are `COUNT(*)`, `COUNT(x)` and `COUNTIF(condition)`, over all records or grouped by sets of
declared columns: `GROUP BY a, b`, `GROUPING SETS`, `CUBE`, `ROLLUP`. WHERE decides which records
are in the table. One record is protected, with its insertion and its deletion. `EXPLAIN PRIVACY`
names every mechanism that could run, with its errors; a query whose worst answer would be wrong
by a quarter of all records is refused. Intervals hold for all answers of a release together;
mechanisms whose answers are not data plus noise have no `n_sd`, and where no bound on their error
is proved no interval, as each release says.

`COUNT(DISTINCT x)`, alone in its statement, counts the different values of x that records with an
`id` have now; x is any expression of a row, and its values need no list. `max_changes` is how often
each value may come or go in a group: later changes are not counted, and every release says so
([recipe](how-to/values-that-go.md)).

A question (ASK, `streamveil ask`, `query.ask` in Python) is about the last closed step of a job
that is not running. Its answer is RELEASED (it follows from the last release), EASY (the synthetic
table is near enough), HARD (corrected, which is paid from `ask_share`) or EXHAUSTED (nothing is
left to pay with; no interval). The same question about the same step is free, in whatever words.

## When releases happen
| words | meaning |
|---|---|
| nothing | one answer when everything is read |
| `EMIT EVERY INTERVAL n UNIT` | by time: a replay by `arrival` or event time from `start` to \
`end`, or the wall clock for a source that never ends |
| `EMIT EVERY n ROWS` | by position in the source; says that row positions are public |

## What every number comes with
For an output `n`: `n`, `n_sd` (standard deviation of its noise), `n_low` and `n_high` (interval of
`confidence`), and for each release `window_start`, `window_end` and `trigger`. The interval does
not cover the bias of bounding, which `EXPLAIN PRIVACY` names. `opened` (the first trigger that
showed the group) and, where groups carry weights, `noise_weight` tell how releases are correlated:
differences, recent sums and ratios of several follow from them, see [answers](answers.md).
"""

AGGREGATE_NOTES = {
    "COUNT": "`COUNT(*)`, `COUNT(x)` (x not null), `COUNT(DISTINCT unit)` (privacy units), "
    "`COUNT(DISTINCT x)` (different values, twice the noise)",
    "COUNTIF": "`COUNTIF(condition)`",
    "LOGICAL_OR": "`LOGICAL_OR(condition)`: whether certainly any row has it",
    "LOGICAL_AND": "`LOGICAL_AND(condition)`: whether no row certainly lacks it",
    "SUM": "`SUM(x, contribution_bounds_per_row => (low, high))`",
    "AVG": "mean; both noisy parts are used, interval by Fieller's method",
    "VARIANCE": "same as VAR_SAMP",
    "VAR_SAMP": "sample variance",
    "VAR_POP": "variance of the values: VAR_SAMP without its factor n / (n - 1)",
    "STDDEV": "same as STDDEV_SAMP",
    "STDDEV_SAMP": "square root of VAR_SAMP",
    "STDDEV_POP": "square root of VAR_POP",
    "PERCENTILE_CONT": "`PERCENTILE_CONT(x, q, contribution_bounds_per_row => (low, high))`; the "
    "interval holds for any distribution and ends with the finest classes of the tree",
    "APPROX_QUANTILES": "`APPROX_QUANTILES(x, n, ...) AS q`: columns `q_0` .. `q_n` of one tree",
    "MEDIAN": "`PERCENTILE_CONT(x, 0.5, ...)`",
    "APPROX_COUNT_DISTINCT": "same as `COUNT(DISTINCT x)`",
    "HEAVY_HITTERS": "`HEAVY_HITTERS(x, k => n)`: the most frequent values, in bounded memory",
    "APPROX_FREQUENCY": "`APPROX_FREQUENCY(x)`: a sketch to ask for any value's frequency",
}

SIGNATURES = {  # every function a row expression may call
    "numbers": "ABS(x) SIGN(x) ROUND(x[,digits]) FLOOR(x) CEIL(x) CEILING(x) TRUNC(x) SQRT(x) "
    "EXP(x) LN(x) LOG(x[,base]) LOG10(x) POW(x,y) POWER(x,y) DIV(a,b) MOD(a,b) SAFE_DIVIDE(a,b) "
    "SAFE_ADD(a,b) SAFE_SUBTRACT(a,b) SAFE_MULTIPLY(a,b) SAFE_NEGATE(x) "
    "IS_NAN(x) IS_INF(x) RANGE_BUCKET(x,[ends])",
    "choices": "GREATEST(...) LEAST(...) COALESCE(...) IFNULL(x,y) NULLIF(x,y)",
    "texts": "CONCAT(...) LOWER(s) UPPER(s) TRIM(s[,chars]) LTRIM(s[,chars]) RTRIM(s[,chars]) "
    "LENGTH(s) CHAR_LENGTH(s) SUBSTR(s,from[,length]) SUBSTRING(s,from[,length]) "
    "LEFT(s,n) RIGHT(s,n) REVERSE(s) REPLACE(s,old,new) STRPOS(s,part) "
    "INSTR(s,part[,from[,n]]) STARTS_WITH(s,part) ENDS_WITH(s,part) "
    "CONTAINS_SUBSTR(s,part) REGEXP_CONTAINS(s,pattern) "
    "REGEXP_EXTRACT(s,pattern[,from[,n]]) REGEXP_SUBSTR(s,pattern[,from[,n]]) "
    "REGEXP_REPLACE(s,pattern,new) INITCAP(s) LPAD(s,n[,char]) RPAD(s,n[,char]) "
    "SPLIT_PART(s,between,n) REGEXP_INSTR(s,pattern[,from[,n[,end]]]) BYTE_LENGTH(s) "
    "OCTET_LENGTH(s) FORMAT(format,...) JSON_VALUE(s[,path]) JSON_EXTRACT_SCALAR(s[,path])",
    "times": "DATE(t[,zone]) TIMESTAMP(d[,zone]) TIMESTAMP_TRUNC(t,UNIT[,zone]) "
    "DATE_TRUNC(t_or_d,UNIT[,zone]) "
    "TIMESTAMP_ADD(t,INTERVAL) TIMESTAMP_SUB(t,INTERVAL) DATE_ADD(d,INTERVAL) "
    "DATE_SUB(d,INTERVAL) TIMESTAMP_DIFF(a,b,UNIT) DATE_DIFF(a,b,UNIT) TIMESTAMP_SECONDS(n) "
    "TIMESTAMP_MILLIS(n) TIMESTAMP_MICROS(n) UNIX_SECONDS(t) UNIX_MILLIS(t) UNIX_MICROS(t) "
    "UNIX_DATE(d) FORMAT_TIMESTAMP(format,t[,zone]) FORMAT_DATE(format,d) "
    "PARSE_TIMESTAMP(format,s) PARSE_DATE(format,s) LAST_DAY(d[,UNIT]) "
    "DATE_FROM_UNIX_DATE(n) DATETIME(t[,zone]) DATETIME_TRUNC(t,UNIT) DATETIME_ADD(t,INTERVAL) "
    "DATETIME_SUB(t,INTERVAL) DATETIME_DIFF(a,b,UNIT) FORMAT_DATETIME(format,t) "
    "PARSE_DATETIME(format,s)",
}

EXPRESSIONS = """\
## Row expressions
The privacy unit, groups, WHERE and the arguments of aggregates are expressions over one row. Types:
INT64, FLOAT64, BOOL, STRING, BYTES, DATE, TIMESTAMP (UTC where no zone is named). Operators:
`+ - * / %`, comparisons, `AND OR NOT`, `IN (values)`, `BETWEEN`, `LIKE`,
`IS [NOT] NULL | TRUE | FALSE`, `IS [NOT] DISTINCT FROM`, `||`, `CASE`, `IF`, `CAST`, `SAFE_CAST`,
`EXTRACT(part FROM time [AT TIME ZONE 'zone'])`, `SPLIT(s, between)[SAFE_OFFSET(n)]`,
`INTERVAL n UNIT` beside a time, a number of days beside a date. Positions, patterns, units and
zones are written as constants. A DATETIME is what clocks show, as a TIMESTAMP in UTC; a time of day
without its day is no value.

Where SQL would raise (division by zero, a bad cast, overflow, a time outside the years 1 to 9999),
the value of that row is null, and a null privacy unit or value is counted and left out: an error
would let one row stop everybody's stream; so `SAFE.F(x)` is `F(x)`. Lengths and positions count
characters.

A field of a structure is a column, `user.geo.city`, where the source gives structures
([files](files.md#columns-that-differ-between-files)).

`JSON_VALUE(s, path)` reads one number, text or truth value of JSON text, as text:
`CAST(JSON_VALUE(event, '$.cart.items[0].price') AS FLOAT64)`. It is null where the text is no JSON,
or has an object, a list or nothing there.
"""

DIFFERENCES = """\
## Differences from GoogleSQL
- Noise is Gaussian, for thresholds too: `LAPLACE_THRESHOLD` is accepted and means a private
  threshold. A delta is therefore needed; `epsilon` alone is not enough for any aggregate yet.
- Where `contribution_bounds_per_row` is left out, the expression may imply it: the values of
  `IF(paid, 1, 0)`, of `EXTRACT(HOUR FROM t)` and of expressions made of these have ends, which are
  the bounds. Otherwise a look at the rows chooses the bounds, paid from the
  query's budget (`look_share`, a tenth): one value of each unit enters a noisy histogram by sign
  and power of the root of 2. For sums and means, the look takes the bounds whose clamping and noise
  together have the least forecast error; for other aggregates, the ends of the outermost bins
  that stand out (noise alone makes one stand out once in 10^9). The look also says about how much
  lies beyond. All rows
  must be there when the job begins (files, a table in memory), continual queries included; live
  data need bounds. With too few units to tell, the bounds are those of the type, if it has any (0
  and 1 of a BOOL that is cast); else the answer and its interval are null, and a note says so.
  GoogleSQL's implicit bounds apply to a unit's total in a group; here they apply to each row.
- `contribution_bounds_per_group` clamps a unit's total in a group, as in GoogleSQL: its rows are
  combined before bounding. That needs all rows, so in a continual query only
  `COUNT(*, contribution_bounds_per_group => (0, k))` is available (at most k rows of a unit in a
  group); for other aggregates give bounds per row. Bounds per row and per group do not mix.
- `max_groups_contributed = g` allows g times `max_rows_per_group` rows (default 1 each): the same
  sensitivity, and the rows may lie in more groups. Beside `COUNT(DISTINCT unit)` they lie in at
  most g groups, so the count of units has noise for g groups.
- `report_format` is DEFAULT only: every number comes with its interval as columns.
- HAVING, ORDER BY, LIMIT and a SELECT over a private answer work within each release, on released
  rows, and cost nothing: [post-processing](post-processing.md).
- `WITH ANONYMIZATION`, `kappa` and the `ANON_` functions with `CLAMPED BETWEEN` are old names of
  the same; [googlesql](googlesql.md) lists statements of all kinds.
- `max_groups_contributed = NULL` is the number of public groups, and refused where there are none.
- `LOGICAL_OR(x)` is whether the count of rows with x is certainly above 0 (its interval is);
  `LOGICAL_AND(x)` is NOT LOGICAL_OR(NOT x).
- `k_threshold` is refused: a fixed k has no proof over many releases.
- NUMERIC and BIGNUMERIC are read as FLOAT64, to the nearest number: 0.1 + 0.2 is not 0.3.
- Of functions on a row: `UPPER` and `LOWER` change each letter by itself, so that `ß` stays one
  letter, and `CONTAINS_SUBSTR` compares letters as `LOWER` writes them, one by one; `CAST` reads no
  hexadecimal integers and no names of time zones; where the group of a `REGEXP_EXTRACT`
  has no part in the match, the value is an empty text instead of null.
"""


def render() -> str:
    """The whole page."""
    parts = [INTRODUCTION, _options(), _aggregates(), EXPRESSIONS, _functions(), _habits(),
             DIFFERENCES]  # fmt: skip
    return "\n".join(parts)


def _options() -> str:
    lines = [
        "## Options of the clause",
        "In Python these are arguments of `protect`, `group_by`, `bound` and `release`. `explain`"
        " and a warning name options that are given and decide nothing.\n",
        "| option | meaning | default | origin |",
        "|---|---|---|---|",
    ]
    lines += [f"| `{n}` | {o.meaning} | {o.default} | {o.origin} |" for n, o in OPTIONS.items()]
    lines += ["", "Known and refused:", ""]
    lines += [f"- `{name}`: {_in_line(reason)}" for name, reason in REFUSED_OPTIONS.items()]
    return "\n".join(lines) + "\n"


def _aggregates() -> str:
    lines = ["## Aggregates", "| function | form | named arguments |", "|---|---|---|"]
    for name, (_, allowed) in FORMS.items():
        arguments = ", ".join(f"`{argument}`" for argument in sorted(allowed))
        lines.append(f"| `{name}` | {AGGREGATE_NOTES[name]} | {arguments} |")
    reasons: dict[str, list[str]] = {}
    for name, reason in REFUSED.items():
        reasons.setdefault(reason, []).append(f"`{name}`")
    lines += ["", "Known and refused:", ""]
    lines += [f"- {', '.join(names)}: {_in_line(reason)}" for reason, names in reasons.items()]
    return "\n".join(lines) + "\n"


def _in_line(reason: str) -> str:
    """A reason and its way out in one line."""
    return reason.replace(".\n  to fix  ", "; instead: ")


def _functions() -> str:
    lines = ["| | functions |", "|---|---|"]
    for title, text in SIGNATURES.items():
        lines.append(f"| {title} | {' '.join(f'`{call}`' for call in text.split())} |")
    return "\n".join(lines) + "\n"


def _habits() -> str:
    lines = ["## Refused habits", "| habit | why it leaks | what to do |", "|---|---|---|"]
    lines += [f"| {h.name} | {h.reason} | {h.way_out} |" for h in HABITS.values()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(render())
