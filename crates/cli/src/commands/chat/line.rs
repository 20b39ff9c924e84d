//! [`Line`]: the meaning of a line typed in a chat.
//!
//! It needs no model, so tests need none. Invariant: only a line that begins with `/` is a command; an
//! unknown command is an error and is never sent to the model.

use std::path::PathBuf;

use tokenmill_server::near_names;

use crate::failure::Failure;

/// The text of `/help`.
pub(super) const HELP: &str = "\
/set NAME VALUE   change a setting (system, temp, top_k, top_p, min_p, repeat_penalty, seed, n_predict, …)
                  or a variable of the chat template (such as enable_thinking false)
/show             show the settings; /show messages, /show tools, /show template
/undo             take back what goes with the next message, or else the last exchange
/regen            answer the last message again
/drop             forget the oldest exchange, to make room in the context
/clear            forget the conversation
/file FILE        send the text of a file with the next message
/image FILE       send an image with the next message
/save FILE        write the conversation to a file, as JSON
/load FILE        continue a conversation that was saved
/stats            show what the last answer took, and how full the context is
/tool TEXT        answer a tool call of the model
/bye              leave (also Ctrl-D)
\"\"\"               begins and ends a text of several lines
Ctrl-C            stops an answer
";

/// A line of the user.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line<'a> {
    Nothing,
    /// Something for the model.
    Say {
        role: &'static str,
        text: String,
    },
    Help,
    Set {
        name: &'a str,
        value: &'a str,
    },
    Show(&'a str),
    Undo,
    Regen,
    Drop,
    Clear,
    File(PathBuf),
    Image(PathBuf),
    Save(PathBuf),
    Load(PathBuf),
    Stats,
    Bye,
}

/// The commands, for completion.
pub(super) const COMMANDS: [&str; 15] = [
    "/bye", "/clear", "/drop", "/file", "/help", "/image", "/load", "/regen", "/save", "/set", "/show",
    "/stats", "/tool", "/undo", "/quit",
];

/// The command that a line names without its slash, where the line is nothing but such a word.
pub(super) fn command_without_slash(line: &str) -> Option<&'static str> {
    match line.trim().to_lowercase().as_str() {
        "help" | "?" => Some("/help"),
        "bye" | "exit" | "quit" => Some("/bye"),
        _ => None,
    }
}

/// Reads a line.
///
/// # Errors
/// An unknown command, or one without its argument.
pub(super) fn parse(line: &str) -> Result<Line<'_>, Failure> {
    let trimmed = line.trim();
    if trimmed.is_empty() {
        return Ok(Line::Nothing);
    }
    let Some(command) = trimmed.strip_prefix('/') else {
        return Ok(Line::Say {
            role: "user",
            text: line.trim_end().to_owned(),
        });
    };
    let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
    let rest = rest.trim();
    let needs = |what: &str| Failure::usage(format!("/{name} needs {what}"));
    Ok(match name {
        "help" | "?" => Line::Help,
        "bye" | "exit" | "quit" => Line::Bye,
        "undo" => Line::Undo,
        "regen" | "regenerate" => Line::Regen,
        "drop" => Line::Drop,
        "clear" | "new" => Line::Clear,
        "stats" => Line::Stats,
        "show" => Line::Show(rest),
        "save" | "load" | "file" | "image" if rest.is_empty() => return Err(needs("a file")),
        "save" => Line::Save(PathBuf::from(rest)),
        "load" => Line::Load(PathBuf::from(rest)),
        "file" => Line::File(PathBuf::from(rest)),
        "image" => Line::Image(PathBuf::from(rest)),
        "tool" if rest.is_empty() => return Err(needs("the tool's answer")),
        "tool" => Line::Say {
            role: "tool",
            text: rest.to_owned(),
        },
        "set" if rest.is_empty() => Line::Show("settings"),
        "set" => {
            let (name, value) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
            if name.is_empty() || value.is_empty() && name != "system" {
                return Err(needs("a name and a value, such as /set temp 0.5"));
            }
            Line::Set {
                name,
                value: value.trim(),
            }
        }
        _ => {
            // The slash that all commands have does not count as likeness.
            let names = COMMANDS
                .into_iter()
                .map(|command| command.trim_start_matches('/'));
            let near = near_names(name, names);
            let failure = Failure::usage(format!("there is no command /{name}"));
            return Err(failure.hint(if near.is_empty() {
                "/help lists them".to_owned()
            } else {
                format!("near it: /{}", near.join(", /"))
            }));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_mean_what_they_say() {
        for (line, expected) in [
            ("  ", Line::Nothing),
            (
                "Hello /bye",
                Line::Say {
                    role: "user",
                    text: "Hello /bye".into(),
                },
            ),
            ("/bye", Line::Bye),
            (
                "/set temp 0.5",
                Line::Set {
                    name: "temp",
                    value: "0.5",
                },
            ),
            (
                "/set system",
                Line::Set {
                    name: "system",
                    value: "",
                },
            ),
            ("/set", Line::Show("settings")),
            ("/show  messages", Line::Show("messages")),
            ("/save a b.json", Line::Save("a b.json".into())),
        ] {
            assert_eq!(parse(line).unwrap(), expected, "{line}");
        }
    }

    #[test]
    fn unknown_commands_are_not_sent_to_the_model() {
        for line in [
            "/frobnicate",
            "/save",
            "/load",
            "/file",
            "/image",
            "/set temp",
            "/tool",
        ] {
            assert!(parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn an_unknown_command_is_told_which_one_is_near() {
        let line_of = |line: &str| parse(line).unwrap_err().line();
        assert_eq!(
            line_of("/hlep"),
            "error: there is no command /hlep (hint: near it: /help)"
        );
        for far in ["/frobnicate", "/xyz", "/foo"] {
            assert!(line_of(far).ends_with("(hint: /help lists them)"), "{far}");
        }
    }

    #[test]
    fn only_a_whole_word_is_a_command_without_its_slash() {
        for (line, expected) in [
            ("help", Some("/help")),
            (" Exit\n", Some("/bye")),
            ("quit", Some("/bye")),
            ("help me", None),
            ("Exit the loop.", None),
        ] {
            assert_eq!(command_without_slash(line), expected, "{line}");
        }
    }

    #[test]
    fn every_command_is_completed_and_in_the_help() {
        for command in COMMANDS {
            // Some need more, and say so; none is unknown.
            let known = match parse(command) {
                Ok(_) => true,
                Err(failure) => failure.line().contains(" needs "),
            };
            assert!(known, "{command}");
            assert!(
                command == "/help" || command == "/quit" || HELP.contains(command),
                "{command}"
            );
        }
    }
}
