# The one list of entry points. `make` alone explains them.

DIR   ?= /var/lib/dazzle-demo
MOUNT ?= /mnt/dazzle
CARGO ?= cargo

.PHONY: help packages up down test check fix bench bench-size bench-floor bench-cluster fuzz long-test

help:            ## this list
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/:.*## */\t/' | expand -t 14

packages:        ## what a fresh Debian 12 needs (as root)
	@install/packages.sh

up: packages     ## build, bring a file system up in DIR on MOUNT, and show it around
	@install/up.sh "$(DIR)" "$(MOUNT)"

down:            ## unmount it and stop its daemon; the files stay in DIR
	@target/release/dazzle down "$(DIR)"

test: packages   ## every test that fits 30 minutes
	@install/test.sh

check:           ## the gate: format, lints, tidy; never writes
	@$(CARGO) fmt --all --check
	@$(CARGO) clippy --workspace --all-targets --quiet -- -D warnings
	@$(CARGO) test --quiet --workspace --test tidy
	@$(CARGO) fmt --manifest-path fuzz/Cargo.toml --check
	@$(CARGO) clippy --manifest-path fuzz/Cargo.toml --target-dir target --quiet -- -D warnings

fix:             ## what the gate can repair by itself
	@$(CARGO) fmt --all
	@$(CARGO) clippy --workspace --all-targets --fix --allow-dirty --quiet

bench:           ## the comparison with ext4, a FUSE passthrough and MooseFS
	@install/packages.sh build bench
	@$(CARGO) build --release --quiet -p dazzle
	@DAZZLE_UP='$(CURDIR)/target/release/dazzle up "$$BASE" --mount "$$MOUNT" --targets 5' \
	 DAZZLE_DOWN='$(CURDIR)/target/release/dazzle down "$$BASE"' bench/compare.sh

bench-size:      ## rates, memory and restart time up to 5,000,000 files, and with little memory for metadata: twenty minutes
	@$(CARGO) build --release --quiet -p dazzle
	@for options in "" "--sizes 600000 --one 0 --metadata 64"; do \
	    target/release/dazzle up "$(DIR)-size" --mount "$(MOUNT)-size" --targets 5 && \
	    bench/size.py target/release/dazzle "$(DIR)-size" "$(MOUNT)-size" $$options && \
	    target/release/dazzle down "$(DIR)-size" && rm -rf "$(DIR)-size" || exit 1; \
	done

bench-floor:     ## how fast the kernel asks a FUSE daemon that does nothing: what no other can surpass
	@install/packages.sh build bench
	@mkdir -p target/cache/bench/floor
	@cc -O2 -Wall -o target/cache/bench/floor.bin bench/floor.c -luring -lpthread
	@target/cache/bench/floor.bin target/cache/bench/floor

bench-cluster:   ## clusters of 1 to 12 hosts on shaped links, as root: rates, creates, sharing, take-over, rebuild, drain: some hours
	@install/packages.sh build bench
	@$(CARGO) build --release --quiet -p dazzle
	@mkdir -p target/cache/bench/cluster
	@failed=; for what in start scaling creates "creates --relative" "sharing --rate 1gbit" takeover "takeover --full --hosts 8 --files 20000" rebuild drain; do \
	    echo "== $$what"; json="target/cache/bench/cluster/$$(echo "$$what" | tr -d " ").json"; \
	    bench/cluster.py target/release/dazzle "$(DIR)-cluster" $$what --json "$$json" || failed=1; \
	done; rmdir "$(DIR)-cluster" 2>/dev/null; [ -z "$$failed" ]

fuzz:            ## every parser of bytes from outside, 10 minutes each (FUZZ_SECONDS)
	@fuzz/run.sh

long-test: packages ## 30,000 simulated worlds, the models checked further, 200 kills: hours
	@DAZZLE_SEEDS=2000 $(CARGO) test --profile worlds -p dazzle-testbed --test a_node_keeps_its_word -- --nocapture
	@DAZZLE_SEEDS=10000 $(CARGO) test --profile worlds -p dazzle-testbed --test a_cluster_keeps_its_word -- --nocapture
	@DAZZLE_SEEDS=10000 $(CARGO) test --profile worlds -p dazzle-storage --test stories -- --nocapture what_was_acknowledged_survives
	@$(CARGO) test --profile worlds -p dazzle-log -- --ignored
	@$(CARGO) test --profile worlds -p dazzle-testbed --test token_model -- --ignored
	@ROUNDS=200 install/test.sh crash
	@ROUNDS=20 install/test.sh fill-and-empty
	@SPACE=full install/test.sh overwritten
	@BLOWS=kill ROUNDS=51 MOST=5 GUESTS=fsx.sh,git.sh,fio.sh install/test.sh lab-kills
	@BLOWS=freeze,cut ROUNDS=24 MOST=5 install/test.sh lab-kills
	@HOSTS=5 LOST=1 ROUNDS=10 install/test.sh lab-losses
	@HOSTS=5 LOST=1 AWAY=3600 install/test.sh lab-losses
	@HOSTS=6 LOST=2 ROUNDS=10 install/test.sh lab-losses
	@HOSTS=8 LOST=2 ROUNDS=10 install/test.sh lab-losses
	@install/test.sh
