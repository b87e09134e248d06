"""One bounded run on a machine with a GPU: what computes right there, how fast, and how near what was predicted."""
