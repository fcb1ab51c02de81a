/* One question, answered in a chat turn: the request is JSON as for chat completions, a callback prints reasoning, text and calls.
 * usage: example_chat MODEL_DIRECTORY REQUEST.json */
#include <deepinfer.h>
#include <stdio.h>

static int on_output(void *user, const di_output *out)
{
    di_output_kind *before = user;
    if (out->kind == DI_OUTPUT_TOKEN)
        return 1; /* go on */
    if (out->kind == DI_OUTPUT_FINISHED) {
        printf("\n[%s]\n", out->reason == DI_REASON_ERROR ? out->error->message : di_end_reason_name(out->reason));
        return 1;
    }
    if (out->kind != *before)
        printf("%s", out->kind == DI_OUTPUT_REASONING ? "[reasoning] " : out->kind == DI_OUTPUT_TEXT ? "\n[answer] " : "\n[call] ");
    *before = out->kind;
    fwrite(out->text, 1, out->text_bytes, stdout);
    return fflush(stdout) == 0; /* nobody reads any more: cancel */
}

int main(int argc, char **argv)
{
    static char json[1 << 20];
    di_error err = {0};
    di_engine *engine = NULL;
    di_output_kind before = DI_OUTPUT_TOKEN;
    FILE *f = argc == 3 ? fopen(argv[2], "rb") : NULL;
    if (!f) {
        fprintf(stderr, "usage: example_chat MODEL_DIRECTORY REQUEST.json\n");
        return 2;
    }

    di_submission submission;
    di_submission_init(&submission, sizeof submission);
    submission.json = json;
    submission.json_bytes = fread(json, 1, sizeof json, f);
    submission.on_output = on_output;
    submission.user = &before;
    fclose(f);

    di_engine_config config;
    di_engine_config_init(&config, sizeof config);
    config.model = argv[1];
    config.context = 4096;
    config.max_batch = 1;
    di_status status = di_engine_open(&config, &engine, &err);
    if (status == DI_OK)
        status = di_engine_submit(engine, &submission, NULL, &err);
    if (status == DI_OK)
        status = di_engine_run(engine, &err);
    if (status != DI_OK)
        fprintf(stderr, "%s: %s %s\n", di_status_name(status), err.where, err.message);
    di_engine_close(engine);
    return status != DI_OK;
}
