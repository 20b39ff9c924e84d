//! Commands of other programs that this one lacks, each with its replacement.
//!
//! The table is consulted only for unknown commands.

use std::path::Path;

use tokenmill::hub::SourceName;

use crate::{failure::Failure, missing_model::HOW_TO_FETCH};

/// Names of a command, and the replacement.
type Row = (&'static [&'static str], &'static str);

const COMMANDS: &[Row] = &[
    (&["download", "fetch", "get"], HOW_TO_FETCH),
    (
        &["models"],
        "`tokenmill list` shows the models that were downloaded",
    ),
    (&["info"], "`tokenmill inspect MODEL` describes a model"),
    (
        &["remove", "delete", "cp", "mv"],
        "`tokenmill rm NAME` removes a downloaded model; other models are plain files",
    ),
    (
        &["ps", "stop", "status"],
        "no server runs in the background; `tokenmill serve MODEL` runs until Ctrl-C and shows its work on its web page",
    ),
    (
        &["create", "push"],
        "`tokenmill convert` makes a GGUF file of a Hugging Face folder, `tokenmill quantize` a smaller one",
    ),
    (
        &["generate", "complete", "cli"],
        "`tokenmill run MODEL PROMPT` answers, `tokenmill chat MODEL` converses",
    ),
    (
        &["search", "find", "browse"],
        "https://huggingface.co/models?library=gguf finds models by name; `tokenmill pull OWNER/REPOSITORY` downloads one",
    ),
    (
        &["update", "upgrade"],
        "`cargo install --locked --path crates/cli` in a newer source folder replaces the program",
    ),
    (&["server", "start"], "`tokenmill serve MODEL` answers over HTTP"),
    (&["version"], "`tokenmill --version`"),
];

/// Whether a model was named where a command is expected.
fn is_model(word: &str) -> bool {
    let path = Path::new(word);
    let is_name = word.parse::<SourceName>().is_ok();
    word == "demo"
        || is_name
        || path.exists()
        || path.extension().is_some_and(|extension| extension == "gguf")
}

/// Returns the answer to a command that does not exist; `None` if the parser's own answer, which may name a
/// similar command, is as good.
pub(crate) fn refusal(command: &str, has_suggestion: bool) -> Option<Failure> {
    let row = COMMANDS.iter().find(|(names, _)| names.contains(&command));
    let hint = match row {
        Some((_, instead)) => (*instead).to_owned(),
        None if is_model(command) => format!(
            "a command comes before the model: `tokenmill chat {command}` converses, `tokenmill run {command} PROMPT` \
             answers"
        ),
        None if has_suggestion => return None,
        None => "`tokenmill --help` lists the commands; the model follows, as in `tokenmill chat model.gguf`"
            .to_owned(),
    };
    Some(Failure::usage(format!("there is no command `{command}`")).hint(hint))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_command_stands_once() {
        let mut seen = HashSet::new();
        for name in COMMANDS.iter().flat_map(|(names, _)| *names) {
            assert!(seen.insert(name), "{name} stands twice");
        }
    }

    #[test]
    fn a_similar_command_is_left_to_the_parser() {
        assert!(refusal("chta", true).is_none());
        assert!(refusal("demo", true).is_some());
        assert!(refusal("xyz", false).is_some());
    }
}
