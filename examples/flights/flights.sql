CREATE STREAM flights WITH (source = 'files', path = 'flights.parquet', event_time = 'scheduled');
CREATE SINK weekly WITH (sink = 'files', path = 'releases', format = 'parquet');

INSERT INTO weekly
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (
         epsilon = 1, delta = 1e-6,
         privacy_unit_column = plane, privacy_unit_period = INTERVAL 1 DAY,
         max_rows_contributed = 2,
         start = '2012-12-31', end = '2013-12-30')
       window_start, destination, COUNT(*) AS departures
FROM TUMBLE(TABLE flights, DESCRIPTOR(scheduled), size => INTERVAL 1 WEEK)
GROUP BY window_start, destination
EMIT EVERY INTERVAL 1 WEEK;
