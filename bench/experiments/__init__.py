"""What `bench/cluster.py` measures, an experiment to a file; and what these share:

limits      what links and redundancy allow at most: the formulas
laboratory  a cluster in network namespaces with shaped links: up, down, killed, asked; how full links and cores were
together    processes that begin at one moment, each working through one host's mount
report      tables, medians, and the raw figures as JSON
"""
