"""Which operators of MXNet 0.11, ONNX and core ATen are described, and what is known of each."""
