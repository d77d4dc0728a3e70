"""How many rows in each group, by PipelineDP. Reads FILE EPSILON DELTA GROUPS ROWS RUNS."""

import pipeline_dp
import pyarrow.parquet as pq
from asking import run


def ask(path, epsilon, delta, groups, rows):
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
    result = engine.aggregate(data, params, extractors)
    accountant.compute_budgets()
    found = {key: answer.count for key, answer in result}
    # end
    return found  # noqa: RET504  (lines are counted to the mark)


run(ask)
