"""Reference implementation and writers behind tools/make_golden.py."""
