/* Copies of records arrive whole and in order, from several threads. */
#include "server/engine_queue.h"

#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#define THREADS 3
#define RECORDS 3000

struct sender {
    struct di_engine_queue *queue;
    int sent, received;
};

static void push(struct sender *s, int i)
{
    char text[64], id[32], space[32];
    di_alternative alternatives[3] = {{i, 0.5f}, {i + 1, 0.25f}, {i + 2, 0.125f}};
    di_error err = {DI_ERR_IO, "broken", "here"};
    di_output o = {.kind = DI_OUTPUT_TEXT, .index = i, .text = text, .alternatives = alternatives, .n_alternatives = (uint32_t)i % 4};
    o.text_bytes = (size_t)snprintf(text, sizeof text, "%.*s%d", i % 40, "........................................", i);
    o.error = i % 5 == 0 ? &err : NULL;
    snprintf(id, sizeof id, "call_%d", i);
    snprintf(space, sizeof space, "%.*s", i % 9, "a::b::c::");
    o.call_id = i % 3 == 0 ? id : NULL;
    o.call_space = i % 3 == 0 ? space : NULL;
    assert_true(di_engine_queue_push(s->queue, s, &o, SIZE_MAX));
    memset(text, 'x', sizeof text); /* what was copied does not change any more */
    memset(id, 'x', sizeof id);
    memset(space, 'x', sizeof space);
    memset(alternatives, 0, sizeof alternatives);
    memset(&err, 'x', sizeof err);
}

static void *send_all(void *arg)
{
    struct sender *s = arg;
    for (; s->sent < RECORDS; s->sent++)
        push(s, s->sent);
    return NULL;
}

/* Whether the names of a call, which every third record is, are those that were sent. */
static bool names_are(const di_output *o, int i)
{
    char id[32], space[32];
    snprintf(id, sizeof id, "call_%d", i);
    snprintf(space, sizeof space, "%.*s", i % 9, "a::b::c::");
    return i % 3 ? !o->call_id && !o->call_space : strcmp(o->call_id, id) == 0 && strcmp(o->call_space, space) == 0;
}

static void take(void *ctx, void *to, const di_output *o)
{
    struct sender *s = to;
    char text[64];
    int i = s->received++;
    *(int *)ctx += 1;
    if (!o)
        return;
    int n = snprintf(text, sizeof text, "%.*s%d", i % 40, "........................................", i);
    assert_int_equal(o->index, i);
    assert_true(o->text_bytes == (size_t)n && strcmp(o->text, text) == 0);
    assert_true(names_are(o, i));
    assert_int_equal(o->n_alternatives, i % 4);
    for (int k = 0; k < i % 4; k++)
        assert_true(o->alternatives[k].id == i + k && o->alternatives[k].logprob == 0.5f / (float)(1 << k));
    assert_true(i % 5 ? !o->error : o->error && strcmp(o->error->message, "broken") == 0);
}

static void from_threads(void **state)
{
    struct di_engine_queue *q;
    struct sender senders[THREADS] = {0};
    pthread_t threads[THREADS];
    di_error err;
    int total = 0;
    (void)state;
    assert_int_equal(di_engine_queue_create(&q, &err), DI_OK);
    for (int i = 0; i < THREADS; i++) {
        senders[i] = (struct sender){.queue = q};
        assert_int_equal(pthread_create(&threads[i], NULL, send_all, &senders[i]), 0);
    }
    while (total < THREADS * RECORDS) {
        struct pollfd p = {di_engine_queue_fd(q), POLLIN, 0};
        assert_int_equal(poll(&p, 1, 60000), 1);
        di_engine_queue_drain(q, take, &total);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    struct pollfd p = {di_engine_queue_fd(q), POLLIN, 0};
    assert_int_equal(poll(&p, 1, 0), 0);
    di_engine_queue_destroy(q);
}

static void bounded(void **state)
{
    struct di_engine_queue *q;
    struct sender s = {0};
    di_output o = {.kind = DI_OUTPUT_TEXT, .text = "x", .text_bytes = 1};
    di_error err;
    int n = 0;
    (void)state;
    assert_int_equal(di_engine_queue_create(&q, &err), DI_OK);
    while (di_engine_queue_push(q, &s, &o, 10000))
        n++;
    assert_in_range(n, 10, 100);
    o.kind = DI_OUTPUT_FINISHED; /* must arrive */
    assert_true(di_engine_queue_push(q, &s, &o, 10000));
    assert_true(di_engine_queue_push(q, &s, NULL, 0));
    di_mem_fail_after(0);
    while (di_engine_queue_push(q, &s, NULL, 0)) /* until the buffer would have to grow */
        n++;
    di_mem_fail_after(UINT64_MAX);
    assert_true(di_engine_queue_push(q, &s, NULL, 0));
    struct pollfd p = {di_engine_queue_fd(q), POLLIN, 0};
    assert_int_equal(poll(&p, 1, 0), 1);
    di_engine_queue_destroy(q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(from_threads), cmocka_unit_test(bounded)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
