CREATE STREAM flights WITH (source = 'files', path = 'flights/*.parquet', event_time = 'scheduled');
CREATE SINK months WITH (sink = 'delta', path = 'months');
INSERT INTO months
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (
         epsilon = 2, delta = 1e-6, privacy_unit_column = plane, privacy_unit_period = INTERVAL 1 MONTH,
         max_rows_contributed = 40, start = '2013-01-01', end = '{end}')
       window_start, destination, COUNT(*) AS n
FROM TUMBLE(TABLE flights, DESCRIPTOR(scheduled), size => INTERVAL 1 MONTH)
GROUP BY window_start, destination
EMIT EVERY INTERVAL 1 MONTH;
