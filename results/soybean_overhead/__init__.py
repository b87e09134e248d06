"""The overhead of communication in training MLPs and CNNs (SoyBean, Figures 8 and 9)."""
