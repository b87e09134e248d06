"""Tofu's Table 2 from the zoo: weight, gradient and history of 21 models, beside the published figures."""
