"""Storage contention: what crowding of loaders on storage targets costs, as in SwiftLoad's Fig. 7.

Arrives: a study file (targets, files, a layout, a slowdown curve, ratios of loaders to targets).
Leaves: for each ratio the contention imbalance, the straggler ratio and the times of four ways of scheduling.
Must not know: worlds, policies, networks; a study has none.

docs/reference/contention.md describes the file, the model and the results. The events are worked through by the
compiled module.
"""

from waystage.simulate.contention.run import ContentionResult, run_contention
from waystage.simulate.contention.study import ContentionStudy, load

__all__ = ["ContentionResult", "ContentionStudy", "load", "run_contention"]
