#include "base/machine.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PATH_BYTES 1024

/* The content of a small file as text; false if there is none. */
static bool read_text(char *text, size_t size, const char *directory, const char *name)
{
    char path[4 * PATH_BYTES];
    int length = snprintf(path, sizeof path, "%s/%s", directory, name);
    FILE *f = length > 0 && (size_t)length < sizeof path ? fopen(path, "re") : NULL;
    if (!f)
        return false;
    size_t n = fread(text, 1, size - 1, f);
    text[n] = 0;
    fclose(f);
    return n > 0;
}

/* A file with one number; `otherwise` if it has none ("max") or is missing. */
static int64_t number(const char *directory, const char *name, int64_t otherwise)
{
    char text[64];
    long long v;
    return read_text(text, sizeof text, directory, name) && sscanf(text, "%lld", &v) == 1 ? v : otherwise;
}

/* The number behind a name at the beginning of a line; 0 if there is none. */
static uint64_t field(const char *text, const char *name)
{
    size_t n = strlen(name);
    for (const char *line = text; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
        if (strncmp(line, name, n) == 0)
            return strtoull(line + n, NULL, 10);
    return 0;
}

/* ---------------------------------------------------------------- the groups of this process */

/* `controller`: of version 1, or "" for the one tree of version 2. Below where it is mounted, this process's group; false if it has none.
 * Lines of /proc/self/cgroup are number:controllers:path. */
static bool group_of(const char *groups, const char *controller, char path[PATH_BYTES])
{
    size_t n = strlen(controller);
    for (const char *line = groups; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        const char *names = strchr(line, ':'), *end = names ? strchr(names + 1, ':') : NULL;
        bool found = end && n == 0 && end == names + 1;
        for (const char *c = names; end && n && c < end && !found; c = strpbrk(c + 1, ",:"))
            found = strncmp(c + 1, controller, n) == 0 && (c[n + 1] == ',' || c[n + 1] == ':');
        if (!found)
            continue;
        snprintf(path, PATH_BYTES, "%.*s", (int)strcspn(end + 1, "\n"), end + 1);
        return true;
    }
    return false;
}

/* Ask every group from this process's own up to the top: in a container the upper ones may not be there. */
static void each_group(const char *root, const char *controller, void (*ask)(const char *directory, void *ctx), void *ctx)
{
    char groups[4096], path[PATH_BYTES], directory[3 * PATH_BYTES], proc[PATH_BYTES];
    snprintf(proc, sizeof proc, "%s/proc/self", root);
    if (!read_text(groups, sizeof groups, proc, "cgroup") || !group_of(groups, controller, path))
        return;
    for (;;) {
        snprintf(directory, sizeof directory, "%s/sys/fs/cgroup/%s%s", root, controller, path);
        ask(directory, ctx);
        char *last = strrchr(path, '/');
        if (!last || !path[0])
            return;
        *last = 0;
    }
}

/* ---------------------------------------------------------------- processors */

static void take_quota(int64_t quota, int64_t period, int *least)
{
    int64_t n = quota > 0 && period > 0 ? (quota + period - 1) / period : INT_MAX;
    *least = n < *least ? (int)n : *least;
}

static void ask_quota2(const char *directory, void *ctx)
{
    char text[64];
    long long quota, period;
    if (read_text(text, sizeof text, directory, "cpu.max") && sscanf(text, "%lld %lld", &quota, &period) == 2)
        take_quota(quota, period, ctx);
}

static void ask_quota1(const char *directory, void *ctx)
{
    take_quota(number(directory, "cpu.cfs_quota_us", -1), number(directory, "cpu.cfs_period_us", -1), ctx);
}

int di_machine_quota(const char *root)
{
    int least = INT_MAX;
    each_group(root, "", ask_quota2, &least);
    each_group(root, "cpu", ask_quota1, &least);
    return least;
}

/* ---------------------------------------------------------------- memory */

static void take_limit(int64_t limit, int64_t used, uint64_t reclaimable, uint64_t *least)
{
    if (limit < 0 || used < 0)
        return;
    uint64_t held = (uint64_t)used > reclaimable ? (uint64_t)used - reclaimable : 0;
    uint64_t left = (uint64_t)limit > held ? (uint64_t)limit - held : 0;
    *least = left < *least ? left : *least;
}

static void ask_memory2(const char *directory, void *ctx)
{
    char stat[8192] = "";
    read_text(stat, sizeof stat, directory, "memory.stat");
    take_limit(number(directory, "memory.max", -1), number(directory, "memory.current", -1),
               field(stat, "inactive_file ") + field(stat, "active_file "), ctx);
}

static void ask_memory1(const char *directory, void *ctx)
{
    char stat[8192] = "";
    read_text(stat, sizeof stat, directory, "memory.stat");
    take_limit(number(directory, "memory.limit_in_bytes", -1), number(directory, "memory.usage_in_bytes", -1),
               field(stat, "total_inactive_file ") + field(stat, "total_active_file "), ctx);
}

uint64_t di_machine_memory(const char *root)
{
    char text[8192], proc[PATH_BYTES];
    uint64_t least = UINT64_MAX, kib = 0;
    snprintf(proc, sizeof proc, "%s/proc", root);
    if (read_text(text, sizeof text, proc, "meminfo"))
        kib = field(text, "MemAvailable:");
    if (kib)
        least = kib << 10;
    each_group(root, "", ask_memory2, &least);
    each_group(root, "memory", ask_memory1, &least);
    return least;
}
