"""Make boosted trees of xgboost and lightgbm by onnxmltools: binary and multi-class classifiers, and regressors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import lightgbm
import numpy as np
import xgboost
from onnxmltools import convert_lightgbm, convert_xgboost
from onnxmltools.convert.common.data_types import FloatTensorType

from benchmarks.families.__main__ import Made

_RANDOM = np.random.default_rng(1)
ROWS, COLUMNS = 300, 12
X = _RANDOM.normal(size=(ROWS, COLUMNS)).astype(np.float32)
X[_RANDOM.random(X.shape) < 0.05] = np.nan  # missing values, which nodes send left or right
_SCORE = np.nan_to_num(X) @ _RANDOM.normal(size=(COLUMNS, 3))
Y: dict[str, Any] = {"two": (_SCORE[:, 0] > 0).astype(np.int64), "three": _SCORE.argmax(1), "number": _SCORE[:, 0]}
Y["count"] = np.exp(_SCORE[:, 0] / 4).round()

XGBOOST = {
    **{f"xgb_{kind}": (xgboost.XGBClassifier, {"n_estimators": 20, "max_depth": 4}, kind) for kind in ("two", "three")},
    "xgb_deep": (xgboost.XGBClassifier, {"n_estimators": 100, "max_depth": 8}, "two"),
    "xgb_forest": (xgboost.XGBRFClassifier, {"n_estimators": 20, "max_depth": 5}, "two"),
    "xgb_number": (xgboost.XGBRegressor, {"n_estimators": 20, "max_depth": 4}, "number"),
    "xgb_poisson": (xgboost.XGBRegressor, {"n_estimators": 20, "objective": "count:poisson"}, "count"),
    "xgb_linear": (xgboost.XGBRegressor, {"booster": "gblinear", "n_estimators": 20}, "number"),
    "xgb_dart": (xgboost.XGBRegressor, {"booster": "dart", "n_estimators": 10}, "number"),
}
LIGHTGBM = {
    **{f"lgbm_{kind}": (lightgbm.LGBMClassifier, {"n_estimators": 20}, kind) for kind in ("two", "three")},
    "lgbm_deep": (lightgbm.LGBMClassifier, {"n_estimators": 100, "num_leaves": 63}, "two"),
    "lgbm_forest": (
        lightgbm.LGBMClassifier,
        {"boosting_type": "rf", "n_estimators": 20, "bagging_freq": 1, "bagging_fraction": 0.8},
        "two",
    ),
    "lgbm_number": (lightgbm.LGBMRegressor, {"n_estimators": 20}, "number"),
    "lgbm_poisson": (lightgbm.LGBMRegressor, {"n_estimators": 20, "objective": "poisson"}, "count"),
}


def _made(kind: Any, options: dict[str, Any], target: str, convert: Callable[..., Any], **more: Any) -> Made:
    quiet = {"verbose": -1} if kind.__module__.startswith("lightgbm") else {}
    fitted = kind(random_state=0, **options, **quiet).fit(X, Y[target])
    found = convert(fitted, initial_types=[("x", FloatTensorType([None, COLUMNS]))], target_opset=15, **more)
    return found, {"x": X[:75]}


def models() -> Iterator[tuple[str, Callable[[], Made]]]:
    """Yield names, and functions that make the models."""
    for table, convert in ((XGBOOST, convert_xgboost), (LIGHTGBM, convert_lightgbm)):
        for name, (kind, options, target) in table.items():
            yield name, lambda k=kind, o=options, t=target, c=convert: _made(k, o, t, c)
    for name in ("lgbm_two", "lgbm_three"):
        kind, options, target = LIGHTGBM[name]
        yield (
            f"{name}_no_maps",
            lambda k=kind, o=options, t=target: _made(k, o, t, convert_lightgbm, zipmap=False),
        )
