CREATE TABLE seasons (league STRING CHECK (league IN ('AL', 'NL')), homers INT64 CHECK (homers BETWEEN 0 AND 99))
WITH (source = 'files', path = 'seasons.csv', changelog = 'insert');

SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-6, steps = 42, expected_size = 20000)
       league, COUNT(*) AS seasons, COUNTIF(homers >= 20) AS strong
FROM seasons
GROUP BY GROUPING SETS ((league), ())
EMIT EVERY 500 ROWS;
