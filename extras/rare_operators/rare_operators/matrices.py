"""Operators of PyTorch that are called whole, with their gradients: most work on whole matrices, rows or sequences."""

CALLED = (
    "linalg_cholesky", "cholesky", "linalg_cholesky_ex", "cholesky_solve", "cholesky_inverse", "linalg_inv_ex",
    "linalg_inv", "inverse", "linalg_solve", "linalg_solve_ex", "_linalg_solve_ex", "linalg_solve_triangular",
    "triangular_solve", "linalg_lstsq", "linalg_pinv", "pinverse", "linalg_det", "_linalg_det", "det", "logdet",
    "linalg_slogdet", "_linalg_slogdet", "slogdet", "linalg_eigh", "_linalg_eigh", "linalg_eigvalsh", "linalg_svd",
    "_linalg_svd", "linalg_svdvals", "svd", "linalg_qr", "qr", "linalg_matrix_exp", "matrix_exp",
    "linalg_householder_product", "median", "nanmedian", "kthvalue", "mode", "pdist",
    "lgamma", "digamma", "polygamma", "mvlgamma", "erfc", "erfinv",
)  # fmt: skip
"""Their names."""
