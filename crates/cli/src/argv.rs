//! Rewrites the command line before it is parsed: two-letter flags of llama.cpp and vLLM, and `-m MODEL`.
//!
//! Separate from the commands because the parser knows one-letter short flags only. Invariant: what stands behind `--`
//! is left alone.

use std::ffi::OsString;

use crate::{failure::Failure, foreign_flags};

/// Short flags of llama.cpp and vLLM with their long names here.
const SHORT_FLAGS: [(&str, &str); 14] = [
    ("-tb", "--threads-batch"),
    ("-Cr", "--cpu-range"),
    ("-ngl", "--gpu-layers"),
    ("-cmoe", "--cpu-moe"),
    ("-ncmoe", "--n-cpu-moe"),
    ("-tp", "--tensor-parallel-size"),
    ("-np", "--parallel"),
    ("-ub", "--ubatch-size"),
    ("-ctk", "--cache-type-k"),
    ("-ctv", "--cache-type-v"),
    ("-dev", "--device"),
    ("-sys", "--system"),
    ("-md", "--draft"),
    ("-mm", "--mmproj"),
];

/// Rewrites the arguments of the program.
///
/// # Errors
/// A flag that llama.cpp has and this program has not, or `-m` without a model.
pub(crate) fn rewrite(args: impl IntoIterator<Item = OsString>) -> Result<Vec<OsString>, Failure> {
    let mut rewritten: Vec<OsString> = Vec::new();
    let mut model = None;
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        let Some(text) = arg.to_str() else {
            rewritten.push(arg);
            continue;
        };
        if text == "--" {
            rewritten.push(arg);
            rewritten.extend(args);
            break;
        }
        let (name, value) = match text.split_once('=') {
            Some((name, value)) if name.starts_with('-') => (name, Some(value)),
            _ => (text, None),
        };
        // There `--model` is the name that requests ask for.
        let names_a_request = rewritten.get(1).is_some_and(|command| command == "bench-serve");
        if (name == "-m" || name == "--model") && !names_a_request {
            model = match value {
                Some(value) => Some(value.into()),
                None => args.next(),
            };
            if model.is_none() {
                return Err(Failure::usage(format!("`{name}` needs a model")));
            }
            continue;
        }
        let short_flag = SHORT_FLAGS.iter().find(|(short, _)| *short == name);
        if short_flag.is_none()
            && let Some(refusal) = foreign_flags::refusal_of_row(name)
        {
            return Err(refusal);
        }
        match short_flag {
            Some((_, long)) => rewritten.push(match value {
                Some(value) => format!("{long}={value}").into(),
                None => long.into(),
            }),
            None => rewritten.push(arg),
        }
    }
    if let Some(model) = model {
        // The program's name and the command come first, then the model.
        rewritten.insert(rewritten.len().min(2), model);
    }
    Ok(rewritten)
}

/// The short flag that stands in `args` for `long`, the name that the parser speaks of.
pub(crate) fn typed_for(long: &str, args: &[OsString]) -> Option<&'static str> {
    let is_given = |short: &str| {
        args.iter().filter_map(|arg| arg.to_str()).any(|arg| {
            arg.strip_prefix(short)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
        })
    };
    let (short, _) = SHORT_FLAGS.iter().find(|(_, name)| *name == long)?;
    is_given(short).then_some(short)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str, expected: Result<&str, &str>) {
        let found = rewrite(line.split(' ').map(OsString::from));
        let found = found.map_err(|failure| failure.line()).map(|args| {
            let args: Vec<&str> = args.iter().map(|arg| arg.to_str().unwrap()).collect();
            args.join(" ")
        });
        assert_eq!(
            found.as_deref(),
            expected.map_err(str::to_owned).as_deref(),
            "{line}"
        );
    }

    #[test]
    fn two_letter_flags_become_long() {
        check(
            "tokenmill run x -ctk q8_0 -ub=8",
            Ok("tokenmill run x --cache-type-k q8_0 --ubatch-size=8"),
        );
        check("tokenmill run -m x hi", Ok("tokenmill run x hi"));
        check(
            "tokenmill bench-serve http://127.0.0.1:1 --model x",
            Ok("tokenmill bench-serve http://127.0.0.1:1 --model x"),
        );
        check("tokenmill run x -- -ctk -m", Ok("tokenmill run x -- -ctk -m"));
    }

    #[test]
    fn flags_without_effect_are_refused() {
        check(
            "tokenmill run x -fa on",
            Err("error: `-fa` is an option of llama.cpp that is not one here \
                 (hint: attention always works in tiles; there is nothing to switch)"),
        );
        check("tokenmill run -m", Err("error: `-m` needs a model"));
    }
}
