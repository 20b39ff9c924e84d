//! [`Completion`]: the choices of the Tab key in a chat: commands, settings, files.

use rustyline::{
    Context, Helper,
    completion::{Completer, FilenameCompleter, Pair},
    highlight::Highlighter,
    hint::Hinter,
    validate::Validator,
};

use super::line::COMMANDS;

/// The names that `/set` takes, except the variables of a template.
pub(super) const SETTINGS: [&str; 10] = [
    "system",
    "temp",
    "top_k",
    "top_p",
    "min_p",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "n_predict",
];
/// The names that `/show` takes.
const SHOWN: [&str; 4] = ["settings", "messages", "tools", "template"];

/// Completes the word before the cursor.
pub(super) struct Completion {
    files: FilenameCompleter,
}

impl Completion {
    pub(super) fn new() -> Self {
        Self {
            files: FilenameCompleter::new(),
        }
    }
}

/// The words that complete `line`, and where the completed word begins; `None` where a file is meant.
fn words(line: &str) -> Option<(usize, Vec<&'static str>)> {
    let Some((command, rest)) = line.split_once(' ') else {
        return Some((0, beginning_with(&COMMANDS, line)));
    };
    let start = line.len() - rest.len();
    match command {
        "/save" | "/load" | "/file" | "/image" => None,
        // A value is free, and so are the words of a message.
        _ if rest.contains(' ') => Some((start, Vec::new())),
        "/set" => Some((start, beginning_with(&SETTINGS, rest))),
        "/show" => Some((start, beginning_with(&SHOWN, rest))),
        _ => Some((start, Vec::new())),
    }
}

fn beginning_with(words: &[&'static str], start: &str) -> Vec<&'static str> {
    let is_meant = |word: &&str| !start.is_empty() && word.starts_with(start);
    let all_fit = start.is_empty() && words != COMMANDS;
    (words.iter().copied())
        .filter(|word| all_fit || is_meant(word))
        .collect()
}

impl Completer for Completion {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        position: usize,
        context: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        match words(&line[..position]) {
            None => self.files.complete(line, position, context),
            Some((start, words)) => {
                let pair = |word: &str| Pair {
                    display: word.to_owned(),
                    replacement: format!("{word} "),
                };
                Ok((start, words.into_iter().map(pair).collect()))
            }
        }
    }
}

impl Hinter for Completion {
    type Hint = String;
}

impl Highlighter for Completion {}
impl Validator for Completion {}
impl Helper for Completion {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_settings_are_completed_and_messages_are_not() {
        assert_eq!(words("/re"), Some((0, vec!["/regen"])));
        assert_eq!(words("/set top"), Some((5, vec!["top_k", "top_p"])));
        assert_eq!(words("/show "), Some((6, SHOWN.to_vec())));
        assert_eq!(words("/load a"), None);
        for line in ["", "Hello", "What is /set", "/set temp 0", "/bye x"] {
            assert!(words(line).is_some_and(|(_, words)| words.is_empty()), "{line}");
        }
    }
}
