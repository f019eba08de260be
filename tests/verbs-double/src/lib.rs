//! An adapter that exists in memory only, for tests: it is no RDMA and is not presented as such.
