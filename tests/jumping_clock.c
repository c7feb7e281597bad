/*
 * A wall clock that jumps every seven seconds, by seconds, hours and days, forth and back, but by less than the week that
 * records and positions are kept. It is loaded into processes by LD_PRELOAD, and shows the same time in all of them: the
 * jump follows from the monotonic clock, which is left alone. Java's wall clock does not jump: Spark's timers would wait
 * for days.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

#define SECONDS_BETWEEN_JUMPS 7

static const time_t JUMPS_S[] = {0, 3 * 3600, -2 * 3600, 300, -40, 2 * 86400, -86400, -3 * 86400, 1, 3600};

#define JUMPS (sizeof JUMPS_S / sizeof *JUMPS_S)

/* The jump that this thread has seen last: the times until which it waits contain it. */
static _Thread_local time_t seen;

static time_t jump(void)
{
    struct timespec now;
    if (strcmp(program_invocation_short_name, "java") == 0)
        return 0;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    return seen = JUMPS_S[now.tv_sec / SECONDS_BETWEEN_JUMPS % JUMPS];
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int result = (int)syscall(SYS_clock_gettime, clock, now);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += jump();
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    int result = (int)syscall(SYS_gettimeofday, now, zone);
    if (result == 0)
        now->tv_sec += jump();
    return result;
}

time_t time(time_t *result)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result != NULL)
        *result = now.tv_sec;
    return now.tv_sec;
}

int timespec_get(struct timespec *now, int base)
{
    if (base == TIME_UTC)
        clock_gettime(CLOCK_REALTIME, now);
    return base == TIME_UTC ? base : 0;
}

static int wait_until(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *deadline)
{
    struct timespec end = *deadline;
    end.tv_sec -= seen;
    return pthread_cond_clockwait(condition, mutex, CLOCK_REALTIME, &end);
}

static int is_wall_time(const struct timespec *deadline)
{
    return deadline->tv_sec > 1000000000;
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict deadline)
{
    if (!is_wall_time(deadline))
        return pthread_cond_clockwait(condition, mutex, CLOCK_MONOTONIC, deadline);
    return wait_until(condition, mutex, deadline);
}

int cnd_timedwait(cnd_t *restrict condition, mtx_t *restrict mutex, const struct timespec *restrict deadline)
{
    switch (wait_until((pthread_cond_t *)condition, (pthread_mutex_t *)mutex, deadline)) {
    case 0:
        return thrd_success;
    case ETIMEDOUT:
        return thrd_timedout;
    default:
        return thrd_error;
    }
}
