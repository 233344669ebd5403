"""Where training sequences come from: texts, token files, files of sequences."""
