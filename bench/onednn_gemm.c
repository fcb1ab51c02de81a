/* The bar for the matrix kernels at many rows: oneDNN's bf16 matmul on the dense shapes of the full-size model, weights already in the
 * layout that oneDNN prefers. Built by bench/run-kernels.sh where libdnnl is installed. Prints: shape, rows, ms, GFLOP/s.
 * Usage: onednn_gemm THREADS; with 1 thread the time is processor time, as in `deepinfer bench`. */
#include <dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ROUNDS 7

#define CHECK(call)                                                                         \
    do {                                                                                    \
        dnnl_status_t status_ = (call);                                                     \
        if (status_ != dnnl_success) {                                                      \
            fprintf(stderr, "%s:%d: oneDNN status %d\n", __FILE__, __LINE__, (int)status_); \
            exit(1);                                                                        \
        }                                                                                   \
    } while (0)

static int threads;

static double seconds(void)
{
    struct timespec t;
    clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static dnnl_memory_t memory(const dnnl_memory_desc_t *md, dnnl_engine_t engine)
{
    dnnl_memory_t m;
    void *p;
    CHECK(dnnl_memory_create(&m, md, engine, DNNL_MEMORY_ALLOCATE));
    CHECK(dnnl_memory_get_data_handle(m, &p));
    uint16_t *v = p;
    for (size_t i = 0; i < dnnl_memory_desc_get_size(md) / 2; i++)
        v[i] = (uint16_t)(0x3C00 | (i * 2654435761u >> 8 & 0x80FF)); /* bf16 between 2^-7 and 2^-5, both signs */
    return m;
}

static void measure(dnnl_engine_t engine, dnnl_stream_t stream, const char *name, int m, int n, int k)
{
    dnnl_memory_desc_t a, b, c;
    dnnl_dims_t da = {m, k}, db = {k, n}, dc = {m, n};
    CHECK(dnnl_memory_desc_init_by_tag(&a, 2, da, dnnl_bf16, dnnl_ab));
    CHECK(dnnl_memory_desc_init_by_tag(&b, 2, db, dnnl_bf16, dnnl_format_tag_any));
    CHECK(dnnl_memory_desc_init_by_tag(&c, 2, dc, dnnl_f32, dnnl_ab));
    dnnl_matmul_desc_t desc;
    dnnl_primitive_desc_t pd;
    dnnl_primitive_t primitive;
    const char *impl = "";
    CHECK(dnnl_matmul_desc_init(&desc, &a, &b, NULL, &c));
    CHECK(dnnl_primitive_desc_create(&pd, &desc, NULL, engine, NULL));
    CHECK(dnnl_primitive_create(&primitive, pd));
    CHECK(dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &impl));
    const dnnl_memory_desc_t *bp = dnnl_primitive_desc_query_md(pd, dnnl_query_weights_md, 0);
    dnnl_exec_arg_t args[] = {
        {DNNL_ARG_SRC, memory(&a, engine)}, {DNNL_ARG_WEIGHTS, memory(bp, engine)}, {DNNL_ARG_DST, memory(&c, engine)}};
    double time[ROUNDS];
    for (int i = -1; i < ROUNDS; i++) {
        double start = seconds();
        CHECK(dnnl_primitive_execute(primitive, stream, 3, args));
        CHECK(dnnl_stream_wait(stream));
        time[i < 0 ? 0 : i] = seconds() - start;
    }
    qsort(time, ROUNDS, sizeof *time, by_value);
    double t = time[ROUNDS / 2];
    printf("| %-30s | %4d | %9.3f | %7.1f | %s |\n", name, m, t * 1e3, 2.0 * m * n * k / t * 1e-9, impl);
    fflush(stdout);
    for (int i = 0; i < 3; i++)
        dnnl_memory_destroy(args[i].memory);
    dnnl_primitive_destroy(primitive);
    dnnl_primitive_desc_destroy(pd);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int n, k;
    } shapes[] = {{"experts w1+w3 4608x5120", 4608, 5120},
                  {"experts w2 5120x2304", 5120, 2304},
                  {"wq_b 32768x1280", 32768, 1280},
                  {"wo_b 5120x8192", 5120, 8192}};
    static const int rows[] = {64, 128, 512};
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    threads = argc > 1 ? atoi(argv[1]) : 1; /* the caller sets OMP_NUM_THREADS to the same number */
    CHECK(dnnl_engine_create(&engine, dnnl_cpu, 0));
    CHECK(dnnl_stream_create(&stream, engine, dnnl_stream_default_flags));
    printf("| oneDNN %d.%d.%d bf16 matmul         | rows |        ms | GFLOP/s | implementation |\n|---|---|---|---|---|\n",
           dnnl_version()->major, dnnl_version()->minor, dnnl_version()->patch);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
            measure(engine, stream, shapes[i].name, rows[r], shapes[i].n, shapes[i].k);
    dnnl_stream_destroy(stream);
    dnnl_engine_destroy(engine);
    return 0;
}
