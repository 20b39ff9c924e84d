//! [`differences`]: finds the fields in which two descriptors differ, by name.
//!
//! It walks the output of `Debug` and knows no field, so a new field is compared without a line here.

use std::{collections::HashSet, fmt::Debug};

/// A field with different contents in two values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    /// Its path, such as `layers[3].mixer.window`.
    pub(crate) field: String,
    /// Its contents in the first value.
    pub(crate) first: String,
    /// Its contents in the second value.
    pub(crate) second: String,
}

/// Relative tolerance: numbers this close differ only by rounding to f32.
pub(crate) const ROUNDING: f64 = 1e-5;

/// Returns the fields with different contents, in order. A field that differs as a whole is listed without
/// its inner fields. Numbers may differ by [`ROUNDING`]. Optional tensors count as equal to any other
/// presence, because a load detects them.
pub(crate) fn differences<T: Debug>(first: &T, second: &T) -> Vec<Difference> {
    let (first, second) = (leaves(first), leaves(second));
    let (paths, other_paths) = (paths(&first), paths(&second));
    let mut found = Vec::new();
    let (mut i, mut j) = (0, 0);
    loop {
        let field = match (first.get(i), second.get(j)) {
            (None, None) => return found,
            (Some(a), Some(b)) if a.path == b.path => {
                if is_same(&a.text, &b.text) {
                    (i, j) = (i + 1, j + 1);
                    continue;
                }
                &a.path
            }
            // If lists differ in length, the field belongs to the longer one.
            (Some(a), Some(_)) if !other_paths.contains(a.path.as_str()) => &a.path,
            (Some(_), Some(b)) if !paths.contains(b.path.as_str()) => &b.path,
            (Some(leaf), _) | (None, Some(leaf)) => &leaf.path,
        };
        let behind = |leaves: &[Leaf], at: usize| {
            let within = leaves[at..].iter().take_while(|leaf| is_within(leaf, field));
            at + within.count()
        };
        found.push(Difference {
            field: field.clone(),
            first: told(&first, field),
            second: told(&second, field),
        });
        (i, j) = (behind(&first, i), behind(&second, j));
    }
}

fn paths(leaves: &[Leaf]) -> HashSet<&str> {
    leaves.iter().map(|leaf| leaf.path.as_str()).collect()
}

/// Returns whether a leaf is a field, or within it.
fn is_within(leaf: &Leaf, field: &str) -> bool {
    let rest = leaf.path.strip_prefix(field);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// A line of `Debug` output.
struct Leaf {
    path: String,
    text: String,
}

/// An open bracket.
struct Frame {
    path_len: usize,
    /// Number of entries so far, in a list.
    n_entries: Option<usize>,
}

fn leaves(value: &impl Debug) -> Vec<Leaf> {
    let mut leaves = Vec::new();
    let (mut path, mut frames) = (String::new(), Vec::<Frame>::new());
    for line in format!("{value:#?}").lines() {
        let line = line.trim_start().trim_end_matches(',');
        if matches!(line, "}" | "]" | ")") {
            if let Some(frame) = frames.pop() {
                path.truncate(frame.path_len);
            }
            continue;
        }
        let path_len = path.len();
        let mut text = line;
        if let Some(n_entries) = frames.last_mut().and_then(|frame| frame.n_entries.as_mut()) {
            path.extend(["[", &n_entries.to_string(), "]"]);
            *n_entries += 1;
        } else if let Some((name, rest)) = line.split_once(": ").filter(|(name, _)| is_name(name)) {
            if !path.is_empty() {
                path.push('.');
            }
            path += name;
            text = rest;
        }
        leaves.push(Leaf {
            path: path.clone(),
            text: text.to_owned(),
        });
        if text.ends_with(['{', '[', '(']) {
            frames.push(Frame {
                path_len,
                n_entries: text.ends_with('[').then_some(0),
            });
        } else {
            path.truncate(path_len);
        }
    }
    leaves
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn is_same(a: &str, b: &str) -> bool {
    let is_presence = |text: &str| matches!(text, "Absent" | "Optional" | "Required");
    if a == b || is_presence(a) && is_presence(b) {
        return true;
    }
    match (a.parse::<f64>(), b.parse::<f64>()) {
        // Counts have no point and no exponent, and must match exactly.
        (Ok(x), Ok(y)) if a.contains(['.', 'e']) => (x - y).abs() <= ROUNDING * x.abs().max(y.abs()),
        _ => false,
    }
}

/// Returns a value's contents at a path, shortened.
fn told(leaves: &[Leaf], field: &str) -> String {
    let mut words = Vec::new();
    for leaf in leaves.iter().filter(|leaf| is_within(leaf, field)) {
        if leaf.text == "Some(" {
            continue;
        }
        let text = match leaf.text.trim_end_matches(['{', '[', '(', ' ']) {
            "None" => "none",
            text => text,
        };
        let name = leaf.path.rsplit(['.', ']']).next().filter(|_| leaf.path != field);
        let of_leaf = [name.unwrap_or_default(), text].join(" ");
        words.push(of_leaf.trim().to_owned());
    }
    match &words[..] {
        [] => "nothing".to_owned(),
        few if few.len() <= 5 => few.join(", "),
        many => format!("{}, ...", many[..5].join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Net {
        scale: f32,
        layers: Vec<Layer>,
        rope: Rope,
    }

    #[derive(Clone, Debug)]
    struct Layer {
        window: Option<usize>,
        kinds: [Kind; 2],
    }

    #[derive(Clone, Copy, Debug)]
    enum Kind {
        Absent,
        Optional,
        Full,
    }

    #[derive(Debug)]
    #[expect(dead_code, reason = "read by `Debug` alone")]
    enum Rope {
        Plain,
        Yarn { factor: f32, context: usize },
    }

    fn net() -> Net {
        let layer = Layer {
            window: None,
            kinds: [Kind::Absent, Kind::Full],
        };
        Net {
            scale: 0.1,
            layers: vec![layer.clone(), layer],
            rope: Rope::Plain,
        }
    }

    #[track_caller]
    fn check(change: impl Fn(&mut Net), expected: &[[&str; 3]]) {
        let mut other = net();
        change(&mut other);
        let found = differences(&net(), &other);
        let found: Vec<[String; 3]> = (found.into_iter())
            .map(|found| [found.field, found.first, found.second])
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn differences_are_named_by_field() {
        check(|_| (), &[]);
        check(|net| net.scale *= 1.000_001, &[]);
        check(|net| net.scale = 0.2, &[["scale", "0.1", "0.2"]]);
        check(
            |net| net.layers[1].window = Some(7),
            &[["layers[1].window", "none", "7"]],
        );
        check(|net| net.layers[1].kinds[0] = Kind::Optional, &[]);
        check(
            |net| net.layers[0].kinds[1] = Kind::Absent,
            &[["layers[0].kinds[1]", "Full", "Absent"]],
        );
        check(
            |net| {
                net.rope = Rope::Yarn {
                    factor: 4.0,
                    context: 64,
                }
            },
            &[["rope", "Plain", "Yarn, factor 4.0, context 64"]],
        );
        check(
            |net| {
                net.layers[0].window = Some(7);
                net.layers[1].kinds = [Kind::Full, Kind::Absent];
                net.rope = Rope::Yarn {
                    factor: 4.0,
                    context: 64,
                };
            },
            &[
                ["layers[0].window", "none", "7"],
                ["layers[1].kinds[0]", "Absent", "Full"],
                ["layers[1].kinds[1]", "Full", "Absent"],
                ["rope", "Plain", "Yarn, factor 4.0, context 64"],
            ],
        );
        check(
            |net| net.layers.truncate(1),
            &[["layers[1]", "Layer, window none, kinds, Absent, Full", "nothing"]],
        );
    }
}
