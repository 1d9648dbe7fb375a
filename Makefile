# The same words as dev.py, for those who type make.
.PHONY: run test bench

run:
	python3 dev.py run

test:
	python3 dev.py test

bench:
	python3 dev.py bench $(name)
