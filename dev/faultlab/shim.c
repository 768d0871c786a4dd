// LD_PRELOAD: a wall clock that jumps, and a disk that is slow, for one program. FAULTLAB_SHIM names a folder with a
// file for it, "java" or "other", of two int64: what is added to the wall clock, in nanoseconds, and how long each write
// to a regular file takes, in microseconds. Monotonic clocks do not jump, as in reality.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

static int64_t zeros[2];
static volatile int64_t *told = zeros;
#define ADDED_NS told[0]
#define SLOW_US told[1]
#define NEXT(name) ((__typeof__(name) *)dlsym(RTLD_NEXT, #name))

__attribute__((constructor)) static void map(void) {
    char path[4096];
    const char *folder = getenv("FAULTLAB_SHIM"), *name = program_invocation_short_name;
    snprintf(path, sizeof path, "%s/%s", folder ? folder : "", strcmp(name, "java") ? "other" : "java");
    int fd = folder ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *found = fd < 0 ? MAP_FAILED : mmap(0, sizeof zeros, PROT_READ, MAP_SHARED, fd, 0);
    if (found != MAP_FAILED) told = found;
    if (fd >= 0) close(fd);
}

static void add(struct timespec *t, int64_t ns) {
    ns += t->tv_nsec;
    t->tv_sec += ns / 1000000000 - (ns % 1000000000 < 0);
    t->tv_nsec = ns % 1000000000 + (ns % 1000000000 < 0 ? 1000000000 : 0);
}

int clock_gettime(clockid_t id, struct timespec *t) {
    static __typeof__(clock_gettime) *next;
    if (!next) next = NEXT(clock_gettime);
    int failed = next(id, t);
    if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) add(t, ADDED_NS);
    return failed;
}

int timespec_get(struct timespec *t, int base) { return clock_gettime(CLOCK_REALTIME, t) ? 0 : base; }

int gettimeofday(struct timeval *restrict t, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    *t = (struct timeval){now.tv_sec, now.tv_nsec / 1000};
    return 0;
}

time_t time(time_t *t) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return t ? *t = now.tv_sec : now.tv_sec;
}

// Who waits until a time of the wall clock (librdkafka does) waits by the clock that it sees, as it jumps: in slices of
// 0.1 s, each of which may end as a spurious wake-up does. Times of a monotonic clock are small.
#define WAITS(name, condition, mutex, late, awake)                                             \
    int name(condition *restrict c, mutex *restrict m, const struct timespec *restrict t) {    \
        static __typeof__(name) *next;                                                         \
        if (!next) next = dlvsym(RTLD_NEXT, #name, "GLIBC_2.3.2"); /* x86-64 has an older one */ \
        if (!next) next = NEXT(name);                                                          \
        if (t->tv_sec < 1000000000) return next(c, m, t);                                      \
        struct timespec slice;                                                                 \
        clock_gettime(CLOCK_REALTIME, &slice);                                                 \
        int64_t left_ns = (t->tv_sec - slice.tv_sec) * 1000000000LL + t->tv_nsec - slice.tv_nsec; \
        add(&slice, (left_ns < 100000000 ? left_ns : 100000000) - ADDED_NS);                   \
        int ended = next(c, m, &slice);                                                        \
        return ended == late && left_ns > 100000000 ? awake : ended;                           \
    }
WAITS(pthread_cond_timedwait, pthread_cond_t, pthread_mutex_t, ETIMEDOUT, 0)
WAITS(cnd_timedwait, cnd_t, mtx_t, thrd_timedout, thrd_success)

static void slow(int fd) {
    struct stat s;
    int64_t us = SLOW_US;
    if (us > 0 && !fstat(fd, &s) && S_ISREG(s.st_mode)) usleep(us);
}

#define SLOW(type, name, parameters, arguments) \
    type name parameters {                      \
        static __typeof__(name) *next;          \
        if (!next) next = NEXT(name);           \
        slow(fd);                               \
        return next arguments;                  \
    }
SLOW(ssize_t, write, (int fd, const void *b, size_t n), (fd, b, n))
SLOW(ssize_t, pwrite64, (int fd, const void *b, size_t n, off64_t at), (fd, b, n, at))
SLOW(int, fsync, (int fd), (fd))
SLOW(int, fdatasync, (int fd), (fd))
