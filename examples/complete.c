/* Continue one text, print it as it is written. usage: example_complete MODEL_DIRECTORY TEXT
 *
 * cc complete.c -I include -L build -ldeepinfer */
#include <deepinfer.h>
#include <stdio.h>
#include <string.h>

static int fail(const di_error *err)
{
    fprintf(stderr, "%s: %s%s%s\n", di_status_name(err->code), err->where, err->where[0] ? ": " : "", err->message);
    return 1;
}

static void print_record(const di_output *out)
{
    if (out->kind == DI_OUTPUT_TEXT)
        fwrite(out->text, 1, out->text_bytes, stdout);
    if (out->kind == DI_OUTPUT_FINISHED)
        printf("\n[%lld tokens of prompt, %lld of answer, %s]\n", (long long)out->prompt_tokens, (long long)out->completion_tokens,
               di_end_reason_name(out->reason));
    fflush(stdout);
}

int main(int argc, char **argv)
{
    di_error err = {0};
    di_engine *engine;
    int busy = 1;
    if (argc != 3) {
        fprintf(stderr, "usage: example_complete MODEL_DIRECTORY TEXT\n");
        return 2;
    }

    di_engine_config config;
    di_engine_config_init(&config, sizeof config);
    config.model = argv[1];
    config.context = 2048;
    config.max_batch = 1;
    if (di_engine_open(&config, &engine, &err) != DI_OK)
        return fail(&err);

    di_sampling_options sampling;
    di_sampling_options_init(&sampling, sizeof sampling);
    sampling.temperature = 0;
    sampling.max_tokens = 48;

    di_submission submission;
    di_submission_init(&submission, sizeof submission);
    submission.text = argv[2];
    submission.text_bytes = strlen(argv[2]);
    submission.sampling = &sampling;

    di_status status = di_engine_submit(engine, &submission, NULL, &err);
    while (status == DI_OK && busy) {
        status = di_engine_step(engine, &busy, &err);
        for (const di_output *out; (out = di_engine_poll(engine, 0)) != NULL; di_output_free(engine, out))
            print_record(out);
    }
    di_engine_close(engine);
    return status == DI_OK ? 0 : fail(&err);
}
