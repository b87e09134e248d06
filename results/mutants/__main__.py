"""`python -m results.mutants --count N --seed S` reads N mutants, and says what is wrong."""

import sys

from results.mutants.run import main

sys.exit(main())
