"""The engine ``gloo`` of compiled programs: their collectives carried out by PyTorch's gloo.

Ranks are those of a process group or device mesh of torch.distributed. They meet in its store and connect by gloo once
more, so that what else the process group does never meets a step of a program.
"""
