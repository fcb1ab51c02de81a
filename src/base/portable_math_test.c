/* not run under TSan: no threads */
#include "base/philox.h"
#include "base/portable_math.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

/* Known answers published with the paper's reference implementation (Random123, kat_vectors). */
static void test_philox_known_answers(void **state)
{
    (void)state;
    static const struct {
        uint64_t key;
        uint32_t counter[4], want[4];
    } cases[] = {
        {0, {0, 0, 0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {UINT64_MAX, {~0u, ~0u, ~0u, ~0u}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x299f31d0a4093822u, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct di_philox c;
        memcpy(c.w, cases[i].counter, sizeof c.w);
        c = di_philox(cases[i].key, c);
        assert_memory_equal(c.w, cases[i].want, sizeof c.w);
    }
}

static double ulps(double got, long double want)
{
    double unit = nextafter(fabs((double)want), INFINITY) - fabs((double)want);
    return (double)(fabsl((long double)got - want) / (long double)unit);
}

static double random_unit(uint32_t i)
{
    return ((double)di_philox(7, (struct di_philox){{i, 0, 0, 0}}).w[0] + 0.5) * 0x1p-32;
}

static void test_accuracy(void **state)
{
    (void)state;
    double worst_exp = 0, worst_log = 0, worst_near_1 = 0;
    for (uint32_t i = 0; i < 1000000; i++) {
        double u = random_unit(i), x = (u - 0.5) * 1400, tiny = ldexp(1 - u * 0x1p-20, i % 3 == 0 ? 0 : (int)(i % 2000) - 1000);
        worst_exp = fmax(worst_exp, ulps(di_portable_exp(x), expl(x)));
        worst_exp = fmax(worst_exp, ulps(di_portable_exp(-u), expl(-u)));
        worst_log = fmax(worst_log, ulps(di_portable_log(u), logl(u)));
        worst_log = fmax(worst_log, ulps(di_portable_log(u * 1e300), logl(u * 1e300)));
        worst_near_1 = fmax(worst_near_1, ulps(di_portable_log(tiny), logl(tiny)));
    }
    assert_true(worst_exp < 2 && worst_log < 2 && worst_near_1 < 2);
    assert_true(worst_exp > 0 && worst_log > 0); /* the comparison does compare */
    assert_true(di_portable_exp(0) == 1.0 && di_portable_log(1) == 0.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_philox_known_answers), cmocka_unit_test(test_accuracy)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
