"""Export plans to other frameworks: Python files for DTensor, JAX and FSDP2, configurations of other engines."""
