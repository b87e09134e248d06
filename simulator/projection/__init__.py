"""A step of named parallelism on any number of devices, projected from one replica's plan.

Workers that differ in nothing but the samples that they see do the same at the same time. So one of each stage is
looked at, whatever the number of devices: what it computes and exchanges follows from a plan of the tensor and context
parallel workers of one replica, exactly; stages, micro-batches and data parallelism are put around that.
"""
