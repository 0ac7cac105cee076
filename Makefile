# Short names; the work is done in scripts/.
.PHONY: demo test test-full lint horovod clean

demo:
	scripts/demo

test:
	scripts/test

test-full:
	scripts/test --full

lint:
	scripts/test --lint

# Builds Horovod for backend="horovod" and installs it into .venv; minutes the first time.
horovod:
	scripts/horovod

# Removes what the commands wrote, but not .venv: that one takes minutes to make again.
clean:
	rm -rf demo-output artifacts build dist spark-warehouse metastore_db derby.log
	rm -rf .mypy_cache .pytest_cache .ruff_cache *.egg-info
	find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +
