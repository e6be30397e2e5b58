"""The paper's experiments, each a small problem that commands and tests share."""
