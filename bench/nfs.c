// Measures an NFS server by the asynchronous interface of libnfs, as `weft nfs bench` does by Weft's own client.
//   nfs URL FILE_MIB SMALL_COUNT FILES    prints a line for each figure: its name, what it is a second
// Sequential READs and WRITEs of 1 MiB and calls on names: 8 under way; random ones of 4 KiB: 32.
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
#include <nfsc/libnfs.h>
#include <nfsc/libnfs-raw.h>
#include <nfsc/libnfs-raw-nfs.h>

// A handle, which libnfs 4 and 5 do not declare.
struct nfs_fh {
    int len;
    char *val;
};

enum { BLOCK = 1 << 20, SMALL = 4096, DEPTH = 8, SMALL_DEPTH = 32 };

static struct nfs_context *nfs;
static struct rpc_context *rpc;
static nfs_fh3 file, dir;
static char *block;
static uint64_t random_state = 88172645463325252ull;

// One measurement: calls are begun as others end.
static long begun, ended, wanted, under_way;
static uint64_t moved_bytes;
static void (*begin)(long number);

static void fail(const char *what) {
    fprintf(stderr, "nfs: %s: %s\n", what, nfs_get_error(nfs));
    exit(1);
}

static uint64_t below(uint64_t bound) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state % bound;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void more(void) {
    under_way++;
    begin(begun++);
}

static void end(int rpc_status, int status, const char *what) {
    if (rpc_status != RPC_STATUS_SUCCESS || status != NFS3_OK) {
        fprintf(stderr, "nfs: %s: RPC %d, status %d\n", what, rpc_status, status);
        exit(1);
    }
    ended++;
    under_way--;
    if (begun < wanted) more();
}

static void read_ended(struct rpc_context *of, int status, void *data, void *unused) {
    READ3res *result = data;
    if (status == RPC_STATUS_SUCCESS && result->status == NFS3_OK) moved_bytes += result->READ3res_u.resok.count;
    end(status, status == RPC_STATUS_SUCCESS ? (int)result->status : 0, "READ");
}

static void write_ended(struct rpc_context *of, int status, void *data, void *unused) {
    WRITE3res *result = data;
    if (status == RPC_STATUS_SUCCESS && result->status == NFS3_OK) moved_bytes += result->WRITE3res_u.resok.count;
    end(status, status == RPC_STATUS_SUCCESS ? (int)result->status : 0, "WRITE");
}

// Every result begins with its status.
static void call_ended(struct rpc_context *of, int status, void *data, void *what) {
    end(status, status == RPC_STATUS_SUCCESS ? *(int *)data : 0, what);
}

static void start_read(uint64_t offset, uint32_t bytes) {
    READ3args args = {.file = file, .offset = offset, .count = bytes};
    if (rpc_nfs3_read_async(rpc, read_ended, &args, NULL)) fail("READ");
}

static void start_write(uint64_t offset, uint32_t bytes) {
    WRITE3args args = {.file = file, .offset = offset, .count = bytes, .stable = UNSTABLE};
    args.data.data_len = bytes;
    args.data.data_val = block;
    if (rpc_nfs3_write_async(rpc, write_ended, &args, NULL)) fail("WRITE");
}

static uint64_t file_bytes;
static void begin_write(long number) { start_write((uint64_t)number * BLOCK, BLOCK); }
static void begin_read(long number) { start_read((uint64_t)number * BLOCK, BLOCK); }
static void begin_small_write(long number) { start_write(below(file_bytes / SMALL) * SMALL, SMALL); }
static void begin_small_read(long number) { start_read(below(file_bytes / SMALL) * SMALL, SMALL); }

static void begin_commit(long number) {
    COMMIT3args args = {.file = file};
    if (rpc_nfs3_commit_async(rpc, call_ended, &args, "COMMIT")) fail("COMMIT");
}

static char *name_of(long number) {
    static char name[32];
    snprintf(name, sizeof name, "file-%ld", number);
    return name;
}

static void begin_create(long number) {
    CREATE3args args = {.where = {dir, name_of(number)}, .how = {.mode = GUARDED}};
    sattr3 *set = &args.how.createhow3_u.g_obj_attributes;
    set->mode.set_it = 1;
    set->mode.set_mode3_u.mode = 0644;
    if (rpc_nfs3_create_async(rpc, call_ended, &args, "CREATE")) fail("CREATE");
}

static void begin_lookup(long number) {
    LOOKUP3args args = {.what = {dir, name_of(number)}};
    if (rpc_nfs3_lookup_async(rpc, call_ended, &args, "LOOKUP")) fail("LOOKUP");
}

static void begin_getattr(long number) {
    GETATTR3args args = {.object = dir};
    if (rpc_nfs3_getattr_async(rpc, call_ended, &args, "GETATTR")) fail("GETATTR");
}

static void begin_remove(long number) {
    REMOVE3args args = {.object = {dir, name_of(number)}};
    if (rpc_nfs3_remove_async(rpc, call_ended, &args, "REMOVE")) fail("REMOVE");
}

static void run(void (*what)(long), long count, long depth) {
    begin = what, begun = ended = under_way = 0, wanted = count;
    while (begun < wanted && under_way < depth) more();
    while (ended < wanted) {
        struct pollfd entry = {.fd = rpc_get_fd(rpc), .events = rpc_which_events(rpc)};
        if (poll(&entry, 1, 1000) < 0 && errno != EINTR) fail("poll");
        if (rpc_service(rpc, entry.revents) < 0) fail("the connection");
    }
}

// What ended in the time, a second; of WRITEs, with the COMMIT.
static void measure(const char *name, void (*what)(long), long count, long depth) {
    double start = now();
    moved_bytes = 0;
    run(what, count, depth);
    if (what == begin_write || what == begin_small_write) run(begin_commit, 1, 1);
    double amount = what == begin_write || what == begin_read ? moved_bytes / 1048576.0 : count;
    printf("%s %.1f\n", name, amount / (now() - start));
    fflush(stdout);
}

static nfs_fh3 handle_of(struct nfs_fh *of) {
    nfs_fh3 handle = {{of->len, malloc(of->len)}};
    memcpy(handle.data.data_val, of->val, of->len);
    return handle;
}

int main(int count, char **words) {
    if (count != 5) return fprintf(stderr, "usage: nfs URL FILE_MIB SMALL_COUNT FILES\n"), 2;
    long mib = atol(words[2]), small = atol(words[3]), files = atol(words[4]);
    file_bytes = (uint64_t)mib * BLOCK;
    block = malloc(BLOCK);
    for (long at = 0; at < BLOCK; at++) block[at] = below(256);
    nfs = nfs_init_context();
    struct nfs_url *url = nfs_parse_url_dir(nfs, words[1]);
    if (!url || nfs_mount(nfs, url->server, url->path)) fail("mount");
    rpc = nfs_get_rpc_context(nfs);
    char top[64], path[96];
    snprintf(top, sizeof top, "/.libnfs-bench-%d", getpid());
    snprintf(path, sizeof path, "%s/data", top);
    struct nfsfh *data, *opened;
    if (nfs_mkdir(nfs, top) || nfs_creat(nfs, path, 0600, &data)) fail("make a file");
    file = handle_of(nfs_get_fh(data));
    if (nfs_open(nfs, top, 0, &opened)) fail("open the directory");
    dir = handle_of(nfs_get_fh(opened));
    measure("write", begin_write, mib, DEPTH);
    measure("read", begin_read, mib, DEPTH);
    measure("small_write", begin_small_write, small, SMALL_DEPTH);
    measure("small_read", begin_small_read, small, SMALL_DEPTH);
    measure("create", begin_create, files, DEPTH);
    measure("lookup", begin_lookup, files, DEPTH);
    measure("getattr", begin_getattr, files, DEPTH);
    measure("remove", begin_remove, files, DEPTH);
    if (nfs_unlink(nfs, path) || nfs_rmdir(nfs, top)) fail("clean up");
    return 0;
}
