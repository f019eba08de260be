# make run    a cluster, a mount, copies and a shared file, in one table; leaves nothing behind
# make test   everything that must hold before a change is taken
# make long   minutes of stress-ng, fio and the checker of random operations on a mount (SECONDS_EACH=5 CHECK_S=600),
#             and all MPI programs with every MPI library
# make guests the jobs over RDMA and with the kernel's NFS client, in emulated guests, that take too long for make test
# make fuzz   every decoder on damaged input, ten minutes each (SECONDS_EACH=600 KEEP=1)
# make install, uninstall     PREFIX=/usr/local DESTDIR=; docs/install.md has what goes where
# make tarball, deb, rpm      packages, in dist/
# make wheel  the Python package, in dist/
# make docs   the reference of the C and the Rust interface, in target/doc
# make bench  the bars of docs/benchmarks.md; figures go to bench/figures/

.PHONY: run test long guests fuzz bench build install uninstall tarball deb rpm wheel docs

run:
	@scripts/run-demo.sh

test:
	@scripts/test.sh

SECONDS_EACH ?= 5
CHECK_S ?= 600
long:
	@tests/long.sh --seconds $(SECONDS_EACH) --check $(CHECK_S)
	WEFT_TEST_MPI_ALL=1 cargo test --locked --package weft-tests --test mpi programs_with

guests:
	@scripts/need.sh cc cargo
	cargo test --release --locked --package weft-tests --test rdma -- --ignored

fuzz:
	@scripts/fuzz.sh

bench:
	@bench/run.sh

BUILT ?= target/release
build:
	@scripts/need.sh cc cargo
	cargo build --release --locked
	scripts/embed.sh $(BUILT)/weft $(BUILT)/libweft_preload.so $(BUILT)/libweft_mpi.so

PREFIX ?= /usr/local
UNITS = $(DESTDIR)$(PREFIX)/lib/systemd/system
PACKAGES = $(DESTDIR)$(PREFIX)/lib/pkgconfig
SHARE = $(DESTDIR)$(PREFIX)/share
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
MAJOR = $(firstword $(subst ., ,$(VERSION)))
install: build
	install -D $(BUILT)/weft $(DESTDIR)$(PREFIX)/bin/weft
	install -D $(BUILT)/weft-bench $(DESTDIR)$(PREFIX)/bin/weft-bench
	install -d $(DESTDIR)/sbin
	ln -sf $(PREFIX)/bin/weft $(DESTDIR)/sbin/mount.weft
	install -D $(BUILT)/libweft.so $(DESTDIR)$(PREFIX)/lib/libweft.so.$(VERSION)
	ln -sf libweft.so.$(VERSION) $(DESTDIR)$(PREFIX)/lib/libweft.so.$(MAJOR)
	ln -sf libweft.so.$(MAJOR) $(DESTDIR)$(PREFIX)/lib/libweft.so
	install -D $(BUILT)/libweft_preload.so $(DESTDIR)$(PREFIX)/lib/libweft_preload.so
	install -D $(BUILT)/libweft_mpi.so $(DESTDIR)$(PREFIX)/lib/libweft_mpi.so
	scripts/embed.sh $(DESTDIR)$(PREFIX)/bin/weft $(BUILT)/libweft_preload.so $(BUILT)/libweft_mpi.so
	install -d $(PACKAGES)
	for name in weft weft-mpi; do \
	    sed 's,@PREFIX@,$(PREFIX),; s,@VERSION@,$(VERSION),' packaging/$$name.pc.in > $(PACKAGES)/$$name.pc; \
	    chmod 644 $(PACKAGES)/$$name.pc; \
	done
	install -D -m 644 crates/capi/include/weft.h $(DESTDIR)$(PREFIX)/include/weft.h
	install -D -m 644 packaging/weft@.service $(UNITS)/weft@.service
	sed -i 's,/usr/local/,$(PREFIX)/,' $(UNITS)/weft@.service
	pages=$$(mktemp -d) && $(BUILT)/weft man $$pages && \
	    install -D -m 644 -t $(SHARE)/man/man1 $$pages/*.1 && install -D -m 644 -t $(SHARE)/man/man7 $$pages/*.7 && \
	    for shell in bash zsh fish; do $(BUILT)/weft completions $$shell > $$pages/$$shell || exit 1; done && \
	    install -D -m 644 $$pages/bash $(SHARE)/bash-completion/completions/weft && \
	    install -D -m 644 $$pages/zsh $(SHARE)/zsh/site-functions/_weft && \
	    install -D -m 644 $$pages/fish $(SHARE)/fish/vendor_completions.d/weft.fish && rm -r $$pages
	install -D -m 644 packaging/weft.sysusers $(DESTDIR)$(PREFIX)/lib/sysusers.d/weft.conf
	install -D -m 644 packaging/weft.tmpfiles $(DESTDIR)$(PREFIX)/lib/tmpfiles.d/weft.conf
	install -D -m 644 packaging/prometheus/alerts.yml $(SHARE)/weft/prometheus-alerts.yml
	install -D -m 644 packaging/grafana/weft.json $(SHARE)/weft/grafana-dashboard.json
	install -D -m 755 -t $(SHARE)/weft/slurm packaging/slurm/prolog packaging/slurm/epilog
	install -D -m 644 -t $(SHARE)/doc/weft LICENSE packaging/licences-of-dependencies.txt

# What `make install` with the same PREFIX and DESTDIR has put there. Nothing of a cluster is touched.
uninstall:
	cd $(DESTDIR)$(PREFIX) && rm -f bin/weft bin/weft-bench lib/libweft.so lib/libweft.so.$(MAJOR) lib/libweft.so.$(VERSION) lib/libweft_preload.so lib/libweft_mpi.so \
	    lib/pkgconfig/weft.pc lib/pkgconfig/weft-mpi.pc include/weft.h lib/systemd/system/weft@.service \
	    share/man/man1/weft.1 share/man/man1/weft-*.1 share/man/man7/weft-*.7 share/bash-completion/completions/weft \
	    share/zsh/site-functions/_weft share/fish/vendor_completions.d/weft.fish lib/sysusers.d/weft.conf \
	    lib/tmpfiles.d/weft.conf share/weft/prometheus-alerts.yml share/weft/grafana-dashboard.json \
	    share/weft/slurm/prolog share/weft/slurm/epilog share/doc/weft/LICENSE share/doc/weft/licences-of-dependencies.txt
	rm -f $(DESTDIR)/sbin/mount.weft
	-cd $(DESTDIR)$(PREFIX) && rmdir share/weft/slurm share/weft share/doc/weft 2>/dev/null

docs:
	@scripts/need.sh cc cargo
	@scripts/docs.sh

tarball deb rpm: build
	@BUILT=$(BUILT) scripts/package.sh $@

wheel:
	@scripts/wheel.sh
