"""Running totals of a quarter, told every week, by PipelineDP: 13 aggregations."""

import pipeline_dp
import pyarrow.parquet as pq
from asking import run_weekly


def ask(path, epsilon, delta, groups, rows, weeks):
    """The lines between the marks are what a user writes."""
    # begin
    data = pq.read_table(path).to_pylist()
    accountant = pipeline_dp.PLDBudgetAccountant(total_epsilon=epsilon, total_delta=delta)
    engine = pipeline_dp.DPEngine(accountant, pipeline_dp.LocalBackend())
    params = pipeline_dp.AggregateParams(
        metrics=[pipeline_dp.Metrics.COUNT],
        noise_kind=pipeline_dp.NoiseKind.GAUSSIAN,
        max_partitions_contributed=groups,
        max_contributions_per_partition=rows,
    )
    extractors = pipeline_dp.DataExtractors(
        privacy_id_extractor=lambda row: row["unit"],
        partition_extractor=lambda row: row["key"],
        value_extractor=lambda row: 0,
    )
    results = []
    for week in weeks[1:]:
        rows_so_far = [row for row in data if row["day"] < week]
        results.append(engine.aggregate(rows_so_far, params, extractors))
    accountant.compute_budgets()
    tables = [{key: answer.count for key, answer in result} for result in results]
    # end
    return tables  # noqa: RET504  (lines are counted to the mark)


run_weekly(ask)
