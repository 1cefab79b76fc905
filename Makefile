# Fathom's two first commands are `make demo` and `make test`; the rest is for its developers.
PRESET ?= release
JOBS ?= $(shell nproc)

.PHONY: help setup configure build program build-dir demo test test-all lint format clean

help:
	@echo "make demo      set up, build, serve the shipped model, ask it, print where the time went"
	@echo "make test      set up, build and run the checks and tests (no GPU needed)"
	@echo "make test-all  the same plus slow tests and the address, undefined and thread sanitizers"
	@echo "make build     only build (PRESET=release|debug|asan-ubsan|tsan|fuzz|gpu)"
	@echo "make lint      clang-format, clang-tidy, layers, ISA objects"
	@echo "make format    reformat the sources"

build-dir:
	@mkdir -p build

setup:
	@tools/setup.sh

configure: setup | build-dir
	@cmake --preset $(PRESET) > build/.configure.$(PRESET).log 2>&1 || \
	  { cat build/.configure.$(PRESET).log; exit 1; }

build: configure
	@cmake --build --preset $(PRESET) -j $(JOBS)

program: configure  # without tests and benchmarks, which take as long again
	@cmake --build --preset $(PRESET) -j $(JOBS) --target fathom

demo: program
	@tools/demo.sh

lint: setup
	@tools/lint.sh

test: build
	@tools/test.sh

test-all: build
	@tools/test.sh --all

format:
	@git ls-files 'src/*' 'tests/*' 'bench/*' | grep -E '\.(h|cc|inc|cu|cuh)$$' | xargs clang-format-14 -i

clean:
	rm -rf build
