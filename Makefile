# make run    a cluster, a mount, copies and a shared file, in one table; leaves nothing behind
# make test   everything that must hold before a change is taken
# make long   minutes of stress-ng, fio and the checker of random operations on a mount (SECONDS_EACH=5 CHECK_S=600)
# make guests the jobs over RDMA in emulated guests that take too long for make test
# make bench  the bars of docs/benchmarks.md; figures go to bench/figures/

.PHONY: run test long guests bench build install

run:
	@scripts/run-demo.sh

test:
	@scripts/test.sh

SECONDS_EACH ?= 5
CHECK_S ?= 600
long:
	@tests/long.sh --seconds $(SECONDS_EACH) --check $(CHECK_S)

guests:
	@scripts/need.sh cc cargo
	cargo test --release --locked --package weft-tests --test rdma -- --ignored

bench:
	@bench/run.sh

build:
	@scripts/need.sh cc cargo
	cargo build --release --locked

PREFIX ?= /usr/local
install: build
	install -D target/release/weft $(DESTDIR)$(PREFIX)/bin/weft
	install -D target/release/weft-bench $(DESTDIR)$(PREFIX)/bin/weft-bench
	install -d $(DESTDIR)/sbin
	ln -sf $(PREFIX)/bin/weft $(DESTDIR)/sbin/mount.weft
	install -D target/release/libweft.so $(DESTDIR)$(PREFIX)/lib/libweft.so
	install -D target/release/libweft_preload.so $(DESTDIR)$(PREFIX)/lib/libweft_preload.so
	install -D -m 644 packaging/weft@.service $(DESTDIR)$(PREFIX)/lib/systemd/system/weft@.service
	target/release/weft man target/man
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/man/man1 target/man/*.1
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/man/man7 target/man/*.7
