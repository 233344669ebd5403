"""The driver: the compiler's stages wired together, for the command line and for Python."""
