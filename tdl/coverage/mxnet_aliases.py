"""Second names under which Apache MXNet 0.11.0 registers operators, as `alias=operator`."""

from __future__ import annotations

ALIASES: dict[str, str] = dict(
    pair.split("=")
    for pair in (  # noqa: SIM905
        "ElementWiseSum=add_n _Div=_div _DivScalar=_div_scalar _Equal=_equal _EqualScalar=_equal_scalar "
        "_Greater=_greater _GreaterEqualScalar=_greater_equal_scalar _GreaterScalar=_greater_scalar "
        "_Greater_Equal=_greater_equal _Hypot=_hypot _HypotScalar=_hypot_scalar _Lesser=_lesser "
        "_LesserEqualScalar=_lesser_equal_scalar _LesserScalar=_lesser_scalar _Lesser_Equal=_lesser_equal "
        "_Maximum=_maximum _MaximumScalar=_maximum_scalar _Minimum=_minimum _MinimumScalar=_minimum_scalar _Minus=_sub "
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
