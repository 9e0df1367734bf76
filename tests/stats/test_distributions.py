"""The special functions give what `scipy.stats` gives, to the last bit: verdicts do not depend on which is asked."""

import numpy as np
import pytest
from scipy import stats

from harness.stats.distributions import chi2_quantile, chi2_upper, t_lower, t_quantile, t_quantiles, t_upper

X = np.linspace(-9, 9, 1001)
P = np.linspace(1e-7, 0.5, 501)


@pytest.mark.parametrize("df", [1.0, 2.7, 4.0, 11.0, 37.2, 400.0])
def test_t_and_chi2_are_those_of_scipy_stats(df: float) -> None:
    assert (t_upper(X, df) == stats.t.sf(X, df)).all()
    assert (t_lower(X, df) == stats.t.cdf(X, df)).all()
    assert (t_quantiles(P, df) == stats.t.isf(P, df)).all()
    assert (chi2_upper(X + 9, df) == stats.chi2.sf(X + 9, df)).all()
    assert [chi2_quantile(p, df) for p in P[::50]] == [float(stats.chi2.ppf(p, df)) for p in P[::50]]
    assert t_quantile(0.025, df) == float(stats.t.isf(0.025, df))
