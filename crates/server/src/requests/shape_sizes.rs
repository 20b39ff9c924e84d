//! Measures the constraints and tools of a request before anything of it is parsed.
//!
//! It reads bytes: a schema of megabytes takes longer to parse than to refuse, and a body that is cut at the
//! limit of bodies cannot be parsed at all. Invariant: one pass over a body, nothing is copied, and text that
//! is not JSON is left to the parser.

use std::ops::Range;

use tokenmill::constraint::ConstraintLimits;

use crate::ApiError;

/// Where a request has its constraint, each with the members on the way to the compiled part.
const SHAPES: [&[&str]; 18] = [
    &["format"],
    &["response_format", "json_schema", "schema"],
    &["response_format", "schema"],
    &["text", "format", "schema"],
    &["output_format", "schema"],
    &["output_config", "format", "schema"],
    &["guided_json"],
    &["json_schema"],
    &["guided_regex"],
    &["regex"],
    &["guided_choice"],
    &["guided_grammar"],
    &["grammar"],
    &["ebnf"],
    &["structured_outputs", "json"],
    &["structured_outputs", "regex"],
    &["structured_outputs", "choice"],
    &["structured_outputs", "grammar"],
];

/// Where a tool has its schema.
const SCHEMAS_OF_TOOLS: [&[&str]; 4] = [
    &["function", "parameters"],
    &["function", "input_schema"],
    &["parameters"],
    &["input_schema"],
];

/// Refuses a request with a constraint or a tool's schema that is too large to compile. `json` may end anywhere.
///
/// # Errors
/// The first that is too large, by path.
pub(crate) fn check_sizes(json: &[u8]) -> Result<(), ApiError> {
    check_sizes_to(json, ConstraintLimits::default().max_bytes)
}

fn check_sizes_to(json: &[u8], max_bytes: usize) -> Result<(), ApiError> {
    if json.len() <= max_bytes {
        return Ok(());
    }
    let scan = Scan { json, max_bytes };
    let Some((path, range)) = scan.find_too_large() else {
        return Ok(());
    };
    let more = if range.end == json.len() { "more than " } else { "" };
    let reason = format!("it has {more}{} bytes, the limit is {max_bytes}", range.len());
    Err(ApiError::invalid(path, reason))
}

struct Scan<'j> {
    json: &'j [u8],
    max_bytes: usize,
}

impl Scan<'_> {
    fn find_too_large(&self) -> Option<(String, Range<usize>)> {
        for (key, value) in self.large_members(self.skip_space(0)..self.json.len()) {
            if key == b"tools" {
                let tools = self.items(value.clone()).into_iter().enumerate();
                for (index, tool) in tools.filter(|(_, tool)| tool.len() > self.max_bytes) {
                    for path in SCHEMAS_OF_TOOLS {
                        if let Some(range) = self.large_at(tool.clone(), path) {
                            return Some((format!("tools[{index}].{}", path.join(".")), range));
                        }
                    }
                }
            }
            for path in SHAPES.iter().filter(|path| path[0].as_bytes() == key) {
                if let Some(range) = self.large_at(value.clone(), &path[1..]) {
                    return Some((path.join("."), range));
                }
            }
        }
        None
    }

    /// The value at a path from another, where it is larger than the limit.
    fn large_at(&self, value: Range<usize>, path: &[&str]) -> Option<Range<usize>> {
        path.iter().try_fold(value, |object, &name| {
            let mut members = self.large_members(object).into_iter();
            members.find_map(|(key, value)| (key == name.as_bytes()).then_some(value))
        })
    }

    /// The members of an object that are larger than the limit, of which there are few.
    fn large_members(&self, object: Range<usize>) -> Vec<(&[u8], Range<usize>)> {
        let mut members = Vec::new();
        if self.json.get(object.start) != Some(&b'{') {
            return members;
        }
        let mut at = self.skip_space(object.start + 1);
        while at < object.end && self.json[at] == b'"' {
            let key_end = self.value_end(at);
            let colon = self.skip_space(key_end);
            if self.json.get(colon) != Some(&b':') {
                break;
            }
            let start = self.skip_space(colon + 1);
            let end = self.value_end(start);
            if end - start > self.max_bytes {
                members.push((&self.json[at + 1..key_end - 1], start..end));
            }
            at = self.after_comma(end);
        }
        members
    }

    /// The items of an array.
    fn items(&self, array: Range<usize>) -> Vec<Range<usize>> {
        let mut items = Vec::new();
        if self.json.get(array.start) != Some(&b'[') {
            return items;
        }
        let mut at = self.skip_space(array.start + 1);
        while at < array.end && self.json[at] != b']' {
            let end = self.value_end(at);
            items.push(at..end);
            at = self.after_comma(end);
        }
        items
    }

    /// Where the next member or item begins; the end where there is no comma.
    fn after_comma(&self, at: usize) -> usize {
        let at = self.skip_space(at);
        match self.json.get(at) {
            Some(b',') => self.skip_space(at + 1),
            _ => self.json.len(),
        }
    }

    fn skip_space(&self, at: usize) -> usize {
        let rest = &self.json[at.min(self.json.len())..];
        at + rest.iter().take_while(|byte| byte.is_ascii_whitespace()).count()
    }

    /// Where the value ends that begins at `at`.
    fn value_end(&self, at: usize) -> usize {
        let mut depth = 0_usize;
        let mut at = at;
        while let Some(&byte) = self.json.get(at) {
            at += 1;
            match byte {
                b'"' => {
                    at = self.text_end(at);
                    if depth == 0 {
                        return at;
                    }
                }
                b'{' | b'[' => depth += 1,
                b'}' | b']' | b',' if depth == 0 => return at - 1,
                b'}' | b']' => {
                    depth -= 1;
                    if depth == 0 {
                        return at;
                    }
                }
                _ => {}
            }
        }
        self.json.len()
    }

    /// Behind the quotes that end a text.
    fn text_end(&self, mut at: usize) -> usize {
        while let Some(&byte) = self.json.get(at) {
            match byte {
                b'"' => return at + 1,
                b'\\' => at += 2,
                _ => at += 1,
            }
        }
        self.json.len()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const LIMIT: usize = 100;

    /// Checks which field of a body is refused, and that it is in whatever way the body is written.
    #[track_caller]
    fn check(body: &Value, expected: Option<&str>) {
        let short = body.to_string();
        let long = serde_json::to_string_pretty(body).unwrap();
        for text in [short, long] {
            let found = check_sizes_to(text.as_bytes(), LIMIT);
            let param = found.as_ref().err().and_then(|error| error.param());
            assert_eq!(param, expected, "{text}");
        }
    }

    #[test]
    fn what_is_too_large_is_named() {
        let large = json!({"enum": ["x\"}]\\".repeat(LIMIT / 4), 1, [], {}]});
        let small = json!({"type": "object"});
        let text = "é".repeat(LIMIT);
        check(
            &json!({"messages": [{"content": text}], "guided_json": small}),
            None,
        );
        check(
            &json!({"messages": text, "guided_json": large}),
            Some("guided_json"),
        );
        check(&json!({"stop": "a", "regex": text, "n": 1}), Some("regex"));
        let nested = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": large}});
        check(
            &json!({"response_format": nested}),
            Some("response_format.json_schema.schema"),
        );
        let flat = json!({"format": {"type": "json_schema", "schema": large}});
        check(&json!({"text": flat}), Some("text.format.schema"));
        check(
            &json!({"output_config": flat}),
            Some("output_config.format.schema"),
        );
        check(
            &json!({"structured_outputs": {"regex": null, "choice": [text]}}),
            Some("structured_outputs.choice"),
        );
        // A long name is not a shape.
        check(&json!({"response_format": {"json_schema": {"name": text}}}), None);
        check(&json!({"metadata": {"guided_json": large}}), None);
        let tools = json!([{"function": {"name": "a", "parameters": small}}, {"type": "function",
            "function": {"description": text, "parameters": large}}]);
        check(&json!({"tools": tools}), Some("tools[1].function.parameters"));
        check(
            &json!({"tools": [{"name": "a", "input_schema": large}]}),
            Some("tools[0].input_schema"),
        );
        let many = vec![json!({"function": {"name": "a", "parameters": small}}); 20];
        check(&json!({"tools": many}), None);
    }

    #[test]
    fn a_body_that_is_cut_anywhere_is_refused_once_the_limit_is_passed() {
        let body = json!({"messages": "\\\"", "tools": [{"function": {"parameters": {"a": "x".repeat(2 * LIMIT)}}}]});
        let body = body.to_string();
        let begin = body.find("{\"a\"").unwrap();
        for end in 0..body.len() {
            let found = check_sizes_to(&body.as_bytes()[..end], LIMIT);
            assert_eq!(found.is_err(), end > begin + LIMIT, "{end}");
        }
        let cut = check_sizes_to(&body.as_bytes()[..begin + LIMIT + 9], LIMIT).unwrap_err();
        assert_eq!(
            cut.to_string(),
            "`tools[0].function.parameters`: it has more than 109 bytes, the limit is 100"
        );
    }

    #[test]
    fn what_is_no_json_is_left_to_the_parser() {
        for text in [
            "",
            "{",
            "[",
            "{\"a",
            "{\"a\"",
            "{\"a\":",
            "{\"a\":}",
            "{\"tools\":[}",
            "}",
            "\\",
            "{\"regex\\",
        ] {
            for fill in ["", " ", "]", "\"", "{", "[", "\\", ",", "x"] {
                let long = format!("{text}{}", fill.repeat(2 * LIMIT));
                assert_eq!(check_sizes_to(long.as_bytes(), LIMIT), Ok(()), "{long}");
            }
        }
    }
}
