# The commands of the project. The building itself is CMake's work (CMakeLists.txt); this file only calls it with the right settings.
#   BUILD=DIR  JOBS=N  CC=clang  FUZZ_SECONDS=600  FUZZ=name_fuzz  TESTS=pattern  BENCH_ARGS=...
BUILD ?= build
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
FUZZ_SECONDS ?= 600
VENV = $(BUILD)/venv
export FUZZ_SECONDS JOBS

# $(call configure_and_build,DIRECTORY,CMAKE SETTINGS[,TARGET]). Configures every time (it takes a moment), so that a directory which another
# target made, or from before a package was installed, is what this target needs.
define configure_and_build
	@command -v cmake >/dev/null && command -v ninja >/dev/null || { echo "cmake or ninja is missing: run tools/install-deps" >&2; exit 1; }
	@cmake -G Ninja -S . -B $(1) $(2) >/dev/null
	@ninja -C $(1) -j $(JOBS) $(3)
endef
# For targets that need no unit tests: a new directory is made without them, an older one keeps what it has.
PROGRAM = -DCMAKE_BUILD_TYPE=Release $(if $(wildcard $(BUILD)/CMakeCache.txt),,-DDI_TESTS=OFF)
TESTS_TOO = -DCMAKE_BUILD_TYPE=Release -DDI_TESTS=ON

.PHONY: all build wheel run check test clients-test test-builds fuzz bench cuda lint format clean help
all: build

build:
	$(call configure_and_build,$(BUILD),$(PROGRAM),deepinfer)

wheel:
	$(call configure_and_build,$(BUILD),$(PROGRAM),deepinfer_shared)
	@python3 python/backend.py $(BUILD)/libdeepinfer.so $(BUILD)/wheel

run:
	@tools/install-deps
	@$(MAKE) --no-print-directory build
	@python3 tools/show_answers --binary $(BUILD)/deepinfer --model models/nano

test-builds:
	$(call configure_and_build,$(BUILD),$(TESTS_TOO))
	$(call configure_and_build,$(BUILD)-asan,$(TESTS_TOO) -DDI_SANITIZE=address$(comma)undefined)
	$(call configure_and_build,$(BUILD)-tsan,$(TESTS_TOO) -DDI_SANITIZE=thread)
comma := ,

test:
	@tools/install-deps --test
	@$(MAKE) --no-print-directory test-builds
	@tools/make_venv $(VENV) tests/requirements.txt || echo 'The whole-program tests will fail; the unit tests run.' >&2
	@python3 tests/run --python $(VENV)/bin/python --binary $(BUILD)/deepinfer --filter '$(TESTS)' $(BUILD) $(BUILD)-asan $(BUILD)-tsan

# Programs of others: proxies of the distribution, and those of PyPI, each with its tests/clients/NAME.txt in a virtual environment of its own.
clients-test:
	@tools/install-deps --clients
	@$(MAKE) --no-print-directory build
	@tools/make_venv $(VENV) tests/requirements.txt
	@for file in tests/clients/*.txt; do name=$$(basename $$file .txt); \
	    case tests/clients/test_$$name.py in *'$(TESTS)'*) tools/make_venv $(VENV)-$$name $$file || echo "The tests of $$name will fail." >&2; esac; done
	@python3 tests/run --python $(VENV)/bin/python --binary $(BUILD)/deepinfer --programs tests/clients --filter '$(TESTS)'

fuzz: export CC = clang
fuzz:
	@tools/install-deps --dev
	$(call configure_and_build,$(BUILD)-fuzz,-DDI_FUZZ=ON -DDI_SANITIZE=address$(comma)undefined)
	@tools/fuzz $(BUILD)-fuzz '$(FUZZ)'

bench: build
	@$(BUILD)/deepinfer bench $(BENCH_ARGS)

cuda:
	@tools/build_cuda $(BUILD)/cuda

# For every edit: a few minutes.
check:
	@tools/install-deps --dev
	$(call configure_and_build,$(BUILD),$(TESTS_TOO))
	@python3 tests/run --quick --binary $(BUILD)/deepinfer --filter '$(TESTS)' $(BUILD)
	@tools/lint

lint:
	@tools/install-deps --dev
	$(call configure_and_build,$(BUILD),$(TESTS_TOO))
	@tools/lint $(BUILD)

format:
	@git ls-files -z '*.c' '*.h' '*.inc' '*.cu' '*.cuh' | xargs -0 clang-format -i

clean:
	rm -rf $(BUILD) $(BUILD)-asan $(BUILD)-tsan $(BUILD)-fuzz

help:
	@echo 'make         build $(BUILD)/deepinfer'
	@echo 'make wheel   build the C library and the Python package: $(BUILD)/libdeepinfer.so, $(BUILD)/wheel/'
	@echo 'make run     install what is needed, build, let the small model in models/nano answer some prompts'
	@echo 'make check   for every edit: Release build, quick unit tests, rules of the tree, formatting'
	@echo 'make test    install what is needed, run every test in Release, ASan+UBSan and TSan builds'
	@echo 'make clients-test'
	@echo '             install proxies of the distribution, agents and libraries of PyPI (2 GB), run the service with them'
	@echo 'make fuzz    run every fuzzer for FUZZ_SECONDS (600); FUZZ=NAME runs one'
	@echo 'make bench   measure; BENCH_ARGS=... goes to `deepinfer bench`'
	@echo 'make cuda    build the CUDA kernels and their lab (needs nvcc); bench/cuda/run says how to run it'
	@echo 'make lint    rules of the tree, clang-tidy, formatting'
	@echo 'make format  format the sources with clang-format'
	@echo 'make clean   delete the build directories'
