//! [`LineReader`]: where a chat's lines come from, a person with history or a pipe.

use std::{
    env, fs,
    io::{self, BufRead, IsTerminal},
    path::PathBuf,
};

use rustyline::{CompletionType, Config, Editor, error::ReadlineError, history::DefaultHistory};
#[cfg(unix)]
use rustyline::{EventHandler, KeyEvent};

use super::completion::Completion;
#[cfg(unix)]
use super::stop_key::StopKey;
use crate::failure::Failure;

/// Begins and ends a text of several lines.
const QUOTES: &str = "\"\"\"";

/// Lines of a person or of a pipe.
pub(super) enum LineReader {
    Editor {
        editor: Box<Editor<Completion, DefaultHistory>>,
        history: Option<PathBuf>,
    },
    Pipe(io::Lines<io::StdinLock<'static>>),
}

/// The result of reading.
pub(super) enum Read {
    /// A line.
    Text(String),
    /// A text in quotes.
    Quoted(String),
    /// Ctrl-C at the prompt: the line is dropped.
    Cancelled,
    /// Ctrl-D, or the end of the pipe.
    End,
}

impl LineReader {
    /// Opens standard input.
    pub(super) fn open() -> Result<Self, Failure> {
        if !io::stdin().is_terminal() {
            return Ok(Self::Pipe(io::stdin().lock().lines()));
        }
        let config = Config::builder().completion_type(CompletionType::List).build();
        let mut editor = Editor::with_config(config).map_err(|error| terminal_failure(&error))?;
        editor.set_helper(Some(Completion::new()));
        #[cfg(unix)]
        if let Some(stop) = StopKey::new() {
            editor.bind_sequence(KeyEvent::ctrl('Z'), EventHandler::Conditional(Box::new(stop)));
        }
        let history = history_path();
        if let Some(path) = &history {
            // The first chat has no history yet.
            let _absent = editor.load_history(path);
        }
        Ok(Self::Editor {
            editor: Box::new(editor),
            history,
        })
    }

    /// Whether a person types.
    pub(super) fn is_terminal(&self) -> bool {
        matches!(self, Self::Editor { .. })
    }

    /// Reads a line, or a text between quotes.
    pub(super) fn read(&mut self) -> Result<Read, Failure> {
        let first = match self.read_line(">>> ")? {
            Read::Text(line) => line,
            other => return Ok(other),
        };
        let Some(opened) = first.trim_start().strip_prefix(QUOTES) else {
            return Ok(Read::Text(first));
        };
        let mut text = opened.to_owned();
        // Quotes alone in their line begin the text in the next, which may be empty.
        let mut begins_next = opened.is_empty();
        while !text.trim_end().ends_with(QUOTES) {
            match self.read_line("... ")? {
                Read::Text(line) | Read::Quoted(line) => {
                    if !begins_next {
                        text.push('\n');
                    }
                    begins_next = false;
                    text.push_str(&line);
                }
                Read::Cancelled => return Ok(Read::Cancelled),
                Read::End => return Ok(Read::Quoted(text)),
            }
        }
        let end = text.trim_end().len() - QUOTES.len();
        text.truncate(end);
        Ok(Read::Quoted(text))
    }

    fn read_line(&mut self, prompt: &str) -> Result<Read, Failure> {
        match self {
            Self::Editor { editor, history } => match editor.readline(prompt) {
                Ok(line) => {
                    let is_new = editor.add_history_entry(line.as_str()).unwrap_or(false);
                    if let (true, Some(path)) = (is_new, history) {
                        // A history that cannot be stored is not a reason to end the chat.
                        let _unsaved = editor.save_history(path);
                    }
                    Ok(Read::Text(line))
                }
                Err(ReadlineError::Interrupted) => Ok(Read::Cancelled),
                Err(ReadlineError::Eof) => Ok(Read::End),
                Err(error) => Err(terminal_failure(&error)),
            },
            Self::Pipe(lines) => match lines.next() {
                Some(Ok(line)) => Ok(Read::Text(line)),
                Some(Err(error)) => Err(Failure::input(format!("cannot read standard input: {error}"))
                    .hint("it must be UTF-8 text")),
                None => Ok(Read::End),
            },
        }
    }
}

fn terminal_failure(error: &ReadlineError) -> Failure {
    Failure::work(format!("cannot read from the terminal: {error}"))
}

/// Where the history is kept: the state folder of the XDG base directories.
fn history_path() -> Option<PathBuf> {
    let state = match env::var_os("XDG_STATE_HOME").filter(|path| !path.is_empty()) {
        Some(path) => PathBuf::from(path),
        None => PathBuf::from(env::var_os("HOME")?).join(".local/state"),
    };
    let folder = state.join("tokenmill");
    fs::create_dir_all(&folder).ok()?;
    Some(folder.join("chat-history"))
}
