"""Launch files of other trainers: the model, the number of devices, and the parallelism."""

from tensor_partitioner.launch.launch import LaunchFile as LaunchFile
from tensor_partitioner.launch.read import read_launch as read_launch
