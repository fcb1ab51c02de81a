/* Any bytes as a request: a prompt or a sentence comes back, and the prompt is what its marks say. The first byte chooses dialect and
 * options, the rest is JSON text; bytes from 0x80 to 0x80 + N stand for pieces of requests, to reach deep into the converters. */
#include "text/chat.h"

#include "base/utf8.h"

#include <stdlib.h>

static const char *const pieces[] = {
    "{\"messages\":[",
    "{\"input\":[",
    "{\"role\":\"user\",\"content\":",
    "{\"role\":\"assistant\",\"content\":",
    "{\"role\":\"system\",\"content\":",
    "{\"role\":\"tool\",\"tool_call_id\":\"a\",\"content\":\"r\"}",
    "\"tool_calls\":[{\"id\":\"a\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":",
    "\"{\\\"k\\\": 1}\"}}]",
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":true,\"parameters\":",
    "}}]",
    "{\"type\":\"object\",\"properties\":{\"a\":",
    "{\"type\":\"string\"}",
    "{\"type\":\"array\",\"items\":",
    "{\"anyOf\":[",
    "{\"type\":\"text\",\"text\":\"t\"}",
    "{\"type\":\"image_url\",\"image_url\":{\"url\":\"data:image/png;base64,AAAA\"}}",
    "{\"type\":\"tool_use\",\"id\":\"a\",\"name\":\"f\",\"input\":",
    "{\"type\":\"tool_result\",\"tool_use_id\":\"a\",\"content\":",
    "{\"type\":\"tool_reference\",\"tool_name\":\"g\"}",
    "\"tools\":[{\"name\":\"g\",\"input_schema\":{\"type\":\"object\"},\"defer_loading\":true},",
    "{\"type\":\"tool_addition\",\"tool\":{\"type\":\"tool_reference\",\"name\":\"g\"}}",
    "{\"type\":\"thinking\",\"thinking\":\"t\"}",
    "{\"type\":\"function_call\",\"call_id\":\"a\",\"name\":\"f\",\"arguments\":\"{}\"}",
    "{\"type\":\"function_call_output\",\"call_id\":\"a\",\"output\":\"o\"}",
    "{\"type\":\"reasoning\",\"content\":[{\"type\":\"reasoning_text\",\"text\":\"r\"}]}",
    "{\"type\":\"tool_search_call\",\"call_id\":\"a\",\"arguments\":{}}",
    "{\"type\":\"tool_search_output\",\"call_id\":\"a\",\"tools\":[{\"type\":\"function\",\"name\":\"l\"}]}",
    "{\"type\":\"namespace\",\"name\":\"n\",\"tools\":[",
    "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":",
    "\"tool_choice\":\"required\"",
    "\"tool_choice\":{\"type\":\"any\"}",
    "\"prefix\":true",
    "\"task\":\"title\"",
    "\"logit_bias\":{\"1\":2}",
    "<\xEF\xBD\x9C"
    "ref\xEF\xBD\x9C>",
    "\"x-anthropic-billing-header\\n y\"",
    "{\"role\":\"developer\",\"content\":[{\"type\":\"input_text\",\"text\":"
    "\"<image_resize_notice>n</image_resize_notice>\"}]}",
    "\"thinking\":{\"type\":\"disabled\"}",
    "\"hi\"",
    "]}",
    "},",
    ",",
    "[",
    "]",
    "}",
};
#define N_PIECES (sizeof pieces / sizeof *pieces)

static void require(bool condition)
{
    if (!condition)
        abort();
}

static void check_prompt(const struct di_prompt *p)
{
    size_t from = 0;
    require(di_utf8_valid(di_buf_str(&p->text), NULL));
    require(p->n_marks > 0 && p->marks[0].at == 0 && p->marks[0].control == DI_CTL_BOS);
    for (size_t i = 0; i < p->n_marks; i++) {
        struct di_str spelling = di_control_spelling(p->marks[i].control);
        require(p->marks[i].at >= from && p->marks[i].at + spelling.n <= p->text.n);
        require(di_str_starts((struct di_str){p->text.p + p->marks[i].at, p->text.n - p->marks[i].at}, spelling));
        from = p->marks[i].at + spelling.n;
    }
}

static void check(const struct di_json *request, uint8_t choice)
{
    struct di_chat_options opt = di_chat_options_default;
    struct di_chat *chat;
    di_error err = {0};
    int64_t n;
    opt.strict_history = choice & 4;
    opt.thinking = choice & 8;
    opt.messages_drop_web_search = choice & 16;
    opt.reasoning_history = (enum di_reasoning_history)((choice >> 5) % 3);
    if (di_chat_create((enum di_protocol)(choice % 3), request, &opt, &chat, &err) != DI_OK) {
        require(chat == NULL && err.message[0]);
        require(di_utf8_valid(di_str_c(err.message), NULL) && di_utf8_valid(di_str_c(err.where), NULL));
        return;
    }
    check_prompt(&chat->prompt);
    size_t images = 0;
    for (size_t i = 0; i < chat->prompt.n_marks; i++)
        images += chat->prompt.marks[i].control == DI_CTL_IMAGE;
    require(images == chat->n_images);
    require(di_chat_max_tokens(chat, chat->sampling.max_tokens, 10, 1 << 20, &n, NULL) != DI_OK || n >= 1);
    di_chat_destroy(chat);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct di_arena arena;
    struct di_buf text = {0};
    struct di_json *request;
    if (size < 1)
        return 0;
    di_arena_init(&arena);
    for (size_t i = 1; i < size; i++) {
        if (data[i] >= 0x80 && data[i] < 0x80 + N_PIECES)
            di_buf_adds(&text, pieces[data[i] - 0x80]);
        else
            di_buf_addc(&text, (char)data[i]);
    }
    if (di_json_parse(di_buf_str(&text), NULL, &arena, &request, NULL) == DI_OK)
        check(request, data[0]);
    di_arena_fini(&arena);
    di_buf_fini(&text);
    return 0;
}
