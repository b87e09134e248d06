"""DistPar's conversions (A.3) and matmul's signatures (Table 1), counted and derived."""
