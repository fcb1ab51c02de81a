/* Which instruction sets this processor can run. */
#define _GNU_SOURCE /* syscall */
#include "backend/cpu/cpu.h"

#include <pthread.h>
#include <string.h>

static const char *const names[DI_ISA_COUNT] = {"ref", "avx2", "avx512", "avx512bf16", "amx"};

const char *di_cpu_isa_name(enum di_cpu_isa isa)
{
    return names[isa];
}

bool di_cpu_isa_by_name(const char *name, enum di_cpu_isa *out)
{
    for (int i = 0; i < DI_ISA_COUNT; i++)
        if (strcmp(name, names[i]) == 0) {
            *out = (enum di_cpu_isa)i;
            return true;
        }
    return false;
}

#if defined(__x86_64__)

#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

struct leaf {
    unsigned a, b, c, d;
};

static struct leaf cpuid(unsigned leaf, unsigned sub)
{
    struct leaf r = {0, 0, 0, 0};
    if ((unsigned)__get_cpuid_max(leaf & 0x80000000, NULL) >= leaf)
        __cpuid_count(leaf, sub, r.a, r.b, r.c, r.d);
    return r;
}

#define ALL(word, bits) (((word) & (bits)) == (bits))
#define BIT(n) (1u << (n))
#define STATE_AVX 0x6u /* XCR0: the registers that the system saves */
#define STATE_AVX512 0xE6u
#define STATE_AMX 0x600E6u

static unsigned saved_state(void)
{
    unsigned lo, hi;
    if (!(cpuid(1, 0).c & BIT(27))) /* OSXSAVE */
        return 0;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return lo;
}

/* Linux gives the tile registers to processes that ask for them. */
static bool amx_permitted(void)
{
#ifdef __linux__
    return syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* XTILEDATA */) == 0;
#else
    return false;
#endif
}

static bool cpuid_says(enum di_cpu_isa isa)
{
    struct leaf l1 = cpuid(1, 0), l7 = cpuid(7, 0), l71 = cpuid(7, 1);
    unsigned state = saved_state();
    switch (isa) {
    case DI_ISA_REF: return true;
    case DI_ISA_AVX2: /* FMA, F16C; AVX2, BMI2 */
        return ALL(state, STATE_AVX) && ALL(l1.c, BIT(12) | BIT(29)) && ALL(l7.b, BIT(5) | BIT(8));
    case DI_ISA_AVX512: /* F, DQ, BW, VL; VBMI, VNNI */
        return cpuid_says(DI_ISA_AVX2) && ALL(state, STATE_AVX512) && ALL(l7.b, BIT(16) | BIT(17) | BIT(30) | BIT(31)) &&
               ALL(l7.c, BIT(1) | BIT(11));
    case DI_ISA_AVX512BF16: return cpuid_says(DI_ISA_AVX512) && ALL(l71.a, BIT(5));
    case DI_ISA_AMX: /* BF16, TILE */
        return cpuid_says(DI_ISA_AVX512BF16) && ALL(state, STATE_AMX) && ALL(l7.d, BIT(22) | BIT(24)) && amx_permitted();
    case DI_ISA_COUNT: break;
    }
    return false;
}

/* Executes one vdpbf16ps in a child: a processor without it ends the child, not us. */
static bool trial_bf16(void)
{
    pid_t child = fork();
    if (child == 0) {
        __asm__ volatile("vpxord %%zmm0, %%zmm0, %%zmm0\n\t"
                         ".byte 0x62, 0xf2, 0x7e, 0x48, 0x52, 0xc0" /* vdpbf16ps zmm0, zmm0, zmm0 */
                         ::
                             : "xmm0");
        _exit(0);
    }
    int status = -1;
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

static bool usable[DI_ISA_COUNT];
static char list[64];

static void probe(void)
{
    for (int i = 0; i < DI_ISA_COUNT; i++) {
        usable[i] = cpuid_says((enum di_cpu_isa)i);
        if (i == DI_ISA_AVX512BF16 && !usable[i] && usable[DI_ISA_AVX512])
            usable[i] = trial_bf16();
        if (usable[i]) {
            strcat(list, i ? " " : "");
            strcat(list, names[i]);
        }
    }
}

/* The fastest that cpuid owns up to. vdpbf16ps at half the rate of fp32 FMA (Sapphire Rapids and its kin) would be no gain, but where it is
 * announced without AMX (Cooper Lake, Zen 4 and later) it is at least as fast. */
static enum di_cpu_isa best(void)
{
    enum di_cpu_isa isa = DI_ISA_COUNT;
    while (--isa > DI_ISA_REF && !cpuid_says(isa))
        ;
    return isa;
}

#else

static bool usable[DI_ISA_COUNT];
static char list[] = "ref";

static void probe(void)
{
    usable[DI_ISA_REF] = true;
}
static enum di_cpu_isa best(void)
{
    return DI_ISA_REF;
}

#endif

static pthread_once_t once = PTHREAD_ONCE_INIT;

bool di_cpu_isa_usable(enum di_cpu_isa isa)
{
    pthread_once(&once, probe);
    return usable[isa];
}

const char *di_cpu_isa_list(void)
{
    pthread_once(&once, probe);
    return list;
}

const char *di_cpu_isa_best(void)
{
    return names[best()];
}
