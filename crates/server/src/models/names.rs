//! Names of models: which model a request means, and which ones it may have meant.
//!
//! Separate because it is text alone. Invariant: a name means one model or none.

use crate::served_model::without_ending;

/// Characters of a name that are compared.
const MAX_CHARS: usize = 128;

/// Most names that are suggested.
const MAX_NEAR: usize = 3;

/// How names are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Spelling {
    /// As they are.
    #[default]
    Plain,
    /// With or without the tag `:latest`, as Ollama's clients do.
    Tagged,
}

/// The forms of a name under which a model is looked for: with and without the tag, each with and without `.gguf`.
pub(crate) fn forms(asked: &str, spelling: Spelling) -> Vec<String> {
    let other = (spelling == Spelling::Tagged).then(|| match asked.strip_suffix(":latest") {
        Some(untagged) => untagged.to_owned(),
        None => format!("{asked}:latest"),
    });
    let written = [asked.to_owned()].into_iter().chain(other);
    written
        .flat_map(|form| {
            let shorter = without_ending(&form);
            [form].into_iter().chain(shorter)
        })
        .collect()
}

/// A name with the tag that Ollama puts behind names that have none.
pub(crate) fn tagged(name: &str) -> String {
    let last = name.rsplit('/').next().unwrap_or(name);
    if last.contains(':') {
        name.to_owned()
    } else {
        format!("{name}:latest")
    }
}

/// The names that are near one that no model has, the nearest first.
pub fn near_names<'a>(asked: &str, names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let asked = asked.to_lowercase();
    // What is typed is right for two thirds, or a part of the name.
    let most = asked.chars().take(MAX_CHARS).count().div_ceil(3);
    let mut found: Vec<(usize, &str)> = names
        .filter_map(|name| {
            let known = name.to_lowercase();
            let is_part = asked.chars().count() > 1 && (known.contains(&asked) || asked.contains(&known));
            let far = distance(&asked, &known);
            (is_part || far <= most).then_some((if is_part { far.min(most) } else { far }, name))
        })
        .collect();
    found.sort_unstable();
    found.dedup();
    found.into_iter().take(MAX_NEAR).map(|(_, name)| name).collect()
}

/// Characters to add, remove or change to make one text of another; of long texts their beginnings count.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().take(MAX_CHARS).collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().take(MAX_CHARS).enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let changed = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typo_finds_the_name() {
        let names = ["qwen3-4b", "llama-3.2-1b", "gemma-3-4b"];
        let check = |asked: &str, expected: &[&str]| {
            assert_eq!(near_names(asked, names.into_iter()), expected, "{asked}");
        };
        check("qwen3-4", &["qwen3-4b"]);
        check("Llama-3.2-1B", &["llama-3.2-1b"]);
        check("lama", &["llama-3.2-1b"]);
        check("gpt-4", &[]);
        check("", &[]);
        check(&"x".repeat(10_000), &[]);
    }

    #[test]
    fn a_name_has_other_forms() {
        assert_eq!(forms("a", Spelling::Plain), ["a"]);
        assert_eq!(forms("a.gguf", Spelling::Plain), ["a.gguf", "a"]);
        assert_eq!(forms("a.gguf:b", Spelling::Plain), ["a.gguf:b", "a:b"]);
        assert_eq!(forms("a", Spelling::Tagged), ["a", "a:latest"]);
        assert_eq!(
            forms("a.gguf:latest", Spelling::Tagged),
            ["a.gguf:latest", "a:latest", "a.gguf", "a"]
        );
        for (name, expected) in [
            ("tiny", "tiny:latest"),
            ("tiny:1b", "tiny:1b"),
            ("org/x", "org/x:latest"),
            ("org/x:Q8_0", "org/x:Q8_0"),
        ] {
            assert_eq!(tagged(name), expected);
        }
    }

    #[test]
    fn a_distance_counts_characters() {
        for (a, b, expected) in [
            ("", "", 0),
            ("a", "", 1),
            ("kitten", "sitting", 3),
            ("äb", "ab", 1),
        ] {
            assert_eq!(distance(a, b), expected, "{a} {b}");
            assert_eq!(distance(b, a), expected, "{b} {a}");
        }
    }
}
