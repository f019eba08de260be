# make run    a cluster, a mount, copies and a shared file, in one table; leaves nothing behind
# make test   everything that must hold before a change is taken
# make long   minutes of stress-ng, fio and the checker of random operations on a mount (SECONDS_EACH=5 CHECK_S=600)
# make guests the jobs over RDMA and with the kernel's NFS client, in emulated guests, that take too long for make test
# make fuzz   every decoder on damaged input, ten minutes each (SECONDS_EACH=600 KEEP=1)
# make bench  the bars of docs/benchmarks.md; figures go to bench/figures/

.PHONY: run test long guests fuzz bench build install

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

fuzz:
	@scripts/fuzz.sh

bench:
	@bench/run.sh

build:
	@scripts/need.sh cc cargo
	cargo build --release --locked

PREFIX ?= /usr/local
BUILT ?= target/release
UNITS = $(DESTDIR)$(PREFIX)/lib/systemd/system
PACKAGES = $(DESTDIR)$(PREFIX)/lib/pkgconfig
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
install: build
	install -D $(BUILT)/weft $(DESTDIR)$(PREFIX)/bin/weft
	install -D $(BUILT)/weft-bench $(DESTDIR)$(PREFIX)/bin/weft-bench
	install -d $(DESTDIR)/sbin
	ln -sf $(PREFIX)/bin/weft $(DESTDIR)/sbin/mount.weft
	install -D $(BUILT)/libweft.so $(DESTDIR)$(PREFIX)/lib/libweft.so
	install -D $(BUILT)/libweft_preload.so $(DESTDIR)$(PREFIX)/lib/libweft_preload.so
	install -D $(BUILT)/libweft_mpi.so $(DESTDIR)$(PREFIX)/lib/libweft_mpi.so
	install -d $(PACKAGES)
	for name in weft weft-mpi; do \
	    sed 's,@PREFIX@,$(PREFIX),; s,@VERSION@,$(VERSION),' packaging/$$name.pc.in > $(PACKAGES)/$$name.pc; \
	    chmod 644 $(PACKAGES)/$$name.pc; \
	done
	install -D -m 644 crates/capi/include/weft.h $(DESTDIR)$(PREFIX)/include/weft.h
	install -D -m 644 packaging/weft@.service $(UNITS)/weft@.service
	sed -i 's,/usr/local/,$(PREFIX)/,' $(UNITS)/weft@.service
	$(BUILT)/weft man $(BUILT)/man
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/man/man1 $(BUILT)/man/*.1
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/man/man7 $(BUILT)/man/*.7
