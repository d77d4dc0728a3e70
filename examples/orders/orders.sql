CREATE STREAM purchases WITH (source = 'files', path = 'purchases.parquet', event_time = 'bought');
WITH months AS (
  SELECT household, TIMESTAMP_TRUNC(bought, MONTH) AS month
  FROM purchases GROUP BY household, TIMESTAMP_TRUNC(bought, MONTH)
), aged AS (
  SELECT household, month,
         MIN(month) OVER (PARTITION BY household) AS first,
         EXTRACT(MONTH FROM month) - EXTRACT(MONTH FROM MIN(month) OVER (PARTITION BY household)) AS age
  FROM months
)
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (
         epsilon = 2, delta = 1e-6, privacy_unit_column = household,
         max_rows_contributed = 12, look_share = 0)
       COUNTIF(age = 0) AS began,
       COUNTIF(age = 1) / COUNTIF(age = 0) AS after_1, COUNTIF(age = 2) / COUNTIF(age = 0) AS after_2,
       COUNTIF(age = 3) / COUNTIF(age = 0) AS after_3, COUNTIF(age = 4) / COUNTIF(age = 0) AS after_4,
       COUNTIF(age = 5) / COUNTIF(age = 0) AS after_5, COUNTIF(age = 6) / COUNTIF(age = 0) AS after_6
FROM aged WHERE first < TIMESTAMP '2017-04-01';
