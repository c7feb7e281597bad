/*
 * Records what a process does to the files below one folder, for tests of power failures. Loaded with LD_PRELOAD.
 *
 * POWER_ROOT is the folder, and POWER_LOG the file that receives one entry per call: a header, the path or the data, and
 * for a rename the new path. Entries are written under a mutex that is also held during the call, so that their order
 * is the order of the calls. A sync has two entries, one before and one after it: only writes before the first one are
 * durable at the second one.
 *
 * The process can add marks, such as "acknowledged", with power_mark(), and let syncs fail with power_fail_syncs().
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPEN = 1, CLOSE, WRITE, TRUNCATE, SYNC_BEGIN, SYNC_END, RENAME, UNLINK, MAKE_FOLDER, REMOVE_FOLDER, SYNC_ALL,
       MARK, SENT, UNSUPPORTED };

struct header {
    uint32_t kind;
    int32_t fd;
    int64_t value; /* flags, position, size or result */
    uint32_t first_bytes;
    uint32_t second_bytes;
};

#define FDS_MAX 65536

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static char root[4096];
static size_t root_bytes;
static int log_fd = -1;
static int syncs_to_fail;
static unsigned char is_tracked[FDS_MAX];

__attribute__((constructor)) static void start(void) {
    const char *folder = getenv("POWER_ROOT"), *path = getenv("POWER_LOG");
    if (folder == NULL || path == NULL || strlen(folder) >= sizeof root)
        return;
    strcpy(root, folder);
    root_bytes = strlen(root);
    /* The first process records; the processes that it starts do not. */
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0600);
    log_fd = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 900);
    if (fd >= 0)
        syscall(SYS_close, fd);
}

static void fail(const char *reason) {
    fprintf(stderr, "recorder: %s\n", reason);
    abort();
}

static void record(uint32_t kind, int fd, int64_t value, const void *first, size_t first_bytes, const void *second,
                   size_t second_bytes) {
    struct header header = {kind, fd, value, (uint32_t)first_bytes, (uint32_t)second_bytes};
    struct iovec parts[] = {{&header, sizeof header}, {(void *)first, first_bytes}, {(void *)second, second_bytes}};
    int saved = errno;
    if (syscall(SYS_writev, log_fd, parts, 3) != (long)(sizeof header + first_bytes + second_bytes))
        fail("cannot write the log");
    errno = saved;
}

static int is_below_root(const char *path) {
    if (log_fd < 0 || path == NULL)
        return 0;
    return strncmp(path, root, root_bytes) == 0 && (path[root_bytes] == '/' || path[root_bytes] == 0);
}

static int tracks(int fd) { return log_fd >= 0 && fd >= 0 && fd < FDS_MAX && is_tracked[fd]; }

static long begin(void) { return pthread_mutex_lock(&mutex); }

static void end(void) {
    int saved = errno;
    pthread_mutex_unlock(&mutex);
    errno = saved;
}

static int open_at(int folder, const char *path, int flags, mode_t mode) {
    int tracked = is_below_root(path);
    if (!tracked)
        return (int)syscall(SYS_openat, folder, path, flags, mode);
    begin();
    int fd = (int)syscall(SYS_openat, folder, path, flags, mode);
    if (fd >= 0) {
        if (fd >= FDS_MAX)
            fail("too many open files");
        is_tracked[fd] = 1;
        record(OPEN, fd, flags, path, strlen(path), NULL, 0);
    }
    end();
    return fd;
}

#define OPENING(name, before, arguments_at)                                                                            \
    int name(before const char *path, int flags, ...) {                                                                \
        mode_t mode = 0;                                                                                               \
        if (flags & (O_CREAT | __O_TMPFILE)) {                                                                         \
            va_list list;                                                                                              \
            va_start(list, flags);                                                                                     \
            mode = va_arg(list, mode_t);                                                                               \
            va_end(list);                                                                                              \
        }                                                                                                              \
        return open_at(arguments_at, path, flags, mode);                                                               \
    }
#define NOTHING
#define COMMA_FOLDER int folder,
OPENING(open, NOTHING, AT_FDCWD)
OPENING(open64, NOTHING, AT_FDCWD)
OPENING(openat, COMMA_FOLDER, folder)
OPENING(openat64, COMMA_FOLDER, folder)
int __open_2(const char *path, int flags) { return open_at(AT_FDCWD, path, flags, 0); }
int __open64_2(const char *path, int flags) { return open_at(AT_FDCWD, path, flags, 0); }
int creat(const char *path, mode_t mode) { return open_at(AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, mode); }

int close(int fd) {
    if (!tracks(fd))
        return (int)syscall(SYS_close, fd);
    begin();
    is_tracked[fd] = 0;
    record(CLOSE, fd, 0, NULL, 0, NULL, 0);
    int result = (int)syscall(SYS_close, fd);
    end();
    return result;
}

static ssize_t write_parts(int fd, const struct iovec *parts, int count, off_t position, int is_positioned) {
    begin();
    if (!is_positioned) {
        struct stat found;
        int is_appending = (fcntl(fd, F_GETFL) & O_APPEND) != 0;
        position = is_appending && fstat(fd, &found) == 0 ? found.st_size : lseek(fd, 0, SEEK_CUR);
    }
    ssize_t written = is_positioned ? syscall(SYS_pwritev, fd, parts, count, (long)position, 0L)
                                    : syscall(SYS_writev, fd, parts, count);
    if (written > 0) {
        char *data = malloc((size_t)written);
        size_t copied = 0;
        if (data == NULL)
            fail("out of memory");
        for (int i = 0; i < count && copied < (size_t)written; i++) {
            size_t rest = (size_t)written - copied;
            size_t size = parts[i].iov_len < rest ? parts[i].iov_len : rest;
            memcpy(data + copied, parts[i].iov_base, size);
            copied += size;
        }
        record(WRITE, fd, position, data, copied, NULL, 0);
        free(data);
    }
    end();
    return written;
}

ssize_t write(int fd, const void *data, size_t size) {
    struct iovec part = {(void *)data, size};
    if (log_fd >= 0 && fd == STDOUT_FILENO) {
        begin();
        ssize_t written = syscall(SYS_write, fd, data, size);
        if (written > 0)
            record(SENT, fd, 0, data, (size_t)written, NULL, 0);
        end();
        return written;
    }
    return tracks(fd) ? write_parts(fd, &part, 1, 0, 0) : syscall(SYS_write, fd, data, size);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    return tracks(fd) ? write_parts(fd, parts, count, 0, 0) : syscall(SYS_writev, fd, parts, count);
}

#define WRITE_AT(name)                                                                                                 \
    ssize_t name(int fd, const void *data, size_t size, off_t position) {                                              \
        struct iovec part = {(void *)data, size};                                                                      \
        return tracks(fd) ? write_parts(fd, &part, 1, position, 1) : syscall(SYS_pwrite64, fd, data, size, position);  \
    }
WRITE_AT(pwrite)
WRITE_AT(pwrite64)

#define WRITE_PARTS_AT(name)                                                                                           \
    ssize_t name(int fd, const struct iovec *parts, int count, off_t position) {                                       \
        return tracks(fd) ? write_parts(fd, parts, count, position, 1)                                                 \
                          : syscall(SYS_pwritev, fd, parts, count, (long)position, 0L);                                \
    }
WRITE_PARTS_AT(pwritev)
WRITE_PARTS_AT(pwritev64)

#define WRITE_PARTS_AT_2(name)                                                                                         \
    ssize_t name(int fd, const struct iovec *parts, int count, off_t position, int flags) {                            \
        return tracks(fd) ? write_parts(fd, parts, count, position, 1)                                                 \
                          : syscall(SYS_pwritev2, fd, parts, count, (long)position, 0L, flags);                        \
    }
WRITE_PARTS_AT_2(pwritev2)
WRITE_PARTS_AT_2(pwritev64v2)

#define TRUNCATING(name)                                                                                               \
    int name(int fd, off_t size) {                                                                                     \
        if (!tracks(fd))                                                                                               \
            return (int)syscall(SYS_ftruncate, fd, size);                                                              \
        begin();                                                                                                       \
        int result = (int)syscall(SYS_ftruncate, fd, size);                                                            \
        if (result == 0)                                                                                               \
            record(TRUNCATE, fd, size, NULL, 0, NULL, 0);                                                              \
        end();                                                                                                         \
        return result;                                                                                                 \
    }
TRUNCATING(ftruncate)
TRUNCATING(ftruncate64)

static int sync_open(long call, int fd, uint32_t kind) {
    if (!tracks(fd))
        return (int)syscall(call, fd);
    begin();
    int fails = syncs_to_fail > 0 ? syncs_to_fail-- : 0;
    record(SYNC_BEGIN, fd, 0, NULL, 0, NULL, 0);
    end();
    int result = fails ? -1 : (int)syscall(call, fd);
    if (fails)
        errno = EIO;
    begin();
    record(kind, fd, result, NULL, 0, NULL, 0);
    end();
    return result;
}

int fsync(int fd) { return sync_open(SYS_fsync, fd, SYNC_END); }
int fdatasync(int fd) { return sync_open(SYS_fdatasync, fd, SYNC_END); }
int syncfs(int fd) { return sync_open(SYS_syncfs, fd, SYNC_ALL); }

void sync(void) {
    syscall(SYS_sync);
    if (log_fd < 0)
        return;
    begin();
    record(SYNC_ALL, -1, 0, NULL, 0, NULL, 0);
    end();
}

int renameat2(int from, const char *source, int to, const char *target, unsigned int flags) {
    if (!is_below_root(source) && !is_below_root(target))
        return (int)syscall(SYS_renameat2, from, source, to, target, flags);
    begin();
    int result = (int)syscall(SYS_renameat2, from, source, to, target, flags);
    if (result == 0)
        record(RENAME, -1, 0, source, strlen(source), target, strlen(target));
    end();
    return result;
}

int renameat(int from, const char *source, int to, const char *target) {
    return renameat2(from, source, to, target, 0);
}

int rename(const char *source, const char *target) { return renameat2(AT_FDCWD, source, AT_FDCWD, target, 0); }

int unlinkat(int folder, const char *path, int flags) {
    if (!is_below_root(path))
        return (int)syscall(SYS_unlinkat, folder, path, flags);
    begin();
    int result = (int)syscall(SYS_unlinkat, folder, path, flags);
    if (result == 0)
        record(flags & AT_REMOVEDIR ? REMOVE_FOLDER : UNLINK, -1, 0, path, strlen(path), NULL, 0);
    end();
    return result;
}

int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

int mkdirat(int folder, const char *path, mode_t mode) {
    if (!is_below_root(path))
        return (int)syscall(SYS_mkdirat, folder, path, mode);
    begin();
    int result = (int)syscall(SYS_mkdirat, folder, path, mode);
    if (result == 0)
        record(MAKE_FOLDER, -1, 0, path, strlen(path), NULL, 0);
    end();
    return result;
}

int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

/* Shared mappings can be written without a call. SQLite uses one, for the -shm file, which it rebuilds after a loss. */
#define MAPPING(name)                                                                                                  \
    void *name(void *address, size_t size, int protection, int flags, int fd, off_t position) {                        \
        if (tracks(fd) && (flags & MAP_SHARED) && (protection & PROT_WRITE)) {                                         \
            begin();                                                                                                   \
            record(UNSUPPORTED, fd, 0, "a shared mapping", 16, NULL, 0);                                               \
            end();                                                                                                     \
        }                                                                                                              \
        return (void *)syscall(SYS_mmap, address, size, protection, flags, fd, position);                              \
    }
MAPPING(mmap)
MAPPING(mmap64)

ssize_t send(int fd, const void *data, size_t size, int flags) {
    if (log_fd < 0)
        return syscall(SYS_sendto, fd, data, size, flags, NULL, 0);
    begin();
    ssize_t sent = syscall(SYS_sendto, fd, data, size, flags, NULL, 0);
    if (sent > 0)
        record(SENT, fd, 0, data, (size_t)sent, NULL, 0);
    end();
    return sent;
}

void power_mark(const char *text, size_t size) {
    if (log_fd < 0)
        return;
    begin();
    record(MARK, -1, 0, text, size, NULL, 0);
    end();
}

void power_fail_syncs(int count) {
    begin();
    syncs_to_fail = count;
    end();
}
