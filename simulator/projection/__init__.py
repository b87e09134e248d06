"""Predict a step of named parallelism on any number of devices from the plan of one replica.

Workers that differ only in their samples do the same at the same time. So one worker of each pipeline stage stands for
all: the plan of one replica's tensor and context parallel workers says exactly what it computes and exchanges. Stages,
micro-batches and data parallelism are added to that.
"""
