/* not run under TSan: no threads */
/* Pieces are what was counted, and in builds with red zones whoever leaves his own is stopped. */
#include "base/carve.h"
#include "base/mem.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#define PIECES 5
static const size_t sizes[PIECES] = {1, 64, 13 * 4, 0, 1000};

static size_t carve_all(struct di_carver *c, uint8_t *piece[PIECES])
{
    for (int i = 0; i < PIECES; i++)
        piece[i] = di_carve(c, sizes[i], 1);
    return c->used;
}

static struct di_carver make_region(bool unmarked)
{
    uint8_t *ignored[PIECES];
    struct di_carver count = {0};
    size_t size = carve_all(&count, ignored);
    for (int i = 0; i < PIECES; i++)
        assert_null(ignored[i]);
    struct di_carver c = {.base = di_malloc_aligned(size), .size = size, .unmarked = unmarked};
    assert_non_null(c.base);
    return c;
}

static void pieces_follow_each_other(void **state)
{
    (void)state;
    uint8_t *piece[PIECES];
    struct di_carver c = make_region(false);
    assert_int_equal(carve_all(&c, piece), c.size);
    for (int i = 0; i < PIECES; i++) {
        assert_int_equal((uintptr_t)piece[i] % 64, 0);
        memset(piece[i], i, sizes[i]);
        if (i > 0)
            assert_ptr_equal(piece[i], piece[i - 1] + (sizes[i - 1] + 63) / 64 * 64 + DI_CARVE_GAP);
    }
    assert_ptr_equal(c.base + c.used, piece[PIECES - 1] + 1024 + DI_CARVE_GAP);
    di_free_aligned(c.base);
}

/* A list of pieces is the same as its pieces one by one, times the rows. */
static void rows_of_pieces(void **state)
{
    (void)state;
    uint16_t *a, *first;
    double *b, *second;
    struct di_carver one = {0}, list = {0};
    const struct di_piece pieces[] = {{&a, 3, sizeof *a}, {&b, 5, sizeof *b}};
    di_carve(&one, 7 * 3, sizeof *a);
    di_carve(&one, 7 * 5, sizeof *b);
    di_carve_rows(&list, 7, pieces, 2);
    assert_int_equal(list.used, one.used);
    assert_null(a);
    list = one = (struct di_carver){.base = di_malloc_aligned(list.used)};
    assert_non_null(list.base);
    first = di_carve(&one, 7 * 3, sizeof *a);
    second = di_carve(&one, 7 * 5, sizeof *b);
    di_carve_rows(&list, 7, pieces, 2);
    assert_ptr_equal(a, first);
    assert_ptr_equal(b, second);
    di_free_aligned(list.base);
}

/* Would a write to p be let through? */
static bool may_write(const uint8_t *p)
{
#ifdef DI_RED_ZONES
    return !__asan_address_is_poisoned(p);
#else
    return p != NULL;
#endif
}

static void red_zones_stop_writes(void **state)
{
    (void)state;
    const bool stopped = DI_CARVE_GAP > 0;
    uint8_t *piece[PIECES];
    struct di_carver c = make_region(false), again = c, plain;
    carve_all(&c, piece);
    for (int i = 0; i < PIECES; i++) {
        assert_true(sizes[i] == 0 || may_write(piece[i] + sizes[i] - 1));
        if (!stopped && i == PIECES - 1)
            break;
        assert_int_equal(may_write(piece[i] + sizes[i]), !stopped);                                     /* right behind it */
        assert_int_equal(may_write(piece[i] + (sizes[i] + 63) / 64 * 64 + DI_CARVE_GAP - 1), !stopped); /* and right before the next */
    }
    /* Other pieces of the same memory: the old red zones are open, and those that nobody carved stay. */
    uint8_t *large = di_carve(&again, 500, 1);
    for (size_t i = 0; i < 500; i++)
        large[i] = 1;
    assert_int_equal(may_write(large + 500), !stopped);
    /* One that goes over all of it. */
    di_carve_open(&c);
    memset(c.base, 0, c.used);
    plain = make_region(true);
    carve_all(&plain, piece);
    memset(plain.base, 0, plain.used);
    di_free_aligned(plain.base);
    di_free_aligned(c.base);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_follow_each_other),
        cmocka_unit_test(rows_of_pieces),
        cmocka_unit_test(red_zones_stop_writes),
    };
    return cmocka_run_group_tests_name("carve", tests, NULL, NULL);
}
