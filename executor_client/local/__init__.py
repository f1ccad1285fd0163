"""Code on this machine, behind Landlock and seccomp: for development, and never unless it is named.

Nothing else in the package imports it (an import contract holds that), so that nothing can fall back to it.
"""
