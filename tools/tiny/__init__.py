"""The parts of tools/train_tiny.py."""
