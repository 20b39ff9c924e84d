//! [`run_by`]: the side that runs a tool of a kind that Anthropic defines.
//!
//! Invariant: a tool is left out only if Anthropic's own servers are known to run it. Kinds that the client
//! runs and unknown kinds are refused, so that no call is missed silently.
//!
//! Source: the kinds of the Messages API, each as its name followed by the date of its version, such as
//! `web_search_20250305`.

use crate::{ApiError, errors::api_error::shortened};

/// Kinds that Anthropic's servers run.
const OF_SERVERS: &[&str] = &[
    "web_search",
    "web_fetch",
    "code_execution",
    "tool_search_tool_regex",
    "tool_search_tool_bm25",
    "mcp_toolset",
    "advisor",
];

/// Kinds that the client runs and Anthropic describes to the model, with why they are refused.
const OF_CLIENTS: &[(&str, &str)] = &[
    (
        "bash",
        "a `bash` tool needs its own description here: a name and an `input_schema`",
    ),
    (
        "text_editor",
        "a `text_editor` tool needs its own description here: a name and an `input_schema`",
    ),
    (
        "computer",
        "a `computer` tool needs its own description here: a name and an `input_schema`",
    ),
    (
        "memory",
        "a `memory` tool needs its own description here: a name and an `input_schema`",
    ),
];

/// The side that runs a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunBy {
    /// The client, by the description in the request.
    Description,
    /// Anthropic's servers.
    OtherServers,
}

/// Returns the side that runs a tool of `kind`; errors name it by `path`.
///
/// # Errors
/// A kind whose description is not in the request, and one that is not known.
pub(super) fn run_by(kind: &str, path: &str) -> Result<RunBy, ApiError> {
    let name = without_date(kind);
    if name == "custom" {
        return Ok(RunBy::Description);
    }
    if OF_SERVERS.contains(&name) {
        return Ok(RunBy::OtherServers);
    }
    let param = format!("{path}.type");
    if let Some((_, reason)) = OF_CLIENTS.iter().find(|(known, _)| *known == name) {
        return Err(ApiError::UnsupportedField { param, reason });
    }
    let reason = format!(
        "`{}` is not a known kind; a tool with a name and an `input_schema` has the type `custom` or none, and of Anthropic's own {} are left out",
        shortened(kind),
        OF_SERVERS.join(", ")
    );
    Err(ApiError::invalid(param, reason))
}

/// A kind without the date of its version.
fn without_date(kind: &str) -> &str {
    let is_date = |text: &str| text.len() == 8 && text.bytes().all(|byte| byte.is_ascii_digit());
    match kind.rsplit_once('_') {
        Some((name, date)) if is_date(date) => name,
        _ => kind,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_run_by_one_side() {
        for kind in [
            "web_search_20250305",
            "web_search_20260209",
            "web_fetch_20250910",
            "code_execution_20250825",
            "tool_search_tool_regex_20251119",
            "tool_search_tool_bm25",
            "mcp_toolset",
        ] {
            assert_eq!(run_by(kind, "").ok(), Some(RunBy::OtherServers), "{kind}");
        }
        assert_eq!(run_by("custom", "").ok(), Some(RunBy::Description));
        for kind in [
            "bash_20250124",
            "text_editor_20250728",
            "computer_20251124",
            "memory_20250818",
            "foo_1",
            "web_search_1",
            "web_searches",
            "",
        ] {
            let refused = run_by(kind, "tools[3]").expect_err(kind);
            assert_eq!(
                (refused.status(), refused.param()),
                (400, Some("tools[3].type")),
                "{kind}"
            );
        }
    }
}
