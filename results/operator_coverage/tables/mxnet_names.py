"""What else is known of the names that Apache MXNet 0.11.0 registers: aliases, and one guess at the paper's list."""

from __future__ import annotations

ALIASES: dict[str, str] = dict(
    pair.split("=")
    for pair in (  # noqa: SIM905
        "ElementWiseSum=add_n _Div=_div _DivScalar=_div_scalar _Equal=_equal _EqualScalar=_equal_scalar "
        "_Greater=_greater _GreaterEqualScalar=_greater_equal_scalar _GreaterScalar=_greater_scalar "
        "_Greater_Equal=_greater_equal _Hypot=_hypot _HypotScalar=_hypot_scalar _Lesser=_lesser "
        "_LesserEqualScalar=_lesser_equal_scalar _LesserScalar=_lesser_scalar _Lesser_Equal=_lesser_equal "
        "_Maximum=_maximum _MaximumScalar=_maximum_scalar _Minimum=_minimum _MinimumScalar=_minimum_scalar "
        "_Minus=_sub "
        "_MinusScalar=_minus_scalar _Mod=_mod _ModScalar=_mod_scalar _Mul=_mul _MulScalar=_mul_scalar "
        "_NotEqualScalar=_not_equal_scalar _Not_Equal=_not_equal _Plus=elemwise_add _PlusScalar=_plus_scalar "
        "_Power=_power _PowerScalar=_power_scalar _RDivScalar=_rdiv_scalar _RMinusScalar=_rminus_scalar "
        "_RModScalar=_rmod_scalar _RPowerScalar=_rpower_scalar _add=elemwise_add _contrib_ctc_loss=_contrib_CTCLoss "
        "_crop_assign=_slice_assign _minus=_sub _plus=elemwise_add _sample_exponential=random_exponential "
        "_sample_gamma=random_gamma _sample_gennegbinomial=random_generalized_negative_binomial "
        "_sample_negbinomial=random_negative_binomial _sample_normal=random_normal _sample_poisson=random_poisson "
        "_sample_uniform=random_uniform broadcast_axes=broadcast_axis broadcast_minus=broadcast_sub "
        "broadcast_plus=broadcast_add cast=Cast concat=Concat crop=slice flatten=Flatten flip=reverse identity=_copy "
        "max_axis=max min_axis=min normal=random_normal pad=Pad reshape=Reshape split=SliceChannel "
        "stop_gradient=BlockGrad sum_axis=sum swapaxes=SwapAxis uniform=random_uniform "
    ).split()
)
"""Second names of operators."""

TENSOR_FOLDER = frozenset(
    (  # noqa: SIM905
        "broadcast_add broadcast_axis broadcast_div broadcast_equal broadcast_greater broadcast_greater_equal "
        "broadcast_hypot broadcast_lesser broadcast_lesser_equal broadcast_maximum broadcast_minimum broadcast_mod "
        "broadcast_mul broadcast_not_equal broadcast_power broadcast_sub broadcast_to _arange _ones _zeros BlockGrad "
        "Cast _copy _div _div_scalar _equal _equal_scalar _greater _greater_equal _greater_equal_scalar "
        "_greater_scalar _hypot _hypot_scalar _lesser _lesser_equal _lesser_equal_scalar _lesser_scalar _maximum "
        "_maximum_scalar _minimum _minimum_scalar _minus_scalar _mod _mod_scalar _mul _mul_scalar _not_equal "
        "_not_equal_scalar _plus_scalar _power _power_scalar _rdiv_scalar _rminus_scalar _rmod_scalar _rpower_scalar "
        "_sub abs add_n arccos arccosh arcsin arcsinh arctan arctanh ceil clip cos cosh degrees elemwise_add exp "
        "expm1 fix floor gamma gammaln log log10 log1p log2 make_loss negative ones_like radians reciprocal relu rint "
        "round rsqrt sigmoid sign sin sinh smooth_l1 sqrt square tan tanh trunc where zeros_like Embedding batch_take "
        "one_hot pick take batch_dot dot linalg_gemm linalg_gemm2 linalg_sumlogdiag linalg_trmm linalg_potrf "
        "linalg_potri linalg_trsm argsort sort topk max mean min nanprod nansum norm prod sum argmax argmax_channel "
        "argmin Flatten Reshape expand_dims repeat reverse slice slice_axis stack tile transpose "
    ).split()
)
"""The 139 operators that `src/operator/tensor/` registers, four internal ones and gradients left out.

The paper counts 139 operators without a list. This is the one set of that size that is easily found, and 77 of it are
in the files of element-wise operators, which is the paper's count of those; it is a guess all the same.
"""
