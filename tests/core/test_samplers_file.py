"""The quantile tables that are shipped are the ones that the module builds."""

import numpy as np

from streamveil.core.noise.samplers import quantiles


def test_the_kept_tables_are_what_the_module_builds():
    for kept, taylor in (
        (quantiles.gaussian_table(), quantiles.gaussian_taylor),
        (quantiles.laplace_table(), quantiles.laplace_taylor),
    ):
        np.testing.assert_array_equal(kept, quantiles.build(taylor))
        assert not kept.flags.writeable
