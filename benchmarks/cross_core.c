// Measures how fast two cores write memory that the other one has just read:
// cc -O2 -pthread cross_core.c -o cross_core && ./cross_core
//
// Each of two threads, on separate cores, repeatedly copies 512 KiB into its buffer, waits for the other thread, and copies
// the other one's buffer, as ranks that reduce ordinary memory do. Prints GB/s of both copies.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { STAGE = 512 << 10, USER = 16 << 20, TIMES = 4000 };
static char *stages[2];
static _Atomic int arrived[2];
static double writing[2], reading[2];

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static void meet(long me, int count) {
    arrived[me] = count;
    while (arrived[!me] < count) {
    }
}

static void *run(void *which) {
    long me = (long)which;
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(me, &cores);
    sched_setaffinity(0, sizeof cores, &cores);
    char *user = malloc(USER);
    memset(user, 1, USER);
    for (int time = 0, at = 0; time < TIMES; time++, at = (at + STAGE) % USER) {
        double begin = now();
        memcpy(stages[me], user + at, STAGE);
        writing[me] += now() - begin;
        meet(me, 2 * time + 1);
        begin = now();
        memcpy(user + at, stages[!me], STAGE);
        reading[me] += now() - begin;
        meet(me, 2 * time + 2);
    }
    return NULL;
}

int main(void) {
    for (int core = 0; core < 2; core++) {
        stages[core] = aligned_alloc(4096, STAGE);
        memset(stages[core], 0, STAGE);
    }
    pthread_t other;
    pthread_create(&other, NULL, run, (void *)1);
    run(NULL);
    pthread_join(other, NULL);
    double bytes = (double)STAGE * TIMES / 1e9;
    printf("write %.1f and %.1f GB/s, read %.1f and %.1f GB/s\n", bytes / writing[0], bytes / writing[1],
           bytes / reading[0], bytes / reading[1]);
}
