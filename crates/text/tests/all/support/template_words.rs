//! A chat template and words of its language, for mutations.

/// A template with loops, conditions, filters, tests, a macro and white-space control.
pub(crate) const TEMPLATE: &str = r#"{%- macro show(x, pad=2) -%}{{ x | tojson(indent=pad) }}{%- endmacro -%}
{{- bos_token }}{% set ns = namespace(n=0) %}
{%- if tools is defined and tools -%}<tools>{% for tool in tools %}{{ show(tool.function) }}{{ "," if not loop.last }}{% endfor %}</tools>{% endif %}
{%- for message in messages if message.role != 'system' %}
{%- set ns.n = ns.n + loop.index0 %}{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
<|{{ message.role | upper }}|>{{ message.content.strip()[:40].split(' ') | join(' ') | trim }}{{ eos_token }}
{%- endfor %}{% if add_generation_prompt %}<|ASSISTANT|>{{ '%02d' | format(ns.n) if ns.n > 0 else '' }}{% endif %}"#;

/// Words of the language.
pub(crate) const WORDS: [&str; 48] = [
    "{%",
    "%}",
    "{{",
    "}}",
    "{#",
    "#}",
    "{%- for x in range(9999) -%}",
    "{% endfor %}",
    "{% if true %}",
    "{% else %}",
    "{% elif x is none %}",
    "{% endif %}",
    "{% set y = messages %}",
    "{% macro m(a) %}",
    "{% endmacro %}",
    "{% generation %}",
    "{% endgeneration %}",
    "{% break %}",
    "{% continue %}",
    "{% call m(1) %}",
    "{% endcall %}",
    "{% filter upper %}",
    "{% endfilter %}",
    "namespace(a=1)",
    "loop.index",
    "loop(messages)",
    " | tojson",
    " | length",
    " | map(attribute='role') | list",
    " | selectattr('role', 'equalto', 'user')",
    " | sort",
    " | reverse",
    " | replace('a', 'aaaa')",
    ".split('')",
    ".items()",
    "messages[::-1]",
    "[1, 2] * 999",
    "'ab' * 99999",
    " ~ ",
    " ** ",
    " // ",
    " % ",
    " not in ",
    " is mapping",
    "(",
    ")",
    "'",
    "\u{1f469}",
];
