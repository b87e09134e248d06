"""Systems that a plan is compared with, one file each; the engine imports none of them."""
