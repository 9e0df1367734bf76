"""Nominal levels of the repeated looks of the rule, so that all looks together err at the level that is promised.

Looking after processes p0 ... P_max at an unadjusted 2.5 % would err in about 7 %. As in Pocock's design every look
gets the same nominal one-sided level; it is found by Monte Carlo under the rule's own model. A cell's process variance
is drawn from its prior s0² nu0 / chi²(nu0); process estimates are Gaussian around the bar; the look after P processes
computes T_P = mean / sqrt(v_P / P) with the moderated variance v_P = (nu0 s0² + (P-1) s²_P) / (nu0 + P - 1) and refers
it to t(nu0 + P - 1), which is exact for one look (Smyth 2004). The nominal level for a family level alpha is then the
alpha-quantile of the smallest one-sided p-value over the looks. `simulate_levels` recomputes the constants below;
a test compares them.
"""

from functools import lru_cache

import numpy as np

from harness.stats.distributions import t_upper
from harness.stats.units import FloatArray

NU0 = 4
"""Degrees of freedom of the prior on a cell's process variance: how many processes the prior is worth."""
FAMILY_LEVEL = 0.025
"""One-sided level of a decision over all its looks."""
FAMILY_LEVELS = (0.001, 0.0025, 0.005, 0.01, FAMILY_LEVEL, 0.05, 0.1, 0.25, 0.5)
FIRST_LOOKS = (1, 2, 3)
MAX_PROCESSES = 16
"""Longest sequence the table covers; the budgets end at 8, the rest is for resuming an inconclusive one."""


def simulate_levels(replicates: int, seed: int) -> dict[int, FloatArray]:
    """Nominal levels by Monte Carlo: first look -> array of shape (MAX_PROCESSES - first look + 1, FAMILY_LEVELS).

    Row r belongs to P_max = first look + r; row 0, a single look, is exact. The relative standard error at family
    level a is about sqrt((1 - a) / (a replicates)). Takes about 8 s per million replicates.
    """
    rng = np.random.default_rng(seed)
    p_values = np.empty((MAX_PROCESSES, replicates), dtype=np.float32)
    sd = np.sqrt(NU0 / rng.chisquare(NU0, replicates))
    total = np.zeros(replicates)
    total_squares = np.zeros(replicates)
    for n in range(1, MAX_PROCESSES + 1):
        x = sd * rng.standard_normal(replicates)
        total += x
        total_squares += x * x
        moderated = (NU0 + total_squares - total**2 / n) / (NU0 + n - 1)
        p_values[n - 1] = t_upper(total / np.sqrt(n * moderated), NU0 + n - 1)
    levels = {}
    for first_look in FIRST_LOOKS:
        smallest = np.minimum.accumulate(p_values[first_look - 1 :], axis=0)
        table = np.quantile(smallest, FAMILY_LEVELS, axis=1).T.astype(np.float64)
        table[0] = FAMILY_LEVELS
        levels[first_look] = table
    return levels


_NOMINAL: dict[int, tuple[tuple[float, ...], ...]] = {
    1: (
        FAMILY_LEVELS,
        (0.000547, 0.00138, 0.00278, 0.00567, 0.0146, 0.0302, 0.063, 0.172, 0.381),
        (0.00038, 0.000989, 0.00201, 0.00411, 0.0108, 0.0228, 0.0488, 0.139, 0.325),
        (0.000298, 0.00078, 0.00161, 0.00332, 0.00887, 0.0188, 0.041, 0.12, 0.291),
        (0.000251, 0.000655, 0.00137, 0.00283, 0.00761, 0.0164, 0.036, 0.108, 0.267),
        (0.000219, 0.000572, 0.0012, 0.0025, 0.00677, 0.0147, 0.0325, 0.0986, 0.25),
        (0.000196, 0.000512, 0.00108, 0.00226, 0.00614, 0.0134, 0.0298, 0.0918, 0.236),
        (0.000181, 0.000468, 0.000986, 0.00207, 0.00566, 0.0124, 0.0278, 0.0864, 0.225),
        (0.000168, 0.000433, 0.000913, 0.00193, 0.00528, 0.0116, 0.0262, 0.082, 0.215),
        (0.000157, 0.000406, 0.000855, 0.00181, 0.00497, 0.011, 0.0248, 0.0783, 0.208),
        (0.000147, 0.000383, 0.000803, 0.00171, 0.00471, 0.0104, 0.0237, 0.0752, 0.201),
        (0.000139, 0.000361, 0.00076, 0.00163, 0.00449, 0.00997, 0.0227, 0.0725, 0.195),
        (0.000131, 0.000344, 0.000726, 0.00155, 0.0043, 0.00958, 0.0219, 0.0701, 0.19),
        (0.000126, 0.000329, 0.000696, 0.00149, 0.00414, 0.00923, 0.0211, 0.068, 0.185),
        (0.00012, 0.000316, 0.00067, 0.00144, 0.00399, 0.00892, 0.0205, 0.0661, 0.181),
        (0.000114, 0.000305, 0.000644, 0.00139, 0.00386, 0.00864, 0.0199, 0.0644, 0.177),
    ),
    2: (
        FAMILY_LEVELS,
        (0.000562, 0.00147, 0.00297, 0.00609, 0.0157, 0.0326, 0.0682, 0.185, 0.405),
        (0.000408, 0.00106, 0.00218, 0.00451, 0.012, 0.0252, 0.0542, 0.154, 0.354),
        (0.000324, 0.000851, 0.00176, 0.00366, 0.00987, 0.0211, 0.046, 0.134, 0.32),
        (0.000271, 0.000717, 0.0015, 0.00314, 0.00852, 0.0184, 0.0406, 0.121, 0.296),
        (0.000238, 0.000629, 0.00132, 0.00276, 0.00756, 0.0165, 0.0366, 0.111, 0.278),
        (0.000214, 0.000561, 0.00118, 0.0025, 0.00686, 0.0151, 0.0337, 0.104, 0.263),
        (0.000194, 0.00051, 0.00109, 0.00229, 0.00633, 0.0139, 0.0314, 0.0975, 0.251),
        (0.00018, 0.000473, 0.00101, 0.00212, 0.00589, 0.0131, 0.0295, 0.0926, 0.241),
        (0.000167, 0.000443, 0.000936, 0.00199, 0.00554, 0.0123, 0.0279, 0.0883, 0.232),
        (0.000159, 0.000415, 0.000882, 0.00188, 0.00524, 0.0117, 0.0266, 0.0847, 0.224),
        (0.00015, 0.000393, 0.000834, 0.00179, 0.00499, 0.0112, 0.0255, 0.0816, 0.218),
        (0.000142, 0.000374, 0.000792, 0.00171, 0.00478, 0.0107, 0.0245, 0.0789, 0.212),
        (0.000135, 0.000358, 0.00076, 0.00164, 0.00459, 0.0103, 0.0237, 0.0764, 0.206),
        (0.000129, 0.000344, 0.000731, 0.00158, 0.00442, 0.00994, 0.0229, 0.0742, 0.202),
    ),
    3: (
        FAMILY_LEVELS,
        (0.000588, 0.00152, 0.00309, 0.00638, 0.0166, 0.0343, 0.0717, 0.193, 0.418),
        (0.00043, 0.00113, 0.00231, 0.00482, 0.0129, 0.0271, 0.058, 0.163, 0.372),
        (0.000346, 0.000908, 0.00189, 0.00396, 0.0107, 0.0229, 0.0498, 0.144, 0.339),
        (0.000291, 0.000769, 0.00162, 0.00339, 0.00925, 0.0201, 0.0441, 0.131, 0.316),
        (0.000256, 0.000676, 0.00142, 0.00299, 0.00824, 0.018, 0.04, 0.121, 0.297),
        (0.000229, 0.000603, 0.00128, 0.00271, 0.00749, 0.0165, 0.0369, 0.113, 0.282),
        (0.000208, 0.000551, 0.00117, 0.00248, 0.00691, 0.0153, 0.0343, 0.106, 0.269),
        (0.000192, 0.00051, 0.00108, 0.0023, 0.00643, 0.0143, 0.0323, 0.101, 0.259),
        (0.000181, 0.000474, 0.00101, 0.00216, 0.00604, 0.0135, 0.0306, 0.0963, 0.25),
        (0.000169, 0.000446, 0.000948, 0.00204, 0.00572, 0.0128, 0.0292, 0.0923, 0.242),
        (0.000161, 0.000423, 0.000899, 0.00194, 0.00545, 0.0122, 0.0279, 0.0889, 0.235),
        (0.000152, 0.000402, 0.000857, 0.00185, 0.0052, 0.0117, 0.0268, 0.0859, 0.228),
        (0.000144, 0.000386, 0.000819, 0.00177, 0.005, 0.0112, 0.0259, 0.0832, 0.223),
    ),
}
"""`simulate_levels(replicates=5_000_000, seed=1)`, three digits."""


@lru_cache
def nominal_levels(first_look: int) -> FloatArray:
    """One-sided nominal level of every look, indexed by P_max, shape (MAX_PROCESSES + 1,).

    Where the sequence ends before `first_look` no look can decide; the level there is that of a single look, and only
    sets the width of the interval that is printed.
    """
    column = FAMILY_LEVELS.index(FAMILY_LEVEL)
    levels = np.full(MAX_PROCESSES + 1, FAMILY_LEVEL)
    levels[first_look:] = [row[column] for row in _NOMINAL[first_look]]
    return levels


def family_p_value(nominal_p: float, first_look: int, p_max: int) -> float:
    """p-value of a whole sequence from the one-sided p-value of the look it stopped at (a repeated p-value).

    The family level whose nominal level is `nominal_p` (Jennison and Turnbull 2000, ch. 9), log-linear between the
    table's levels; below them the Bonferroni bound over the looks, which is never too small. It falls to FAMILY_LEVEL
    exactly when the look decides.
    """
    if p_max < first_look:
        return 1.0
    row = _NOMINAL[first_look][p_max - first_look]
    if nominal_p < row[0]:
        return min(FAMILY_LEVELS[0], nominal_p * (p_max - first_look + 1))
    return float(np.exp(np.interp(np.log(nominal_p), np.log([*row, 1.0]), np.log([*FAMILY_LEVELS, 1.0]))))
