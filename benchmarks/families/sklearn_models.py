"""Make models of scikit-learn by skl2onnx: classifiers, regressors, transformers, and pipelines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from skl2onnx import to_onnx
from sklearn import (
    calibration,
    cluster,
    compose,
    cross_decomposition,
    decomposition,
    discriminant_analysis,
    ensemble,
    feature_selection,
    gaussian_process,
    impute,
    linear_model,
    mixture,
    multiclass,
    naive_bayes,
    neighbors,
    neural_network,
    pipeline,
    preprocessing,
    random_projection,
    svm,
    tree,
)

from benchmarks.families.__main__ import Made

_RANDOM = np.random.default_rng(0)
ROWS, COLUMNS = 200, 11
X = _RANDOM.normal(size=(ROWS, COLUMNS)).astype(np.float32)
_SCORE = X @ _RANDOM.normal(size=(COLUMNS, 3)) + _RANDOM.normal(size=(ROWS, 3)) / 4
Y = {"two": _SCORE[:, 0] > 0, "three": _SCORE.argmax(1), "number": _SCORE[:, 0] + X[:, 0] ** 2, "numbers": _SCORE}
Y["two"] = Y["two"].astype(np.int64)
NAMES = np.array(["ham", "spam", "eggs"])
COLOURS = np.array([["red", "green", "blue"][k] for k in _RANDOM.integers(0, 3, ROWS)], object)[:, None]
TEST = np.concatenate([X[:37], _RANDOM.normal(size=(38, COLUMNS)).astype(np.float32)])

CLASSIFIERS: dict[str, Any] = {
    "logistic_regression": linear_model.LogisticRegression(),
    "sgd_log": linear_model.SGDClassifier(loss="log_loss", random_state=0),
    "sgd_hinge": linear_model.SGDClassifier(random_state=0),
    "perceptron": linear_model.Perceptron(random_state=0),
    "ridge_classifier": linear_model.RidgeClassifier(),
    "linear_svc": svm.LinearSVC(random_state=0),
    "svc_rbf": svm.SVC(),
    "svc_poly": svm.SVC(kernel="poly"),
    "svc_sigmoid": svm.SVC(kernel="sigmoid"),
    "svc_linear": svm.SVC(kernel="linear"),
    "svc_probability": svm.SVC(probability=True, random_state=0),
    "nu_svc": svm.NuSVC(nu=0.2),
    "k_neighbors": neighbors.KNeighborsClassifier(),
    "decision_tree": tree.DecisionTreeClassifier(random_state=0),
    "extra_tree": tree.ExtraTreeClassifier(random_state=0),
    "random_forest": ensemble.RandomForestClassifier(30, random_state=0),
    "extra_trees": ensemble.ExtraTreesClassifier(30, random_state=0),
    "gradient_boosting": ensemble.GradientBoostingClassifier(n_estimators=20, random_state=0),
    "hist_gradient_boosting": ensemble.HistGradientBoostingClassifier(max_iter=20, random_state=0),
    "ada_boost": ensemble.AdaBoostClassifier(n_estimators=20, random_state=0),
    "bagging": ensemble.BaggingClassifier(random_state=0),
    "voting": ensemble.VotingClassifier(
        [("a", linear_model.LogisticRegression()), ("b", tree.DecisionTreeClassifier(random_state=0))],
        voting="soft",
        flatten_transform=False,
    ),
    "stacking": ensemble.StackingClassifier(
        [("a", linear_model.LogisticRegression()), ("b", tree.DecisionTreeClassifier(random_state=0))]
    ),
    "gaussian_nb": naive_bayes.GaussianNB(),
    "bernoulli_nb": naive_bayes.BernoulliNB(),
    "lda": discriminant_analysis.LinearDiscriminantAnalysis(),
    "qda": discriminant_analysis.QuadraticDiscriminantAnalysis(reg_param=0.1),
    "mlp_classifier": neural_network.MLPClassifier((32, 16), max_iter=30, random_state=0),
    "one_vs_rest": multiclass.OneVsRestClassifier(linear_model.LogisticRegression()),
    "one_vs_one": multiclass.OneVsOneClassifier(linear_model.LogisticRegression()),
    "calibrated": calibration.CalibratedClassifierCV(svm.LinearSVC(random_state=0), cv=2),
    "gaussian_process_classifier": gaussian_process.GaussianProcessClassifier(random_state=0),
}
REGRESSORS: dict[str, Any] = {
    "linear_regression": linear_model.LinearRegression(),
    "ridge": linear_model.Ridge(),
    "lasso": linear_model.Lasso(0.01),
    "elastic_net": linear_model.ElasticNet(0.01),
    "bayesian_ridge": linear_model.BayesianRidge(),
    "ard": linear_model.ARDRegression(),
    "lars": linear_model.Lars(),
    "huber": linear_model.HuberRegressor(),
    "theil_sen": linear_model.TheilSenRegressor(random_state=0, max_subpopulation=100),
    "ransac": linear_model.RANSACRegressor(random_state=0),
    "sgd_regressor": linear_model.SGDRegressor(random_state=0),
    "tweedie": linear_model.TweedieRegressor(),
    "linear_svr": svm.LinearSVR(random_state=0),
    "svr": svm.SVR(),
    "nu_svr": svm.NuSVR(kernel="poly"),
    "k_neighbors_regressor": neighbors.KNeighborsRegressor(),
    "decision_tree_regressor": tree.DecisionTreeRegressor(random_state=0),
    "random_forest_regressor": ensemble.RandomForestRegressor(30, random_state=0),
    "extra_trees_regressor": ensemble.ExtraTreesRegressor(30, random_state=0),
    "gradient_boosting_regressor": ensemble.GradientBoostingRegressor(n_estimators=20, random_state=0),
    "hist_gradient_boosting_regressor": ensemble.HistGradientBoostingRegressor(max_iter=20, random_state=0),
    "ada_boost_regressor": ensemble.AdaBoostRegressor(n_estimators=10, random_state=0),
    "bagging_regressor": ensemble.BaggingRegressor(random_state=0),
    "voting_regressor": ensemble.VotingRegressor(
        [("a", linear_model.Ridge()), ("b", tree.DecisionTreeRegressor(random_state=0))]
    ),
    "mlp_regressor": neural_network.MLPRegressor(hidden_layer_sizes=(32, 16), max_iter=30, random_state=0),
    "gaussian_process_regressor": gaussian_process.GaussianProcessRegressor(
        gaussian_process.kernels.RBF(2.0), alpha=0.1
    ),
    "pls": cross_decomposition.PLSRegression(3),
}
TRANSFORMERS: dict[str, Any] = {
    "standard_scaler": preprocessing.StandardScaler(),
    "min_max_scaler": preprocessing.MinMaxScaler(),
    "max_abs_scaler": preprocessing.MaxAbsScaler(),
    "robust_scaler": preprocessing.RobustScaler(),
    "normalizer": preprocessing.Normalizer(),
    "binarizer": preprocessing.Binarizer(),
    "polynomial_features": preprocessing.PolynomialFeatures(),
    "power_transformer": preprocessing.PowerTransformer(),
    "quantile_transformer": preprocessing.QuantileTransformer(n_quantiles=50),
    "k_bins": preprocessing.KBinsDiscretizer(encode="ordinal", quantile_method="averaged_inverted_cdf"),
    "pca": decomposition.PCA(4),
    "incremental_pca": decomposition.IncrementalPCA(4),
    "truncated_svd": decomposition.TruncatedSVD(4, random_state=0),
    "kernel_pca": decomposition.KernelPCA(4, kernel="rbf"),
    "variance_threshold": feature_selection.VarianceThreshold(0.9),
    "random_projection": random_projection.GaussianRandomProjection(4, random_state=0),
    "k_means": cluster.KMeans(4, random_state=0, n_init=1),
    "mini_batch_k_means": cluster.MiniBatchKMeans(4, random_state=0, n_init=1),
    "gaussian_mixture": mixture.GaussianMixture(3, random_state=0),
    "isolation_forest": ensemble.IsolationForest(n_estimators=20, random_state=0),
    "one_class_svm": svm.OneClassSVM(),
    "local_outlier_factor": neighbors.LocalOutlierFactor(novelty=True),
    "simple_imputer": impute.SimpleImputer(),
    "knn_imputer": impute.KNNImputer(),
    "select_k_best": feature_selection.SelectKBest(k=4),
}


def _fitted(model: Any, x: Any, y: Any, **options: Any) -> Made:
    found = to_onnx(model.fit(x, y), x[:1], target_opset={"": 18, "ai.onnx.ml": 3}, **options)
    return found, {found.graph.input[0].name: TEST}


def _mixed(model: Any) -> Made:
    """Return a pipeline of columns of numbers and of strings."""
    steps = compose.ColumnTransformer(
        [("a", preprocessing.StandardScaler(), [0, 1, 2]), ("b", preprocessing.OneHotEncoder(), [3])]
    )
    table = np.concatenate([X[:, :3].astype(object), COLOURS], 1)
    whole = pipeline.make_pipeline(steps, model).fit(table, NAMES[Y["three"]])
    from skl2onnx.common.data_types import FloatTensorType, StringTensorType

    names = [f"x{n}" for n in range(4)]
    del table
    types = [(name, FloatTensorType([None, 1])) for name in names[:3]] + [(names[3], StringTensorType([None, 1]))]
    found = to_onnx(whole, initial_types=types, target_opset={"": 18, "ai.onnx.ml": 3})
    columns = {name: X[:75, n : n + 1] for n, name in enumerate(names[:3])}
    return found, {**columns, names[3]: COLOURS[:75]}


def _texts(model: Any, name: str) -> Made:
    found = to_onnx(model.fit(COLOURS), COLOURS[:1], target_opset={"": 18, "ai.onnx.ml": 3})
    del name
    return found, {found.graph.input[0].name: COLOURS[:75]}


def models() -> Iterator[tuple[str, Callable[[], Made]]]:
    """Yield names, and functions that make the models."""
    for name, model in CLASSIFIERS.items():
        for kind in ("two", "three"):
            yield f"{name}_{kind}", lambda m=model, k=kind: _fitted(m, X, Y[k])
    for name in ("logistic_regression", "random_forest", "svc_rbf", "gaussian_nb", "k_neighbors"):
        yield f"{name}_strings", lambda m=CLASSIFIERS[name]: _fitted(m, X, NAMES[Y["three"]])
        yield f"{name}_no_maps", lambda m=CLASSIFIERS[name]: _fitted(m, X, Y["two"], options={"zipmap": False})
    for name, model in REGRESSORS.items():
        yield name, lambda m=model: _fitted(m, X, Y["number"])
    for name in ("ridge", "random_forest_regressor", "mlp_regressor", "k_neighbors_regressor"):
        yield f"{name}_several", lambda m=REGRESSORS[name]: _fitted(m, X, Y["numbers"])
    for name, model in TRANSFORMERS.items():
        yield name, lambda m=model: _fitted(m, X, Y["three"])
    yield (
        "pipeline_scaled",
        lambda: _fitted(
            pipeline.make_pipeline(
                preprocessing.StandardScaler(), decomposition.PCA(5), linear_model.LogisticRegression()
            ),
            *(X, Y["three"]),
        ),
    )
    yield "pipeline_mixed_linear", lambda: _mixed(linear_model.LogisticRegression())
    yield "pipeline_mixed_forest", lambda: _mixed(ensemble.RandomForestClassifier(10, random_state=0))
    yield "one_hot_strings", lambda: _texts(preprocessing.OneHotEncoder(sparse_output=False), "x")
    yield "ordinal_strings", lambda: _texts(preprocessing.OrdinalEncoder(), "x")
