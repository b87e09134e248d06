"""Launch files of other trainers: what they train, on how many devices, and how it is parallel."""

from tensor_partitioner.launch.launch import LaunchFile as LaunchFile
from tensor_partitioner.launch.read import read_launch as read_launch
