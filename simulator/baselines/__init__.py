"""What else can be done with a model and a machine: the systems that a plan is compared with, one file each."""
