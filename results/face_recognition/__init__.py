"""A face recogniser with very many classes, by batch and classes (DistPar, Sec A.4)."""
