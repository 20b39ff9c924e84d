//! [`names_of`]: the names and indices of a field's path, for APIs whose errors have them in a list.
//!
//! Apart from the errors, since it knows the marks of a path. Invariant: a name that stands in quotes is one name, with any marks in it.

use serde_json::Value;

/// Splits a path such as `questions["a.b"].criteria[0]` into texts and numbers.
pub(crate) fn names_of(path: &str) -> Vec<Value> {
    let mut names = Vec::new();
    let mut rest = path;
    while !rest.is_empty() {
        let (name, after) = match rest.strip_prefix('[') {
            Some(quoted) if quoted.starts_with('"') => match read_quoted(quoted) {
                Some((name, n_read)) => (name, &quoted[n_read..]),
                None => (quoted.into(), ""),
            },
            Some(index) => {
                let (index, after) = index.split_once(']').unwrap_or((index, ""));
                (
                    index.parse::<usize>().map_or_else(|_| index.into(), Value::from),
                    after,
                )
            }
            None => {
                let word = rest.strip_prefix('.').unwrap_or(rest);
                let end = word.find(['.', '[']).unwrap_or(word.len());
                (word[..end].into(), &word[end..])
            }
        };
        names.push(name);
        rest = after.strip_prefix(']').unwrap_or(after);
    }
    names
}

/// Reads the JSON text at the beginning, and returns how many bytes it has.
fn read_quoted(text: &str) -> Option<(Value, usize)> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<String>();
    let name = values.next()?.ok()?;
    Some((name.into(), values.byte_offset()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokenmill::decide::inner_path;

    use super::*;

    #[test]
    fn a_path_is_split_at_its_own_marks() {
        for (path, expected) in [
            ("", json!([])),
            ("state", json!(["state"])),
            (
                "messages[0].content[12].text",
                json!(["messages", 0, "content", 12, "text"]),
            ),
            (
                r#"questions["a.b"].criteria"#,
                json!(["questions", "a.b", "criteria"]),
            ),
            (r#"questions["3"][3]"#, json!(["questions", "3", 3])),
            // Paths of no reader of this server.
            ("a..b", json!(["a", "", "b"])),
            ("a[b]c", json!(["a", "b", "c"])),
            (r#"a["b"#, json!(["a", "\"b"])),
            ("a[", json!(["a", ""])),
        ] {
            assert_eq!(Value::from(names_of(path)), expected, "{path}");
        }
    }

    #[test]
    fn any_name_comes_back_whole() {
        for name in [
            "",
            "a",
            "a.b",
            "a[0]",
            "]",
            "\"",
            "\\\"]",
            "12",
            "größe\n",
            "a\u{0}b",
            "🐻",
        ] {
            let path = format!("{}.type", inner_path("questions", name));
            assert_eq!(names_of(&path), ["questions", name, "type"], "{path}");
        }
    }
}
