"""TensorFlow's published throughputs on one GPU of 2017, predicted from tables of single kernels."""
