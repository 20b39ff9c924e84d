//! Tags around reasoning, found in the source of a chat template.
//!
//! They combine freely with the formats of calls. Invariant: tags come from one table, so a template cannot hide
//! text of its own choice in reasoning.

/// A pair of tags.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Thinking {
    /// Text in the template's source that shows that the model uses these tags.
    sign: &'static str,
    /// The beginning of reasoning.
    pub(super) open: &'static str,
    /// The end of reasoning.
    pub(super) close: &'static str,
}

const fn tags(sign: &'static str, open: &'static str, close: &'static str) -> Thinking {
    Thinking { sign, open, close }
}

/// The first tags whose sign is in the source count.
const TAGS: &[Thinking] = &[
    tags("<think:opensource>", "<think:opensource>", "</think:opensource>"),
    tags("think:opensource", "<think:opensource>", "</think:opensource>"),
    tags("<mm:think>", "<mm:think>", "</mm:think>"),
    tags("<seed:think>", "<seed:think>", "</seed:think>"),
    tags("[THINK]", "[THINK]", "[/THINK]"),
    tags("<|START_THINKING|>", "<|START_THINKING|>", "<|END_THINKING|>"),
    tags("<|channel>thought", "<|channel>thought\n", "<channel|>"),
    tags("<|channel>", "<|channel>thought\n", "<channel|>"),
    tags("<|inner_prefix|>", "<|inner_prefix|>", "<|inner_suffix|>"),
    tags(
        "Here are my reasoning steps:",
        "Here are my reasoning steps:\n",
        "[BEGIN FINAL RESPONSE]",
    ),
    tags("<|open|>think", "<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    tags(
        "open_tag('think')",
        "<|open|>think<|sep|>",
        "<|close|>think<|sep|>",
    ),
    tags("<|begin|>assistant", "<|think|>", "<|end|>"),
    tags("<think>", "<think>", "</think>"),
    tags("</think>", "<think>", "</think>"),
    tags("<thinking>", "<thinking>", "</thinking>"),
    tags("<reasoning>", "<reasoning>", "</reasoning>"),
    tags("<thought>", "<thought>", "</thought>"),
];

/// Finds the tags of a template.
pub(super) fn thinking_of(template: &str) -> Option<&'static Thinking> {
    TAGS.iter().find(|tags| template.contains(tags.sign))
}
