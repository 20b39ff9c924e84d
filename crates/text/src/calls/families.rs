//! The families of call formats: one row each, with the signs in its chat templates and the form of its calls.
//!
//! Invariant: rows are tried from the top, so a more specific row comes first.

use super::{
    channels::{ChannelFamily, ChannelShape},
    format::{CallFormat, Shape},
    json_body::JsonShape,
    literal::Dialect,
    literal_body::LiteralShape,
    named_body::{Head, NamedShape},
    tagged_body::TaggedShape,
};

/// Calls between `<tool_call>` and `</tool_call>`, as objects with `name` and `arguments`.
const HERMES: JsonShape = JsonShape {
    openers: &["<tool_call>"],
    closers: &["</tool_call>"],
    ..json(&[], &[])
};

/// The format for templates of unknown families.
pub(super) const GENERIC: CallFormat = CallFormat {
    name: "generic",
    signs: &[],
    shape: Shape::Json(&HERMES),
    wrappers: &[],
};

const fn json(openers: &'static [&'static str], closers: &'static [&'static str]) -> JsonShape {
    JsonShape {
        openers,
        closers,
        is_bare: false,
        is_keyed_by_name: false,
        keys: ("name", "arguments"),
        is_list: false,
    }
}

/// Calls in a list.
const fn json_list(openers: &'static [&'static str], closers: &'static [&'static str]) -> JsonShape {
    JsonShape {
        is_list: true,
        ..json(openers, closers)
    }
}

const LLAMA: JsonShape = JsonShape {
    is_bare: true,
    keys: ("name", "parameters"),
    ..json(&["<|python_tag|>"], &[])
};

const PYTHONIC: LiteralShape = LiteralShape {
    openers: &[],
    closers: &[],
    is_list: true,
    prefix: "",
    brackets: ('(', ')'),
    separator: '=',
    dialect: Dialect::Python,
};

const HARMONY: ChannelShape = ChannelShape {
    opener: "<|start|>",
    head_end: "<|message|>",
    closers: &["<|end|>", "<|call|>", "<|return|>"],
    family: ChannelFamily::Harmony,
};

const fn deepseek(
    arguments: &'static str,
    fence: &'static str,
    heads: &'static [&'static str],
    head: fn(&str) -> Option<Head<'_>>,
) -> NamedShape {
    NamedShape {
        section: "<｜tool▁calls▁begin｜>",
        opener: "<｜tool▁call▁begin｜>",
        arguments,
        head,
        heads,
        fence,
        closers: &["<｜tool▁call▁end｜>"],
        section_closers: &["<｜tool▁calls▁end｜>"],
    }
}

/// Describes arguments in tags that end with `key_end`, on separate lines.
const fn function_tags(section: &'static str, section_closers: &'static [&'static str]) -> TaggedShape {
    TaggedShape {
        section,
        opener: "<function=",
        name_end: ">",
        opener_end: "",
        argument: "<parameter=",
        key_end: ">",
        value: "",
        has_attributes: false,
        attributes: ("", ""),
        value_end: "</parameter>",
        is_on_own_lines: true,
        has_cdata: false,
        closer: "</function>",
        section_closers,
    }
}

const fn dsml(section: &'static str, section_closers: &'static [&'static str]) -> TaggedShape {
    TaggedShape {
        section,
        opener: "<｜DSML｜invoke name=\"",
        name_end: "\">",
        opener_end: "",
        argument: "<｜DSML｜parameter name=\"",
        key_end: "\"",
        value: ">",
        has_attributes: true,
        attributes: (" string=\"true\"", " string=\"false\""),
        value_end: "</｜DSML｜parameter>",
        is_on_own_lines: false,
        has_cdata: false,
        closer: "</｜DSML｜invoke>",
        section_closers,
    }
}

const GLM: TaggedShape = TaggedShape {
    section: "",
    opener: "<tool_call>",
    name_end: "",
    opener_end: "",
    argument: "<arg_key>",
    key_end: "</arg_key>",
    value: "<arg_value>",
    has_attributes: false,
    attributes: ("", ""),
    value_end: "</arg_value>",
    is_on_own_lines: false,
    has_cdata: false,
    closer: "</tool_call>",
    section_closers: &[],
};

const MINIMAX: TaggedShape = TaggedShape {
    section: "<minimax:tool_call>",
    opener: "<invoke name=\"",
    name_end: "\">",
    opener_end: "",
    argument: "<parameter name=\"",
    key_end: "\">",
    value: "",
    has_attributes: false,
    attributes: ("", ""),
    value_end: "</parameter>",
    is_on_own_lines: false,
    has_cdata: false,
    closer: "</invoke>",
    section_closers: &["</minimax:tool_call>"],
};

const fn row(name: &'static str, signs: &'static [&'static [&'static str]], shape: Shape) -> CallFormat {
    CallFormat {
        name,
        signs,
        shape,
        wrappers: &[],
    }
}

/// All families.
pub(super) const FORMATS: &[CallFormat] = &[
    row(
        "harmony",
        &[&["<|channel|>", "<|message|>", "<|start|>"]],
        Shape::Channels(&HARMONY),
    ),
    row(
        "functionary",
        &[&[">>>all"]],
        Shape::Channels(&ChannelShape {
            opener: ">>>",
            head_end: "\n",
            closers: &[],
            family: ChannelFamily::Functionary,
        }),
    ),
    CallFormat {
        wrappers: &[
            "<|open|>response<|sep|>",
            "<|close|>response<|sep|>",
            "<|close|>message<|sep|>",
        ],
        ..row(
            "kimi-k3",
            &[&["<|open|>", "<|sep|>"]],
            Shape::Tagged(&TaggedShape {
                section: "<|open|>tools<|sep|>",
                opener: "<|open|>call tool=\"",
                name_end: "\"",
                opener_end: "<|sep|>",
                argument: "<|open|>argument key=\"",
                key_end: "\"",
                value: "<|sep|>",
                has_attributes: true,
                attributes: (" type=\"string\"", " type=\"json\""),
                value_end: "<|close|>argument<|sep|>",
                is_on_own_lines: false,
                has_cdata: false,
                closer: "<|close|>call<|sep|>",
                section_closers: &["<|close|>tools<|sep|>"],
            }),
        )
    },
    row(
        "deepseek-v4",
        &[&["DSML", "tool_calls>"]],
        Shape::Tagged(&dsml("<｜DSML｜tool_calls>", &["</｜DSML｜tool_calls>"])),
    ),
    row(
        "deepseek-v3.2",
        &[&["DSML"]],
        Shape::Tagged(&dsml("<｜DSML｜function_calls>", &["</｜DSML｜function_calls>"])),
    ),
    row(
        "deepseek-v3",
        &[&["<｜tool▁call▁begin｜>", "```json"]],
        Shape::Named(&deepseek(
            "\n```json\n",
            "```",
            &["function<｜tool▁sep｜>{name}"],
            |head| named(head.rsplit_once("<｜tool▁sep｜>")?.1),
        )),
    ),
    row(
        "deepseek-v3.1",
        &[&["<｜tool▁call▁begin｜>"]],
        Shape::Named(&deepseek("<｜tool▁sep｜>", "", &["{name}"], named)),
    ),
    row(
        "kimi-k2",
        &[&["<|tool_call_begin|>"]],
        Shape::Named(&NamedShape {
            section: "<|tool_calls_section_begin|>",
            opener: "<|tool_call_begin|>",
            arguments: "<|tool_call_argument_begin|>",
            head: kimi_head,
            heads: &["functions.{name}:{number}"],
            fence: "",
            closers: &["<|tool_call_end|>"],
            section_closers: &["<|tool_calls_section_end|>"],
        }),
    ),
    CallFormat {
        wrappers: &[
            "<|begin|>assistant",
            "<|content|>",
            "<|end|>",
            "<|tool_calls|>",
            "<|calls|>",
        ],
        ..row(
            "solar",
            &[&["<|tool_call:begin|>"]],
            Shape::Named(&NamedShape {
                section: "",
                opener: "<|tool_call:begin|>",
                arguments: "<|tool_call:args|>",
                head: |head| {
                    let (id, name) = head.split_once("<|tool_call:name|>")?;
                    Some(Head { name, id: Some(id) })
                },
                heads: &["{id}<|tool_call:name|>{name}"],
                fence: "",
                closers: &["<|tool_call:end|>"],
                section_closers: &["<|calls|>"],
            }),
        )
    },
    row(
        "mistral",
        &[&["[TOOL_CALLS]", "[ARGS]"]],
        Shape::Named(&NamedShape {
            section: "",
            opener: "[TOOL_CALLS]",
            arguments: "[ARGS]",
            head: |head| match head.split_once("[CALL_ID]") {
                Some((name, id)) => Some(Head { name, id: Some(id) }),
                None => named(head),
            },
            heads: &["{name}", "{name}[CALL_ID]{id}"],
            fence: "",
            closers: &[],
            section_closers: &[],
        }),
    ),
    row(
        "mistral-v3",
        &[&["[TOOL_CALLS]"]],
        Shape::Json(&json_list(&["[TOOL_CALLS]"], &[])),
    ),
    CallFormat {
        wrappers: &[
            "<|START_RESPONSE|>",
            "<|END_RESPONSE|>",
            "<|START_TEXT|>",
            "<|END_TEXT|>",
        ],
        ..row(
            "command-r7b",
            &[&["<|START_ACTION|>"]],
            Shape::Json(&JsonShape {
                keys: ("tool_name", "parameters"),
                ..json_list(&["<|START_ACTION|>"], &["<|END_ACTION|>"])
            }),
        )
    },
    row(
        "command-r",
        &[&["Action:", "```json"]],
        Shape::Json(&JsonShape {
            keys: ("tool_name", "parameters"),
            ..json_list(&["Action:\n```json", "Action: ```json"], &["```"])
        }),
    ),
    row(
        "hy3",
        &[&["<arg_key{}>"], &["<arg_key:opensource>"]],
        Shape::Tagged(&TaggedShape {
            section: "<tool_calls:opensource>",
            opener: "<tool_call:opensource>",
            name_end: "<tool_sep:opensource>",
            opener_end: "",
            argument: "<arg_key:opensource>",
            key_end: "</arg_key:opensource>",
            value: "<arg_value:opensource>",
            has_attributes: false,
            attributes: ("", ""),
            value_end: "</arg_value:opensource>",
            is_on_own_lines: false,
            has_cdata: false,
            closer: "</tool_call:opensource>",
            section_closers: &["</tool_calls:opensource>"],
        }),
    ),
    row("glm", &[&["<arg_key>"]], Shape::Tagged(&GLM)),
    row("minimax", &[&["minimax:tool_call"]], Shape::Tagged(&MINIMAX)),
    row(
        "seed-oss",
        &[&["seed:tool_call"]],
        Shape::Tagged(&function_tags("<seed:tool_call>", &["</seed:tool_call>"])),
    ),
    row(
        "qwen3-coder",
        &[&["<function=", "<parameter="]],
        Shape::Tagged(&function_tags("<tool_call>", &["</tool_call>"])),
    ),
    row(
        "minicpm",
        &[&["<function name=", "<param name="]],
        Shape::Tagged(&TaggedShape {
            section: "",
            opener: "<function name=\"",
            name_end: "\">",
            opener_end: "",
            argument: "<param name=\"",
            key_end: "\">",
            value: "",
            has_attributes: false,
            attributes: ("", ""),
            value_end: "</param>",
            is_on_own_lines: false,
            has_cdata: true,
            closer: "</function>",
            section_closers: &[],
        }),
    ),
    row(
        "function-json",
        &[&["<function=", "</function>"]],
        Shape::Named(&NamedShape {
            section: "",
            opener: "<function=",
            arguments: ">",
            head: named,
            heads: &["{name}"],
            fence: "",
            closers: &["</function>"],
            section_closers: &[],
        }),
    ),
    row(
        "gemma",
        &[&["<|tool_call>"]],
        Shape::Literal(&LiteralShape {
            openers: &["<|tool_call>"],
            closers: &["<tool_call|>"],
            is_list: false,
            prefix: "call:",
            brackets: ('{', '}'),
            separator: ':',
            dialect: Dialect::Marked("<|\"|>"),
        }),
    ),
    row(
        "function-gemma",
        &[&["<start_function_call>"]],
        Shape::Literal(&LiteralShape {
            openers: &["<start_function_call>"],
            closers: &["<end_function_call>"],
            is_list: false,
            prefix: "call:",
            brackets: ('{', '}'),
            separator: ':',
            dialect: Dialect::Marked("<escape>"),
        }),
    ),
    row(
        "lfm2",
        &[
            &["<|tool_call_start|>"],
            &["<|tool_list_start|>"],
            &["keep_past_thinking", "List of tools: ["],
        ],
        Shape::Literal(&LiteralShape {
            openers: &["<|tool_call_start|>"],
            closers: &["<|tool_call_end|>"],
            ..PYTHONIC
        }),
    ),
    CallFormat {
        wrappers: &["<response>", "</response>"],
        ..row(
            "granite",
            &[&["<|tool_call|>", "<|start_of_role|>"]],
            Shape::Json(&json_list(&["<|tool_call|>"], &[])),
        )
    },
    row(
        "phi",
        &[&["<|tool_call|>"]],
        Shape::Json(&json_list(&["<|tool_call|>"], &["<|/tool_call|>"])),
    ),
    row(
        "nemotron",
        &[&["<TOOLCALL>"]],
        Shape::Json(&json_list(&["<TOOLCALL>"], &["</TOOLCALL>"])),
    ),
    CallFormat {
        wrappers: &["[END FINAL RESPONSE]"],
        ..row(
            "apriel",
            &[&["<tool_calls>"]],
            Shape::Json(&json_list(&["<tool_calls>"], &["</tool_calls>"])),
        )
    },
    row(
        "apertus",
        &[&["<|tools_prefix|>"]],
        Shape::Json(&JsonShape {
            is_keyed_by_name: true,
            ..json_list(&["<|tools_prefix|>"], &["<|tools_suffix|>"])
        }),
    ),
    row(
        "gigachat-3.1",
        &[&["<|function_call|>"]],
        Shape::Json(&json(&["<|function_call|>"], &["<|message_sep|>"])),
    ),
    row(
        "gigachat",
        &[
            &["function call<|role_sep|>"],
            &["'function call'", "<|role_sep|>"],
        ],
        Shape::Json(&json(
            &[
                "<|message_sep|>\n\nfunction call<|role_sep|>\n",
                "function call<|role_sep|>\n",
            ],
            &["<|message_sep|>"],
        )),
    ),
    row(
        "firefunction",
        &[&["functools"]],
        Shape::Json(&json_list(&["functools"], &[])),
    ),
    row("hermes", &[&["<tool_call>"]], Shape::Json(&HERMES)),
    row(
        "llama",
        &[
            &["<|python_tag|>"],
            &["\"parameters\":", "Environment: ipython"],
            &["'{\"name\": \"'", "\"parameters\": "],
            &["<|header_start|>", "tools"],
        ],
        Shape::JsonOrLiteral(&LLAMA, &PYTHONIC),
    ),
];

#[expect(clippy::unnecessary_wraps, reason = "the table takes functions of one type")]
fn named(name: &str) -> Option<Head<'_>> {
    Some(Head { name, id: None })
}

/// `functions.get_weather:0` is name and id at once.
#[expect(clippy::unnecessary_wraps, reason = "the table takes functions of one type")]
fn kimi_head(head: &str) -> Option<Head<'_>> {
    let name = head.rsplit_once(':').map_or(head, |(name, _)| name);
    Some(Head {
        name: name.strip_prefix("functions.").unwrap_or(name),
        id: Some(head),
    })
}
