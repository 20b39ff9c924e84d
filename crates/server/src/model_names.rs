//! Names of models: the model that a request means, and suggestions for an unknown name.
//!
//! Only text matters here. Invariant: a name means one model or none.

/// Gives access to the names of a server's models.
pub(crate) trait ModelNames: std::fmt::Debug + Send + Sync {
    /// Says whether a model has this name.
    fn has_model(&self, name: &str) -> bool;
}

/// Characters of a name that are compared.
const MAX_CHARS: usize = 128;

/// Most names that are suggested.
const MAX_NEAR: usize = 3;

/// Prefixes that name a model's source, as the command line accepts them.
const SOURCES: [&str; 4] = ["ollama://", "ollama:", "hf://", "hf:"];

/// The tag of names that have none.
const LATEST: &str = ":latest";

/// The forms of a name under which a model is looked for: with and without its source and the tag `:latest`, each with and without
/// `.gguf`, which some append to file names. The original name comes first.
pub(crate) fn forms(asked: &str) -> Vec<String> {
    let unmarked = SOURCES.iter().find_map(|source| asked.strip_prefix(source));
    let written = [asked].into_iter().chain(unmarked);
    let tagged = written.flat_map(|form| {
        let other = match form.strip_suffix(LATEST) {
            Some(untagged) => untagged.to_owned(),
            None => format!("{form}{LATEST}"),
        };
        [form.to_owned(), other]
    });
    tagged
        .flat_map(|form| {
            let shorter = without_ending(&form);
            [form].into_iter().chain(shorter)
        })
        // A tag or a source by itself is not a name, and the empty name means any model.
        .filter(|form| !form.is_empty() || asked.is_empty())
        .collect()
}

/// Says whether `name` belongs to the requested repository and adds a type.
pub(crate) fn is_of_repository(name: &str, asked: &str) -> bool {
    asked.contains('/') && name.strip_prefix(asked).is_some_and(|rest| rest.starts_with(':'))
}

/// Whether `asked` is the repository of `name` together with the part that distinguishes the model in it.
pub(crate) fn is_variant(name: &str, asked: &str, variants: &[String]) -> bool {
    let repository = name.split_once(':').map_or(name, |(repository, _)| repository);
    let behind = asked
        .strip_prefix(repository)
        .and_then(|rest| rest.strip_prefix(':'));
    let is_known = |behind: &str| variants.iter().any(|known| known.eq_ignore_ascii_case(behind));
    repository.contains('/') && behind.is_some_and(is_known)
}

/// Returns a name without `.gguf` after the model's own part.
fn without_ending(asked: &str) -> Option<String> {
    let (model, behind) = match asked.split_once(".gguf:") {
        Some((model, behind)) => (model, Some(behind)),
        None => (asked.strip_suffix(".gguf")?, None),
    };
    Some(match behind {
        Some(behind) => format!("{model}:{behind}"),
        None => model.to_owned(),
    })
}

/// Adds the tag that Ollama gives to names without one.
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
    // The name must match in two thirds of its letters, or contain the request.
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

/// Most names that an error lists.
const MAX_LISTED: usize = 20;

/// Joins the first names, and adds the total number if there are more.
pub(crate) fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut names = names.peekable();
    let mut list: Vec<&str> = names.by_ref().take(MAX_LISTED).collect();
    if names.peek().is_none() {
        return list.join(", ");
    }
    let n_others = names.count();
    let others = format!("and {n_others} others, which `/v1/models` lists");
    list.push(&others);
    list.join(", ")
}

/// Writes an error's hint at similar names, if there are any.
pub(crate) fn near_it(near: &str) -> String {
    if near.is_empty() {
        String::new()
    } else {
        format!("; near it: {near}")
    }
}

/// Counts the characters to add, remove, change or swap with the next one to make one text of another; of long texts their beginnings
/// count.
fn distance(a: &str, b: &str) -> usize {
    let [a, b] = [a, b].map(|text| text.chars().take(MAX_CHARS).collect::<Vec<_>>());
    let (mut before, mut last) = (Vec::new(), (0..=b.len()).collect::<Vec<_>>());
    for (i, from) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, to) in b.iter().enumerate() {
            let changed = last[j] + usize::from(from != to);
            let mut least = changed.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && (*from, a[i - 1]) == (b[j - 1], *to) {
                least = least.min(before[j - 1] + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_list_of_names_ends_with_their_number() {
        let names: Vec<String> = (0..MAX_LISTED + 3).map(|no| no.to_string()).collect();
        let of = |n: usize| listed(names.iter().take(n).map(String::as_str));
        assert_eq!((of(0).as_str(), of(2).as_str()), ("", "0, 1"));
        assert!(of(MAX_LISTED).ends_with(", 18, 19"));
        assert!(of(MAX_LISTED + 3).ends_with(", 19, and 3 others, which `/v1/models` lists"));
    }

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
        // Two letters that are swapped are one fault.
        assert_eq!(near_names("tmep", ["keep", "temp"].into_iter()), ["temp", "keep"]);
    }

    #[test]
    fn a_name_has_other_forms() {
        let check = |asked: &str, expected: &[&str]| assert_eq!(forms(asked), expected, "{asked}");
        check("a", &["a", "a:latest"]);
        check("a:latest", &["a:latest", "a"]);
        check("a.gguf", &["a.gguf", "a", "a.gguf:latest", "a:latest"]);
        check("a.gguf:b", &["a.gguf:b", "a:b", "a.gguf:b:latest", "a:b:latest"]);
        check("a.gguf:latest", &["a.gguf:latest", "a:latest", "a.gguf", "a"]);
        check("ollama:", &["ollama:", "ollama::latest", ":latest"]);
        check("ollama:a", &["ollama:a", "ollama:a:latest", "a", "a:latest"]);
        check("hf://a/b", &["hf://a/b", "hf://a/b:latest", "a/b", "a/b:latest"]);
        for (name, asked, expected) in [
            ("a/b:Q8_0", "a/b", true),
            ("a/b:Q8_0", "a/b:Q8_0", false),
            ("a/bc:Q8_0", "a/b", false),
            ("a:1b", "a", false),
        ] {
            assert_eq!(is_of_repository(name, asked), expected, "{name} {asked}");
        }
        let variants = ["Q4_K_M".to_owned(), "x-Q4_K_M".to_owned()];
        for (name, asked, expected) in [
            ("a/b", "a/b:Q4_K_M", true),
            ("a/b", "a/b:q4_k_m", true),
            ("a/b", "a/b:x-Q4_K_M", true),
            ("a/b:Q4_K_M", "a/b:q4_k_m", true),
            ("a/b", "a/b:Q8_0", false),
            ("a/b", "a/b", false),
            ("a/b", "a/bQ4_K_M", false),
            ("a/b", "a/b:", false),
            ("b", "b:Q4_K_M", false),
        ] {
            assert_eq!(is_variant(name, asked, &variants), expected, "{name} {asked}");
        }
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
