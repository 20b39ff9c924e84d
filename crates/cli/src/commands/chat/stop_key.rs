//! [`StopKey`]: Ctrl-Z at the prompt of a chat.
//!
//! Only UNIX has jobs. The line editor alone would send SIGTSTP and change the terminal again before the
//! program has stopped: [`crate::echo`] handles that signal on a separate thread. Invariant: while the
//! program is stopped, the terminal has the settings that it had before the chat.

use std::{
    io::{self, Write as _},
    sync::{Mutex, PoisonError},
};

use nix::{
    sys::{
        signal::kill,
        termios::{SetArg, Termios, tcgetattr, tcsetattr},
    },
    unistd::Pid,
};
use rustyline::{Cmd, ConditionalEventHandler, Event, EventContext, RepeatCount};

use crate::echo::STOP;

/// Sequences that the line editor sends to the terminal: a paste is marked, or is not.
const PASTE_MARKED: &str = "\u{1b}[?2004h";
const PASTE_PLAIN: &str = "\u{1b}[?2004l";

/// Stops the program and all of its group, and shows the line again when it continues.
pub(super) struct StopKey {
    /// The terminal's settings while no line is edited.
    before: Mutex<Termios>,
}

impl StopKey {
    /// Notes the settings of the terminal on standard input; `None` where it has none.
    pub(super) fn new() -> Option<Self> {
        let before = Mutex::new(tcgetattr(io::stdin()).ok()?);
        Some(Self { before })
    }
}

impl ConditionalEventHandler for StopKey {
    fn handle(&self, _: &Event, _: RepeatCount, _: bool, _: &EventContext<'_>) -> Option<Cmd> {
        let terminal = io::stdin();
        let before = self.before.lock().unwrap_or_else(PoisonError::into_inner);
        if let Ok(edited) = tcgetattr(&terminal)
            && tcsetattr(&terminal, SetArg::TCSADRAIN, &before).is_ok()
        {
            send(PASTE_PLAIN);
            // The signal is for this thread first, which is the main one: it is stopped here.
            let _refused = kill(Pid::from_raw(0), STOP);
            let _refused = tcsetattr(&terminal, SetArg::TCSADRAIN, &edited);
            send(PASTE_MARKED);
        }
        Some(Cmd::Repaint)
    }
}

/// Sends a sequence to the terminal. Where it cannot be reached, nothing is marked.
fn send(sequence: &str) {
    let mut stdout = io::stdout();
    let _unsent = (stdout.write_all(sequence.as_bytes())).and_then(|()| stdout.flush());
}
