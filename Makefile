# The two commands that matter: `make demo` and `make check`. CMake and Ninja do the work; their trees are under build/.

BUILD  ?= build
PREFIX ?= /usr/local
VENV   ?= $(BUILD)/venv
TREE   := $(BUILD)/release

all: $(TREE)/build.ninja
	@ninja -C $(TREE)

$(TREE)/build.ninja:
	@command -v cmake >/dev/null || { echo "cmake is missing: 'make demo' installs what is needed (tools/debian-packages.txt)" >&2; exit 1; }
	@mkdir -p $(BUILD)
	@cmake -S . -B $(TREE) -G Ninja -DCMAKE_INSTALL_PREFIX=$(PREFIX) > $(TREE).log 2>&1 || { cat $(TREE).log >&2; exit 1; }

# Answers prompts with the small model in models/, its experts streamed under a budget that holds a part of them.
demo:
	@sh tools/install_packages.sh build
	@$(MAKE) --no-print-directory all
	@sh tools/demo.sh $(TREE)

# Every test.
check:
	@sh tools/install_packages.sh check
	@sh tools/make_venv.sh $(VENV) check
	@bash tests/check.sh $(BUILD) $(VENV)

# The benchmark programs; docs/performance.md says how the figures were made.
bench: $(TREE)/build.ninja
	@ninja -C $(TREE) all bench

format:
	clang-format-14 -i $$(git ls-files 'src/*.[ch]' 'include/*.h' 'tests/*.[ch]' 'examples/*.c' 'bench/*.[ch]')

install: all
	cmake --install $(TREE) --prefix $(PREFIX)

clean:
	rm -rf $(BUILD)

.PHONY: all demo check bench format install clean
