/* What the machine and the control groups of this process leave it (cgroup v2 and v1). `root` stands before /proc and /sys: "", or in tests
 * a directory with files like those. Any thread. */
#ifndef DI_BASE_MACHINE_H
#define DI_BASE_MACHINE_H

#include <stdint.h>

/* Processors that the control groups grant, rounded up; INT_MAX: they set no limit. */
int di_machine_quota(const char *root);
/* Bytes that can still be had without swapping: of the machine's memory, and below the limit of each control group. What the system can give
 * back (pages of files) counts as left. UINT64_MAX: unknown. */
uint64_t di_machine_memory(const char *root);

#endif
