"""Files of tests that take most CPU time with empty caches, the longest first: conftest.py begins with them."""

LONGEST = (
    "tests/end2end/test_matrix.py",
    "tests/kernels/test_proof.py",
    "tests/conformance/test_builtin.py",
    "tests/kernels/test_every_type.py",
    "tests/meta/test_tools.py",
    "tests/fuzz/test_fuzz.py",
    "tests/fuzz/test_found.py",
    "tests/kernels/test_every_operator.py",
    "tests/end2end/test_element_types.py",
    "tests/end2end/test_layers.py",
    "tests/fuzz/test_mutate.py",
    "tests/conformance/test_ipu.py",
    "tests/end2end/test_onnx_backend.py",
)
