/* Formats of strings as expressions. A format that is not here is no assertion: the standard lets a reader treat it as a remark. */
#include "grammar/json_schema.h"

#define D2 "[0-9]{2}"
#define DATE                                                                                                                           \
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))|" \
    "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
#define OFFSET "(?:[zZ]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
#define TIME "(?:(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]+)?" OFFSET "|23:59:60(?:\\.[0-9]+)?(?:[zZ]|[+-]00:00))"
#define LABEL "[0-9A-Za-z](?:[0-9A-Za-z-]{0,61}[0-9A-Za-z])?"
#define HOST LABEL "(?:\\." LABEL ")*"
#define OCTET "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define IPV4 OCTET "(?:\\." OCTET "){3}"
#define H16 "[0-9A-Fa-f]{1,4}"
#define LS32 "(?:" H16 ":" H16 "|" IPV4 ")"
#define IPV6                                                                                                                            \
    "(?:(?:" H16 ":){6}" LS32 "|::(?:" H16 ":){5}" LS32 "|(?:" H16 ")?::(?:" H16 ":){4}" LS32 "|(?:(?:" H16 ":){0,1}" H16 ")?::(?:" H16 \
    ":){3}" LS32 "|(?:(?:" H16 ":){0,2}" H16 ")?::(?:" H16 ":){2}" LS32 "|(?:(?:" H16 ":){0,3}" H16 ")?::" H16 ":" LS32 "|(?:(?:" H16   \
    ":){0,4}" H16 ")?::" LS32 "|(?:(?:" H16 ":){0,5}" H16 ")?::" H16 "|(?:(?:" H16 ":){0,6}" H16 ")?::)"
#define ATEXT "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
#define LOCAL "(?:" ATEXT "+(?:\\." ATEXT "+)*|\"(?:[\\x20\\x21\\x23-\\x5b\\x5d-\\x7e]|\\\\[\\x20-\\x7e])*\")"
#define EMAIL LOCAL "@(?:" HOST "|\\[(?:" IPV4 "|IPv6:" IPV6 ")\\])"
#define PCT "%[0-9A-Fa-f]{2}"
#define PCHAR "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|" PCT ")"
#define AUTHORITY                                                  \
    "(?:(?:[A-Za-z0-9._~!$&'()*+,;=:-]|" PCT ")*@)?(?:\\[(?:" IPV6 \
    "|v[0-9A-Fa-f]+\\.[A-Za-z0-9._~!$&'()*+,;=:-]+)\\]|(?:[A-Za-z0-9._~!$&'()*+,;=-]|" PCT ")*)(?::[0-9]*)?"
#define TAIL "(?:\\?(?:" PCHAR "|[/?])*)?(?:#(?:" PCHAR "|[/?])*)?"
#define URI "[A-Za-z][A-Za-z0-9+.-]*:(?://" AUTHORITY "(?:/" PCHAR "*)*|/(?:" PCHAR "+(?:/" PCHAR "*)*)?|" PCHAR "+(?:/" PCHAR "*)*)?" TAIL
#define SEGMENT_NC "(?:[A-Za-z0-9._~!$&'()*+,;=@-]|" PCT ")+"
#define RELATIVE "(?://" AUTHORITY "(?:/" PCHAR "*)*|/(?:" PCHAR "+(?:/" PCHAR "*)*)?|" SEGMENT_NC "(?:/" PCHAR "*)*)?" TAIL
#define DURATION                                                                                                                           \
    "P(?:[0-9]+W|(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)(?:T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)" \
    "?|"                                                                                                                                   \
    "[0-9]+S))?|T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S))"
#define POINTER "(?:/(?:[^~/]|~[01])*)*"
#define VARIABLE "(?:[A-Za-z0-9_]|" PCT ")(?:\\.?(?:[A-Za-z0-9_]|" PCT "))*(?::[1-9][0-9]{0,3}|\\*)?"

#define ILABEL "[0-9A-Za-z\\u0080-\\u{10ffff}](?:[0-9A-Za-z\\u0080-\\u{10ffff}-]{0,61}[0-9A-Za-z\\u0080-\\u{10ffff}])?"
#define IHOST ILABEL "(?:[.\\u3002\\uff0e\\uff61]" ILABEL ")*"
#define IATEXT "[A-Za-z0-9!#$%&'*+/=?^_`{|}~\\u0080-\\u{10ffff}-]"
#define IEMAIL                                                                                                                      \
    "(?:" IATEXT "+(?:\\." IATEXT "+)*|\"(?:[\\x20\\x21\\x23-\\x5b\\x5d-\\x7e\\u0080-\\u{10ffff}]|\\\\[\\x20-\\x7e])*\")@(?:" IHOST \
    "|\\[(?:" IPV4 "|IPv6:" IPV6 ")\\])"
#define IPCHAR "(?:[A-Za-z0-9._~!$&'()*+,;=:@\\u00a0-\\u{10ffff}-]|" PCT ")"
#define IAUTHORITY                                                                 \
    "(?:(?:[A-Za-z0-9._~!$&'()*+,;=:\\u00a0-\\u{10ffff}-]|" PCT ")*@)?(?:\\[" IPV6 \
    "\\]|(?:[A-Za-z0-9._~!$&'()*+,;=\\u00a0-\\u{10ffff}-]|" PCT ")*)(?::[0-9]*)?"
#define ITAIL "(?:\\?(?:" IPCHAR "|[/?])*)?(?:#(?:" IPCHAR "|[/?])*)?"
#define IRI \
    "[A-Za-z][A-Za-z0-9+.-]*:(?://" IAUTHORITY "(?:/" IPCHAR "*)*|/(?:" IPCHAR "+(?:/" IPCHAR "*)*)?|" IPCHAR "+(?:/" IPCHAR "*)*)?" ITAIL
#define ISEGMENT_NC "(?:[A-Za-z0-9._~!$&'()*+,;=@\\u00a0-\\u{10ffff}-]|" PCT ")+"
#define IRELATIVE "(?://" IAUTHORITY "(?:/" IPCHAR "*)*|/(?:" IPCHAR "+(?:/" IPCHAR "*)*)?|" ISEGMENT_NC "(?:/" IPCHAR "*)*)?" ITAIL
/* Expressions with groups up to five deep. */
#define QUANTIFIER "(?:(?:[*+?]|\\{[0-9]+(?:,[0-9]*)?\\})[?]?)?"
#define ATOM "[^\\\\()\\[\\]{}*+?|^$]|\\\\[^\\n]|\\[\\^?(?:[^\\]\\\\]|\\\\[^\\n])*\\]"
#define GROUP(INNER) "(?:(?:" ATOM "|\\((?:\\?(?:[:=!]|<[=!]|<[A-Za-z_]+>))?" INNER "\\))" QUANTIFIER "|[|^$])*"
#define EXPRESSION GROUP(GROUP(GROUP(GROUP(GROUP("(?:(?:" ATOM ")" QUANTIFIER "|[|^$])*")))))

static const struct {
    const char *name, *expression;
} formats[] = {
    {"date", DATE},
    {"time", TIME},
    {"date-time", DATE "[tT]" TIME},
    {"duration", DURATION},
    {"email", EMAIL},
    {"hostname", HOST},
    {"host-name", HOST},
    {"ipv4", IPV4},
    {"ip-address", IPV4},
    {"ipv6", IPV6},
    {"uri", URI},
    {"uri-reference", "(?:" URI "|" RELATIVE ")"},
    {"iri", IRI},
    {"iri-reference", "(?:" IRI "|" IRELATIVE ")"},
    {"idn-email", IEMAIL},
    {"idn-hostname", IHOST},
    {"regex", EXPRESSION},
    {"uuid", "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}"},
    {"json-pointer", POINTER},
    {"relative-json-pointer", "(?:0|[1-9][0-9]*)(?:#|" POINTER ")"},
    {"uri-template", "(?:[^\\x00-\\x20\"'%<>\\\\^`{|}\\x7f-\\x9f]|" PCT "|\\{[+#./;?&=,!@|]?" VARIABLE "(?:," VARIABLE ")*\\})*"},
};

rx_id format_expression(struct rx_pool *p, struct di_str name)
{
    rx_id id;
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (di_str_eqc(name, formats[i].name) && rx_parse(p, di_str_c(formats[i].expression), RX_DOT_ALL, &id, NULL) == DI_OK)
            return id;
    return RX_NONE;
}
