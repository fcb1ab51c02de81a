/* Quotas and limits of control groups, from files as the system shows them. */
#define _GNU_SOURCE /* nftw, sched_setaffinity */
#include "base/machine.h"

#include "base/threads.h"

#include <ftw.h>
#include <limits.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char root[64];

static int remove_one(const char *path, const struct stat *s, int type, struct FTW *f)
{
    (void)s, (void)type, (void)f;
    return remove(path);
}

static int make_root(void **state)
{
    (void)state;
    strcpy(root, "/tmp/deepinfer-machine-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state)
{
    (void)state;
    return nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static void put(const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", root, name);
    for (char *slash = path + strlen(root) + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = 0;
        mkdir(path, 0755);
    }
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void test_nothing_is_known(void **state)
{
    (void)state;
    assert_int_equal(di_machine_quota(root), INT_MAX);
    assert_true(di_machine_memory(root) == UINT64_MAX);
    put("proc/self/cgroup", "");
    assert_int_equal(di_machine_quota(root), INT_MAX);
    put("proc/meminfo", "MemTotal:       8000000 kB\nMemFree:          100 kB\nMemAvailable:    2048 kB\n");
    assert_true(di_machine_memory(root) == 2048 << 10);
}

static void test_version_2(void **state)
{
    (void)state;
    put("proc/self/cgroup", "0::/box/inner\n");
    put("proc/meminfo", "MemAvailable:    1000000 kB\n");
    put("sys/fs/cgroup/box/inner/cpu.max", "max 100000\n");
    put("sys/fs/cgroup/box/inner/memory.max", "max\n");
    assert_int_equal(di_machine_quota(root), INT_MAX);
    assert_true(di_machine_memory(root) == UINT64_C(1000000) << 10);
    put("sys/fs/cgroup/box/cpu.max", "250000 100000\n"); /* the outer one counts, too */
    assert_int_equal(di_machine_quota(root), 3);
    put("sys/fs/cgroup/box/inner/cpu.max", "5000 100000\n");
    assert_int_equal(di_machine_quota(root), 1);
    put("sys/fs/cgroup/box/memory.max", "1000000\n");
    put("sys/fs/cgroup/box/memory.current", "700000\n");
    assert_true(di_machine_memory(root) == 300000);
    put("sys/fs/cgroup/box/memory.stat", "anon 100000\ninactive_file 200000\nactive_file 50000\nworkingset_refault_file 7\n");
    assert_true(di_machine_memory(root) == 550000);
    put("sys/fs/cgroup/box/memory.current", "2000000\n");
    assert_true(di_machine_memory(root) == 0);
}

static void test_version_1(void **state)
{
    (void)state;
    put("proc/self/cgroup", "12:pids:/a\n5:cpu,cpuacct:/slice/job\n4:memory:/slice/job\n2:cpuset:/x\n");
    put("proc/meminfo", "MemAvailable:    1000000 kB\n");
    put("sys/fs/cgroup/cpu/slice/job/cpu.cfs_quota_us", "-1\n");
    put("sys/fs/cgroup/cpu/slice/job/cpu.cfs_period_us", "100000\n");
    assert_int_equal(di_machine_quota(root), INT_MAX);
    put("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "150000\n"); /* as a container sees its own */
    put("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    assert_int_equal(di_machine_quota(root), 2);
    put("sys/fs/cgroup/memory/slice/job/memory.limit_in_bytes", "9223372036854771712\n"); /* none */
    put("sys/fs/cgroup/memory/slice/job/memory.usage_in_bytes", "1000\n");
    assert_true(di_machine_memory(root) == UINT64_C(1000000) << 10);
    put("sys/fs/cgroup/memory/slice/memory.limit_in_bytes", "500000\n");
    put("sys/fs/cgroup/memory/slice/memory.usage_in_bytes", "400000\n");
    put("sys/fs/cgroup/memory/slice/memory.stat", "inactive_file 1\ntotal_inactive_file 100000\ntotal_active_file 0\n");
    assert_true(di_machine_memory(root) == 200000);
}

static void test_this_machine(void **state)
{
    (void)state;
    assert_true(di_machine_quota("") >= 1);
    assert_true(di_machine_memory("") > 0);
    assert_true(di_cpu_count() >= 1 && di_cpu_count() <= di_machine_quota(""));
    cpu_set_t all, one;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        if (CPU_ISSET(cpu, &all)) {
            assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
            assert_int_equal(di_cpu_count(), 1);
            break;
        }
    }
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_nothing_is_known, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_version_2, make_root, remove_root),
        cmocka_unit_test_setup_teardown(test_version_1, make_root, remove_root),
        cmocka_unit_test(test_this_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
