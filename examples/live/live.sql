CREATE STREAM flights (plane STRING, destination STRING)
  WITH (source = 'kafka', servers = '{servers}', topic = 'flights');
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (
         epsilon = 4, delta = 1e-6, privacy_unit_column = plane, max_rows_contributed = 40,
         clock = 'wall', start = '{start}', end = '{end}', name = 'flights')
       destination, COUNT(*) AS n
FROM flights GROUP BY destination
EMIT EVERY INTERVAL 1 SECOND;
