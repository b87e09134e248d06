"""`python -m results.soak`."""

from results.soak.run import main

raise SystemExit(main())
