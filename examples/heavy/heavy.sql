CREATE STREAM purchases WITH (source = 'files', path = 'purchases.parquet', event_time = 'bought');

SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (
         epsilon = 4, delta = 1e-6,
         privacy_unit_column = household, privacy_unit_period = INTERVAL 1 WEEK, max_rows_contributed = 40,
         start = '2017-01-01', end = '2018-01-01')
       window_start, HEAVY_HITTERS(code, k => 10, text_length => 8)
FROM TUMBLE(TABLE purchases, DESCRIPTOR(bought), size => INTERVAL 1 YEAR)
GROUP BY window_start
EMIT EVERY INTERVAL 1 MONTH;
