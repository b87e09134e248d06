"""Plans in the words of engines that split tensors over meshes: Python files for DTensor and for JAX."""
