"""An MLP whole and cut into tiles, all on one device (SoyBean, Table 1)."""
