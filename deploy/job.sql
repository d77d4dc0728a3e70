-- Views of each page, every hour: from a topic of Kafka into a table of PostgreSQL.
CREATE STREAM clicks (user_id INT64, url STRING)
  WITH (source = 'kafka', servers = 'kafka:9092', topic = 'clicks');
CREATE SINK answers
  WITH (sink = 'postgres', url = 'postgresql://streamveil@postgres:5432/answers', table = 'views', mode = 'upsert');

INSERT INTO answers
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (
         epsilon = 2, delta = 1e-7, privacy_unit_column = user_id, privacy_unit_period = INTERVAL 1 DAY,
         max_rows_contributed = 8, clock = 'wall', start = '2026-12-01', end = '2027-01-01')
       window_start, url, COUNT(*) AS n
FROM TUMBLE(TABLE clicks, DESCRIPTOR(kafka_time), size => INTERVAL 1 DAY)
GROUP BY window_start, url
EMIT EVERY INTERVAL 1 HOUR;
