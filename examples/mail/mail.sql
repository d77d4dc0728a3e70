CREATE STREAM messages WITH (source = 'files', path = 'messages.parquet', event_time = 'sent');

SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (
         epsilon = 4, delta = 1e-6,
         privacy_unit_column = sender, privacy_unit_period = INTERVAL 1 DAY, max_rows_contributed = 3,
         start = '2004-04-12', end = '2004-11-01')
       window_start, HEAVY_HITTERS(receiver, k => 10, text_length => 4)
FROM TUMBLE(TABLE messages, DESCRIPTOR(sent), size => INTERVAL 1 YEAR)
GROUP BY window_start
EMIT EVERY INTERVAL 29 DAY;
