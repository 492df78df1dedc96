PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PROMPT ?= two green squares on black
IMAGE ?= pixelpod.png

.PHONY: run test lint types unit judge protos clean

run: $(VENV)/installed-run  ## One image from a two-rank group, from nothing.
	$(BIN)/pixelpod dev --ranks 2 --listen 127.0.0.1:0 --metrics none --prompt "$(PROMPT)" --output "$(IMAGE)"

test: lint types unit  ## What CI runs.

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/buf lint protos

types: $(VENV)/installed-dev
	$(BIN)/mypy

unit: $(VENV)/installed-dev
	$(BIN)/python -m pytest

judge: $(VENV)/installed-dev  ## How often the demo model draws what 500 prompts ask for.
	TORCH_DEVICE_BACKEND_AUTOLOAD=0 $(BIN)/python -m demo_training.judge

protos: $(VENV)/installed-dev  ## Regenerate pixelpod/v1 from protos/.
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m grpc_tools.protoc -Iprotos \
		--python_out=. --grpc_python_out=. --mypy_out=quiet:. --mypy_grpc_out=quiet:. protos/pixelpod/v1/*.proto

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

$(VENV)/installed-run: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[service,worker]'
	touch $@

$(VENV)/installed-dev: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	# The emulated TPU's plugin. It asks for jax, which nothing here needs.
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --no-deps lammps-jax-pjrt-cpu
	touch $@ $(VENV)/installed-run
