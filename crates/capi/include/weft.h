/*
 * weft.h: the C interface of Weft, a parallel file system.
 *
 *     weft_fs *fs = weft_connect("weft://head:7000/", NULL);
 *     weft_file *file = weft_creat(fs, "/results", 0644, NULL);
 *     if (weft_pwrite(file, data, bytes, 0) < 0)
 *         fprintf(stderr, "%s\n", weft_last_error());
 *     weft_close(file);
 *     weft_disconnect(fs);
 *
 * Errors: functions return -1 or NULL and set errno, as in libc. weft_last_error() has the whole story: the
 * operation, the path, the server, and what to do.
 *
 * Threads: every function may be called from any thread, also with the same handle; the cursor of a file
 * (weft_read, weft_write, weft_lseek) is shared by all who use the handle. The library starts no threads:
 * the calling thread drives all servers at once.
 *
 * After fork the child may use handles that were open; it makes connections of its own at its first call.
 * Operations that were under way stay the parent's: the child must not wait for them. Nothing is registered
 * in it, and memory of weft_mem_alloc is shared with the parent. The RDMA libraries cannot be used again in
 * a process whose parent has used them: with transport `auto` the child goes over shared memory or TCP, and
 * weft status of it says why; with `rdma` its calls fail with an error that says so. A child that executes a
 * program begins anew.
 *
 * Paths are absolute within the file system ("/a/b"); a URL's path is the directory that they begin at.
 *
 * Link with -lweft, or `pkg-config --cflags --libs weft`.
 */
#ifndef WEFT_H
#define WEFT_H

#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Version of this header; weft_version() is the library's. */
#define WEFT_VERSION_MAJOR 0
#define WEFT_VERSION_MINOR 1
#define WEFT_VERSION_PATCH 0

typedef struct weft_fs weft_fs;     /* a connected file system */
typedef struct weft_file weft_file; /* an open file */
typedef struct weft_dir weft_dir;   /* an open directory */
typedef struct weft_op weft_op;     /* a read or write, or a change of a counter, that is under way */

/* The library's version, "0.1.0". */
const char *weft_version(void);

/* Short text for an errno value. Never NULL; valid until the thread's next call. */
const char *weft_strerror(int error);

/* What went wrong in this thread's last call that failed: operation, path, server, and what to do. "" if
 * none failed. Valid until the thread's next failing call. */
const char *weft_last_error(void);

/* ---- Connection --------------------------------------------------------------------------------------- */

/* Zero-initialise it; what is 0 or NULL is as by default. */
struct weft_connect_options {
    const char *key_file;   /* a key file of mode 0600; default: $WEFT_KEY_FILE, or see `weft help keys` */
    uint32_t timeout_ms;    /* longest time that a call waits for a server that does not answer */
    uint32_t background;    /* not 0: nobody waits for what is moved; RDMA marks it so (option rdma-tos) */
    uint32_t reserved[5];   /* 0 */
};

/* Connects to weft://HOST:PORT/PATH[?transport=auto|tcp|shm|rdma][&background=on]. `options` may be NULL. */
weft_fs *weft_connect(const char *url, const struct weft_connect_options *options);

/* Gives the handle back. Files that are still open keep the connections until they are closed. */
int weft_disconnect(weft_fs *fs);

/* ---- Layout ------------------------------------------------------------------------------------------- */

/* How a file is striped: byte o is in strip o / strip_bytes, and strip s is on server (first_server + s %
 * server_count) of the ring. */
struct weft_layout {
    uint32_t strip_bytes;  /* multiple of 4096; as a wish, 0: as by default */
    uint16_t server_count; /* as a wish, 0: as by default */
    uint16_t reserved;     /* 0 */
    int32_t first_server;  /* as a wish, -1: the metadata server spreads files over the servers */
};

/* Layout of a file, or a directory's default for what is created in it (ENODATA where it has none). */
int weft_get_layout(weft_fs *fs, const char *path, struct weft_layout *layout);
int weft_fget_layout(weft_file *file, struct weft_layout *layout);

/* Sets a directory's default (NULL removes it), or the layout of a file that was never written. */
int weft_set_layout(weft_fs *fs, const char *path, const struct weft_layout *layout);

/* ---- Files -------------------------------------------------------------------------------------------- */

/* flags as of open(2): O_RDONLY, O_WRONLY, O_RDWR with O_CREAT, O_EXCL, O_TRUNC, O_APPEND, O_NOFOLLOW,
 * O_SYNC, O_DSYNC. mode counts with O_CREAT, and is not changed by the umask. */
weft_file *weft_open(weft_fs *fs, const char *path, int flags, mode_t mode);

/* As weft_open; a file that this call creates gets `layout` (NULL: as by default). */
weft_file *weft_open_layout(weft_fs *fs, const char *path, int flags, mode_t mode, const struct weft_layout *layout);

/* As weft_open_layout with O_RDWR | O_CREAT | O_TRUNC. */
weft_file *weft_creat(weft_fs *fs, const char *path, mode_t mode, const struct weft_layout *layout);

/* Reports size and times of what was written, and closes. The handle is gone also when it fails. */
int weft_close(weft_file *file);

/* Passes an open file to other processes: one opens it, and sends the others a few bytes by whatever means
 * the program has. Each of them opens the file by these with one message to the metadata server, without a
 * walk along the path and without a check of permissions.
 *
 *     char open_file[WEFT_FILE_EXPORT_MAX] = { 0 };
 *     if (rank == 0) {
 *         file = weft_open(fs, "/input", O_RDONLY, 0);
 *         weft_file_export(file, open_file, sizeof open_file);
 *     }
 *     MPI_Bcast(open_file, sizeof open_file, MPI_BYTE, 0, comm);
 *     if (rank != 0)
 *         file = weft_file_import(fs, open_file, sizeof open_file);
 *
 * The bytes are of use to who has the same key (and, without a key, to the same user), for at least an
 * hour, also when the file was renamed or closed meanwhile. They are a secret: who has them and the key
 * may do what this handle may. */
#define WEFT_FILE_EXPORT_MAX 512

/* Writes a description of the open file into `buffer`; returns how many bytes it has (WEFT_FILE_EXPORT_MAX
 * at most; with `bytes` 0 nothing is written). ERANGE where the buffer is too small. */
ssize_t weft_file_export(weft_file *file, void *buffer, size_t bytes);

/* Opens a file by a description: to read, to write and O_APPEND and O_SYNC as the handle that was
 * exported, with the cursor at 0 and without a view, locks or other settings. Bytes behind the description
 * do not matter. EINVAL where it is none, is cut short, or is of another cluster; EKEYEXPIRED where it is
 * too old, was changed, or is of another key; ESTALE where the file is gone. */
weft_file *weft_file_import(weft_fs *fs, const void *buffer, size_t bytes);

/* ---- One open for many processes ---------------------------------------------------------------------- */

/* As weft_file_export and weft_file_import, and no process but the first asks the metadata server: its open
 * covers the handles of all others. However many they are, there is one open and one close.
 *
 *     if (rank == 0) {
 *         file = weft_open(fs, "/results", O_RDWR | O_CREAT, 0644);
 *         weft_file_share(file, open_file, sizeof open_file);
 *     }
 *     MPI_Bcast(open_file, sizeof open_file, MPI_BYTE, 0, comm);
 *     if (rank != 0)
 *         file = weft_file_import_shared(fs, open_file, sizeof open_file);
 *     ... weft_pwrite(file, ...) ...
 *     struct weft_written written, all;
 *     weft_get_written(file, &written);
 *     MPI_Reduce(&written, &all, 3, MPI_UINT64_T, MPI_MAX, 0, comm);
 *     rank == 0 ? weft_close_shared(file, &all) : weft_close(file);
 *
 * The process that shares the file closes it last. Handles that are used after that read and write what
 * nobody keeps: the size of the file may then be too small, and data of a removed file goes. Where a process
 * dies before it could tell what it wrote, weft_close asks the I/O servers for the end of the file. The first
 * lock, or append, through a handle makes it an open of its own, with a message to the metadata server.
 * weft_fdatasync of it makes durable what is on the I/O servers; weft_fsync also the metadata server's part. */

/* As weft_file_export, for weft_file_import_shared too. */
ssize_t weft_file_share(weft_file *file, void *buffer, size_t bytes);

/* A handle that the open of another process covers, by what weft_file_share gave there. No server is asked;
 * EINVAL where the bytes are not from weft_file_share. */
weft_file *weft_file_import_shared(weft_fs *fs, const void *buffer, size_t bytes);

/* What was written through a handle and is not reported. The greatest value of each member over all
 * handles is what was written through all. */
struct weft_written {
    uint64_t end_bytes; /* end of the furthest byte that was written */
    uint64_t touch;     /* 1: the time of modification is to be set */
    uint64_t unsure;    /* 1: a write failed, and may have come further */
};
int weft_get_written(weft_file *file, struct weft_written *written);

/* Notes what others have written, for the next weft_flush, weft_fsync or weft_close of the handle that was
 * shared. */
int weft_note_written(weft_file *file, const struct weft_written *others);

/* Notes that another process has set the size of the file: an end beyond it is not reported. */
int weft_note_size(weft_file *file, off_t bytes);

/* As weft_close, of the handle that was shared, where `others` is all that others have written. It asks I/O
 * servers for the end of the file only if that is unsure. */
int weft_close_shared(weft_file *file, const struct weft_written *others);

/* Adds to the counter of the open file, or sets it; returns what it was before, from 0 to 2^63 - 1. The
 * metadata server keeps one counter for each open, from 0 on, for all handles that come from it: by
 * weft_file_import and by weft_file_import_shared. Another open of the file has another counter. Each change
 * is done once, whatever fails. -1 with EINVAL where the counter would leave its range; ESTALE once the file
 * was closed where it was opened; EOPNOTSUPP from a metadata server that is too old.
 *
 *     weft_pwrite(file, record, bytes, weft_fetch_add(file, bytes));     a shared file pointer */
int64_t weft_fetch_add(weft_file *file, int64_t add);
int64_t weft_fetch_set(weft_file *file, int64_t value);

/* At the cursor, through the view if one is set. */
ssize_t weft_read(weft_file *file, void *buffer, size_t bytes);
ssize_t weft_write(weft_file *file, const void *buffer, size_t bytes);

/* Moves the cursor. Beside SEEK_SET, SEEK_CUR and SEEK_END: SEEK_DATA to the next data at or behind
 * `offset`, SEEK_HOLE to the next hole, which the end of the file is at the latest; ENXIO from there on,
 * or where no data follows. */
off_t weft_lseek(weft_file *file, off_t offset, int whence);

/* At an offset of the file, whatever view is set. */
ssize_t weft_pread(weft_file *file, void *buffer, size_t bytes, off_t offset);
ssize_t weft_pwrite(weft_file *file, const void *buffer, size_t bytes, off_t offset);

/* Many pieces of memory, one contiguous part of the file: none of them is copied. */
ssize_t weft_readv(weft_file *file, const struct iovec *pieces, int count);
ssize_t weft_writev(weft_file *file, const struct iovec *pieces, int count);
ssize_t weft_preadv(weft_file *file, const struct iovec *pieces, int count, off_t offset);
ssize_t weft_pwritev(weft_file *file, const struct iovec *pieces, int count, off_t offset);

/* ---- List I/O ----------------------------------------------------------------------------------------- */

/* Many pieces of memory and many pieces of the file in one operation. The pieces of memory in their order
 * and those of the file in theirs are two cuts of the same stream of bytes; they may be cut differently,
 * but must have the same sum.
 *
 *     memory:  [---- 6 ----] [-- 4 --]
 *     file:    [2] [---- 5 ----] [ 3 ]
 *
 * Lists may be of any length, need not be sorted, and may have pieces of no bytes. Returns the bytes
 * written, or the bytes read that are below the end of the file; the memory of those that are not is
 * filled with zeros. Where pieces of memory overlap in a read, or pieces of the file in a write, each byte
 * is one of those that were meant for it. */
ssize_t weft_readv_list(weft_file *file,
                        size_t memory_count, void *const memory_offsets[], const size_t memory_lengths[],
                        size_t file_count, const int64_t file_offsets[], const int64_t file_lengths[]);
ssize_t weft_writev_list(weft_file *file,
                         size_t memory_count, const void *const memory_offsets[], const size_t memory_lengths[],
                         size_t file_count, const int64_t file_offsets[], const int64_t file_lengths[]);

/* The same with the allocations that the memory is part of, so that these are registered for RDMA instead
 * of every piece by itself: for the rows of a tile, the whole array. Every piece must lie in one of them
 * (else EINVAL); one may be named more than once. */
ssize_t weft_readv_list_alloc(weft_file *file,
                              size_t memory_count, void *const memory_offsets[], const size_t memory_lengths[],
                              size_t allocation_count, void *const allocation_offsets[],
                              const size_t allocation_lengths[],
                              size_t file_count, const int64_t file_offsets[], const int64_t file_lengths[]);
ssize_t weft_writev_list_alloc(weft_file *file,
                               size_t memory_count, const void *const memory_offsets[], const size_t memory_lengths[],
                               size_t allocation_count, const void *const allocation_offsets[],
                               const size_t allocation_lengths[],
                               size_t file_count, const int64_t file_offsets[], const int64_t file_lengths[]);

/* ---- Types -------------------------------------------------------------------------------------------- */

/* A type says which bytes, in which order, without listing them: as an MPI datatype does, it may be of
 * millions of pieces and is a few words in memory and on the wire. A type has a size (bytes that are
 * moved) and an extent (from one element to the next of an array of it).
 *
 *     vector(3, 2, 4, e):   [e][e] .  . [e][e] .  . [e][e]            size 6 e, extent 10 e
 *
 * A new type keeps what it needs of those it is made of; each is given back with weft_type_free.
 * Displacements and strides may be negative. */
typedef struct weft_type weft_type;

/* `bytes` adjacent bytes: an element of anything. */
weft_type *weft_type_bytes(uint64_t bytes);

/* `count` elements, one after the other. */
weft_type *weft_type_contiguous(uint64_t count, const weft_type *element);

/* `count` blocks of `block_count` elements; from one block to the next, `stride` elements or bytes. */
weft_type *weft_type_vector(uint64_t count, uint64_t block_count, int64_t stride_elements, const weft_type *element);
weft_type *weft_type_hvector(uint64_t count, uint64_t block_count, int64_t stride_bytes, const weft_type *element);

/* `count` blocks of block_counts[i] elements, displaced by displacements[i] elements or bytes. */
weft_type *weft_type_indexed(size_t count, const int64_t displacements[], const uint64_t block_counts[],
                             const weft_type *element);
weft_type *weft_type_hindexed(size_t count, const int64_t displacements_bytes[], const uint64_t block_counts[],
                              const weft_type *element);

/* As weft_type_hindexed, with a type for each block. */
weft_type *weft_type_struct(size_t count, const int64_t displacements_bytes[], const uint64_t block_counts[],
                            const weft_type *const types[]);

/* The block of `counts` elements from index `starts` on of an array of `dims` elements; its extent is the
 * whole array's. */
enum weft_order {
    WEFT_ORDER_C = 0,      /* the last index varies fastest */
    WEFT_ORDER_FORTRAN = 1 /* the first one */
};
weft_type *weft_type_subarray(size_t dimensions, const uint64_t dims[], const uint64_t starts[], const uint64_t counts[],
                              enum weft_order order, const weft_type *element);

/* The same bytes with another beginning and extent, so that elements follow each other otherwise. */
weft_type *weft_type_resized(int64_t lower_bound_bytes, int64_t extent_bytes, const weft_type *element);

/* Bytes that are moved; -1 for NULL. */
int64_t weft_type_size(const weft_type *type);

/* Where an element begins and how many bytes it spans, holes and all. Either may be NULL. */
int weft_type_extent(const weft_type *type, int64_t *lower_bound_bytes, int64_t *extent_bytes);

int weft_type_free(weft_type *type);

/* Moves `memory_count` elements of `memory_type` at `memory` from or to `file_count` elements of
 * `file_type` from byte `offset` of the file on; the two sides must have the same number of bytes. Where
 * `file_type` is NULL (and `file_count` 0), the file side is as many bytes as the memory has, from
 * position `offset` of the view on: of the file itself where none is set. Else as weft_readv_list and
 * weft_writev_list; but a read of one contiguous range leaves memory beyond the end of the file as it was. */
ssize_t weft_read_typed(weft_file *file, void *memory, uint64_t memory_count, const weft_type *memory_type,
                        off_t offset, uint64_t file_count, const weft_type *file_type);
ssize_t weft_write_typed(weft_file *file, const void *memory, uint64_t memory_count, const weft_type *memory_type,
                         off_t offset, uint64_t file_count, const weft_type *file_type);

/* ---- Views -------------------------------------------------------------------------------------------- */

/* A view shows some bytes of the file as if they were all, one after the other: those of `type`, repeated
 * for ever, from `displacement` on. weft_read, weft_write and weft_lseek go through it, and
 * weft_read_typed and weft_write_typed where their file_type is NULL. The displacements in the type must
 * not be negative or decrease. It moves the cursor to the view's beginning; with NULL for `type` the whole
 * file is seen again. */
int weft_set_view(weft_file *file, off_t displacement, const weft_type *type);

/* The partitioned-file view: of every stride_bytes of the file from `offset` on, the first group_bytes.
 * Process p of n sees its part of interleaved records of r bytes with { p * r, r, n * r }. */
struct weft_partition {
    uint64_t offset;
    uint64_t group_bytes;
    uint64_t stride_bytes; /* at least group_bytes */
};

/* The view of a partition; NULL: the whole file again. */
int weft_set_partition(weft_file *file, const struct weft_partition *partition);

/* ---- How pieces are accessed -------------------------------------------------------------------------- */

/* Of requests with pieces; contiguous ones are the same whatever is chosen. Zero-initialised it is the
 * default, which is right for most. */
enum weft_method {
    WEFT_METHOD_LIST = 0,     /* all pieces in one request for each server and window */
    WEFT_METHOD_MULTIPLE = 1, /* a request for each piece of the file, one after the other */
    WEFT_METHOD_SIEVE = 2     /* reads: what spans the pieces, and copies of these; writes: as multiple */
};
enum weft_movement {
    WEFT_MOVEMENT_AUTO = 0,     /* packed where pieces are small, else direct */
    WEFT_MOVEMENT_MULTIPLE = 1, /* a message for each piece of memory */
    WEFT_MOVEMENT_PACK = 2,     /* through a buffer */
    WEFT_MOVEMENT_DIRECT = 3    /* gathered and scattered */
};
enum weft_sieving {
    WEFT_SIEVING_AUTO = 0,  /* servers choose by their cost model */
    WEFT_SIEVING_EACH = 1,  /* an access to the data file for each piece */
    WEFT_SIEVING_SIEVE = 2, /* few large accesses, and copies */
    WEFT_SIEVING_MAPPED = 3 /* through mapped pages */
};
struct weft_access {
    enum weft_method method;
    enum weft_movement movement;
    enum weft_sieving sieving;
    int reserved;         /* 0 */
    uint64_t sieve_bytes; /* buffer of WEFT_METHOD_SIEVE; 0: as by default */
};

/* For what is begun behind it through this handle. NULL: as by default. */
int weft_set_access(weft_file *file, const struct weft_access *access);
int weft_get_access(weft_file *file, struct weft_access *access);

/* What reads and writes through this handle have cost, since it was opened. */
struct weft_io_stats {
    uint64_t requests;       /* to I/O servers, answered */
    uint64_t request_bytes;  /* bytes of these messages, without data */
    uint64_t moved_bytes;    /* bytes of data between servers and this client */
    uint64_t server_reads;   /* accesses of the servers to their data files that read … */
    uint64_t server_writes;  /* … and that wrote */
    uint64_t accessed_bytes; /* bytes of both */
    uint64_t busy_ns;        /* time of servers, summed over these */
    uint64_t methods;        /* ways they chose: 2 each, 4 sieve, 8 mapped */
};
int weft_get_io_stats(weft_file *file, struct weft_io_stats *stats);

/* ---- Sizes and durability ----------------------------------------------------------------------------- */

int weft_ftruncate(weft_file *file, off_t bytes);
int weft_truncate(weft_fs *fs, const char *path, off_t bytes);

/* Frees the space under a range, which reads as zeros afterwards. */
int weft_punch(weft_file *file, off_t offset, off_t bytes);

/* Reserves space; the file grows to the range's end unless keep_size. */
int weft_allocate(weft_file *file, off_t offset, off_t bytes, int keep_size);

/* As fallocate(2): mode 0, FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, or
 * FALLOC_FL_ZERO_RANGE with or without FALLOC_FL_KEEP_SIZE; EOPNOTSUPP else. Where a server is full
 * (ENOSPC), the file stays as it is. */
int weft_fallocate(weft_file *file, int mode, off_t offset, off_t bytes);

/* Copies a range of one file into another, or elsewhere into the same one, holes as holes; returns the
 * bytes copied, fewer than asked for only at the end of `from`. Servers copy by themselves where both
 * ranges lie alike on them; else the bytes go through this process. EINVAL where two ranges of one file
 * overlap. Both files are of one connection. */
ssize_t weft_copy_range(weft_file *from, off_t from_offset, weft_file *to, off_t to_offset, size_t bytes);

/* Makes durable what was written: weft_fsync with size and times. */
int weft_fsync(weft_file *file);
int weft_fdatasync(weft_file *file);

/* Lets others see size and time of what was written, without making it durable. */
int weft_flush(weft_file *file);

/* ---- Locks -------------------------------------------------------------------------------------------- */

/* Locks on bytes, as fcntl(2): command is F_SETLK, F_SETLKW or F_GETLK for locks of this process,
 * F_OFD_SETLK, F_OFD_SETLKW or F_OFD_GETLK (with _GNU_SOURCE) for those of this open file. They hold
 * between all clients and mounts. EAGAIN where another has them; EDEADLK where a wait would never end;
 * EINTR where a signal ended it; EIO once locks were lost, since this client was not there for too long.
 * Locks of the process end when it closes any of its handles of the file; a forked child has none. */
int weft_fcntl_lock(weft_file *file, int command, struct flock *lock);

/* A lock on the whole file, as flock(2): LOCK_SH, LOCK_EX or LOCK_UN, with LOCK_NB not to wait. It is this
 * open file's. */
int weft_flock(weft_file *file, int operation);

/* ---- Reads and writes that go on while the program does something else -------------------------------- */

/* weft_start_X begins what weft_X does, and sends at once what servers and connections take without a
 * wait. While requests to a server are under way, further ones of 16 KiB or less leave in groups of 8, or
 * with the next test or wait: many small operations then cost few system calls. The memory must stay valid,
 * and untouched in a read, until weft_test or a wait has reported the end. The lists themselves are copied.
 *
 *     for (i = 0; i < 32; i++)
 *         ops[i] = weft_start_pread(file, block[i], 4096, offset[i]);
 *     weft_wait_all(32, ops, results);         all are under way together
 *
 * There is no thread behind it: an operation moves on in the calls that test it or wait for it. Over
 * shared memory and RDMA servers move data in between by themselves; over TCP they do as far as the
 * buffers of the connection go. The time that a server has to answer (timeout_ms) counts from the
 * beginning of a wait. */
weft_op *weft_start_pread(weft_file *file, void *buffer, size_t bytes, off_t offset);
weft_op *weft_start_pwrite(weft_file *file, const void *buffer, size_t bytes, off_t offset);
weft_op *weft_start_readv_list(weft_file *file,
                               size_t memory_count, void *const memory_offsets[], const size_t memory_lengths[],
                               size_t file_count, const int64_t file_offsets[], const int64_t file_lengths[]);
weft_op *weft_start_writev_list(weft_file *file,
                                size_t memory_count, const void *const memory_offsets[], const size_t memory_lengths[],
                                size_t file_count, const int64_t file_offsets[], const int64_t file_lengths[]);
weft_op *weft_start_readv_list_alloc(weft_file *file,
                                     size_t memory_count, void *const memory_offsets[], const size_t memory_lengths[],
                                     size_t allocation_count, void *const allocation_offsets[],
                                     const size_t allocation_lengths[],
                                     size_t file_count, const int64_t file_offsets[], const int64_t file_lengths[]);
weft_op *weft_start_writev_list_alloc(weft_file *file,
                                      size_t memory_count, const void *const memory_offsets[],
                                      const size_t memory_lengths[],
                                      size_t allocation_count, const void *const allocation_offsets[],
                                      const size_t allocation_lengths[],
                                      size_t file_count, const int64_t file_offsets[], const int64_t file_lengths[]);
weft_op *weft_start_read_typed(weft_file *file, void *memory, uint64_t memory_count, const weft_type *memory_type,
                               off_t offset, uint64_t file_count, const weft_type *file_type);
weft_op *weft_start_write_typed(weft_file *file, const void *memory, uint64_t memory_count,
                                const weft_type *memory_type, off_t offset, uint64_t file_count,
                                const weft_type *file_type);
weft_op *weft_start_fetch_add(weft_file *file, int64_t add);

/* 1 when it has ended (*result is what the blocking call would have returned, with errno; *op becomes
 * NULL), 0 while it goes on, -1 where the call makes no sense. */
int weft_test(weft_op **op, ssize_t *result);

/* Waits for the end; returns what the blocking call would have returned. *op becomes NULL. */
ssize_t weft_wait(weft_op **op);

/* Waits for all (NULLs are skipped), and drives all of them together, of whatever file systems they are; 0
 * if none failed. Each has its own result; errno and weft_last_error() are those of the last one that
 * failed. `results` may be NULL. */
int weft_wait_all(size_t count, weft_op *ops[], ssize_t results[]);

/* Waits until at least one has ended (NULLs are skipped), and drives all of them together; how many have
 * ended, 0 if all are NULL, -1 where the call makes no sense. Of each that has ended ops[i] becomes NULL and
 * results[i] what the blocking call would have returned; errno and weft_last_error() are those of the last one
 * that failed. The others go on: a program that starts as many new ones as have ended always has `count` under
 * way. `results` may be NULL. */
ssize_t weft_wait_some(size_t count, weft_op *ops[], ssize_t results[]);

/* ---- Memory ------------------------------------------------------------------------------------------- */

/* Memory that servers of the same host reach without a copy, and that is registered for RDMA for as long
 * as it lives. Page-aligned, zeroed. Any other memory works as well, more slowly. */
void *weft_mem_alloc(weft_fs *fs, size_t bytes);

/* Gives it back; `memory` as returned by weft_mem_alloc, or NULL. */
int weft_mem_free(void *memory);

/* Makes memory of the program's own known to every RDMA adapter that this process uses, now or later,
 * until it is unregistered: no read or write with it registers or looks up anything again, also where the
 * system does not let the library watch other memory.
 *
 *     weft_mem_register(fs, array, bytes);
 *     ... weft_pwrite(file, array + at, ...) ...
 *     weft_mem_unregister(array);
 *     free(array);
 *
 * The memory must be writable, and must not be unmapped or mapped anew before it is unregistered. Its
 * pages are pinned as soon as an adapter is in use, and count against RLIMIT_MEMLOCK: where an adapter
 * refuses now, this fails with its errno (ENOMEM: too much) and nothing is registered; where one refuses
 * that comes later, the memory is used like any other, and `weft status` says so. Without RDMA it costs
 * nothing. What is registered more than once must be unregistered as often. A forked child begins with
 * nothing registered. */
int weft_mem_register(weft_fs *fs, void *memory, size_t bytes);

/* Takes it back; `memory` as given to weft_mem_register (else EINVAL). Operations with it that are under
 * way go on. */
int weft_mem_unregister(void *memory);

/* ---- Names and attributes ----------------------------------------------------------------------------- */

int weft_stat(weft_fs *fs, const char *path, struct stat *status);
int weft_lstat(weft_fs *fs, const char *path, struct stat *status);
int weft_fstat(weft_file *file, struct stat *status);
int weft_access(weft_fs *fs, const char *path, int mode);

int weft_mkdir(weft_fs *fs, const char *path, mode_t mode);
int weft_rmdir(weft_fs *fs, const char *path);
int weft_unlink(weft_fs *fs, const char *path);

/* flags as of renameat2(2): 0, 1 (RENAME_NOREPLACE), 2 (RENAME_EXCHANGE). */
int weft_rename(weft_fs *fs, const char *from, const char *to, unsigned int flags);
int weft_link(weft_fs *fs, const char *from, const char *to);
int weft_symlink(weft_fs *fs, const char *target, const char *path);

/* Up to `bytes` of the target, without a zero at its end; returns their number. */
ssize_t weft_readlink(weft_fs *fs, const char *path, char *target, size_t bytes);

int weft_chmod(weft_fs *fs, const char *path, mode_t mode);
int weft_chown(weft_fs *fs, const char *path, uid_t owner, gid_t group);
int weft_lchown(weft_fs *fs, const char *path, uid_t owner, gid_t group);

/* times[0] of access, times[1] of modification; NULL: now. UTIME_NOW and UTIME_OMIT as in utimensat(2);
 * flags: 0 or AT_SYMLINK_NOFOLLOW. */
int weft_utimens(weft_fs *fs, const char *path, const struct timespec times[2], int flags);
int weft_futimens(weft_file *file, const struct timespec times[2]);

struct weft_dirent {
    uint64_t ino;
    uint64_t cookie;    /* for weft_seekdir: go on after this entry */
    uint8_t type;       /* DT_REG, DT_DIR, … of dirent.h */
    char name[256];
};

/* Entries without "." and "..". */
weft_dir *weft_opendir(weft_fs *fs, const char *path);

/* The next entry, valid until the next call with this directory. NULL at the end (errno is 0 then) and on
 * errors. */
const struct weft_dirent *weft_readdir(weft_dir *dir);

/* The same, with what weft_lstat tells of the entry. Pages of some hundreds of entries are fetched with all of it, one
 * ahead: a directory is listed at little more than the cost of its names. Only st_blocks is less exact: it tells the space
 * that a file without holes of this size takes. Calls of both kinds may follow each other. */
const struct weft_dirent *weft_readdir_plus(weft_dir *dir, struct stat *status);

/* Goes on after an entry, or with the first one after 0. */
int weft_seekdir(weft_dir *dir, uint64_t cookie);
int weft_closedir(weft_dir *dir);

/* Extended attributes, as getxattr(2) and its family. */
ssize_t weft_getxattr(weft_fs *fs, const char *path, const char *name, void *value, size_t bytes);
int weft_setxattr(weft_fs *fs, const char *path, const char *name, const void *value, size_t bytes, int flags);
ssize_t weft_listxattr(weft_fs *fs, const char *path, char *names, size_t bytes);
int weft_removexattr(weft_fs *fs, const char *path, const char *name);

/* Space and files of the whole file system; in a directory tree with a quota that is shown so (weft quota set --df),
 * where the URL names a directory in it, of that tree. */
int weft_statvfs(weft_fs *fs, struct statvfs *space);

/* Makes durable what anybody has written to any file so far, whether it is open or closed, and all names,
 * attributes and sizes that were acknowledged so far. EIO also where a server may have lost what this
 * client wrote to files that it has closed. */
int weft_sync(weft_fs *fs);

#ifdef __cplusplus
}
#endif

#endif
