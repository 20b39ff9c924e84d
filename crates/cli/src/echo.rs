//! [`Unechoed`]: hides typed text on a terminal while a model loads or an answer is shown.
//!
//! Every way out of the program must restore the terminal: [`restore_at_end`] is called where nothing is
//! dropped. Invariants: a job in the background leaves the terminal alone, since the system would stop it;
//! text typed meanwhile waits for the next line that is read; a signal that ends or stops the program
//! restores the terminal first, and one that continues it hides typed text again. The shell never gets a text
//! that was typed for a chat.

#[cfg(unix)]
pub(crate) use unix::{STOP, Typed, Unechoed, restore_at_end};

#[cfg(unix)]
mod unix {
    use std::{
        io::{self, IsTerminal as _},
        os::fd::{AsFd, OwnedFd},
        process,
        sync::{Mutex, MutexGuard, Once, PoisonError},
        thread,
    };

    use nix::{
        sys::{
            signal::{Signal, raise},
            termios::{FlushArg, LocalFlags, SetArg, Termios, tcflush, tcgetattr, tcsetattr},
        },
        unistd::{getpgrp, tcgetpgrp},
    };
    use tokio::signal::unix::{SignalKind, signal};

    /// Holds the terminal with its former settings; `None` while they are unchanged.
    static HELD: Mutex<Option<Held>> = Mutex::new(None);

    /// A terminal whose settings are changed.
    struct Held {
        terminal: OwnedFd,
        /// The former settings.
        was: Termios,
        typed: Typed,
    }

    /// Handles text that is typed meanwhile.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) enum Typed {
        /// It stays a line of the terminal, which drops it at Ctrl-C.
        Dropped,
        /// The program reads it next, key by key, also after Ctrl-C.
        Kept,
    }

    /// Stops this program in place of SIGTSTP, which has a handler here. The system's own action for it leaves a program running that no
    /// shell could continue; SIGSTOP would stop that, too.
    pub(crate) const STOP: Signal = Signal::SIGTTIN;

    /// A terminal without echo, until it is dropped.
    #[must_use]
    #[derive(Debug)]
    pub(crate) struct Unechoed(());

    impl Unechoed {
        /// Turns off the echo of the terminal on standard output, if there is one. Where that fails, typed text is shown as ever.
        pub(crate) fn begin(typed: Typed) -> Self {
            let stdout = io::stdout();
            if stdout.is_terminal()
                && let Ok(terminal) = stdout.as_fd().try_clone_to_owned()
            {
                return Self::begin_on(terminal, typed);
            }
            Self(())
        }

        fn begin_on(terminal: OwnedFd, typed: Typed) -> Self {
            let mut held = held();
            if is_in_background(&terminal) || held.is_some() {
                return Self(());
            }
            if let Ok(was) = tcgetattr(&terminal) {
                let new = Held { terminal, was, typed };
                if new.quieten().is_ok() {
                    *held = Some(new);
                    follow_signals();
                }
            }
            Self(())
        }
    }

    impl Drop for Unechoed {
        fn drop(&mut self) {
            // Input that waits is for the next line of this program.
            if let Some(held) = take() {
                held.give_back();
            }
        }
    }

    fn held() -> MutexGuard<'static, Option<Held>> {
        HELD.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the terminal to give it back, unless that would stop this program.
    fn take() -> Option<Held> {
        let held = held().take();
        held.filter(|held| !is_in_background(&held.terminal))
    }

    impl Held {
        /// Turns off the echo.
        fn quieten(&self) -> nix::Result<()> {
            let mut quiet = self.was.clone();
            // Ctrl-C and Ctrl-Z stay signals.
            quiet.local_flags.remove(LocalFlags::ECHO | LocalFlags::ECHONL);
            if self.typed == Typed::Kept {
                // The line editor gets each key: the terminal would erase bytes, not characters, and has no end of input for Ctrl-D.
                quiet.local_flags.remove(LocalFlags::ICANON);
                quiet.local_flags.insert(LocalFlags::NOFLSH);
            }
            tcsetattr(&self.terminal, SetArg::TCSANOW, &quiet)
        }

        /// Restores the former settings; input that waits stays.
        fn give_back(&self) {
            let _refused = tcsetattr(&self.terminal, SetArg::TCSANOW, &self.was);
        }

        /// Drops text that was typed for this program: the shell that reads next would take it for a command.
        fn drop_typed(&self) {
            if self.typed == Typed::Kept {
                let _refused = tcflush(&self.terminal, FlushArg::TCIFLUSH);
            }
        }
    }

    /// Has the terminal restored when SIGTERM, SIGHUP or SIGQUIT ends the program, and while SIGTSTP stops it. Ctrl-C has a handler of its
    /// own, which calls [`restore_at_end`].
    fn follow_signals() {
        static STARTED: Once = Once::new();
        STARTED.call_once(|| {
            // Without the thread these signals end the program as ever.
            let _unstarted = thread::Builder::new().name("terminal".to_owned()).spawn(|| {
                let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_io().build() else {
                    return;
                };
                if let Some(kind) = runtime.block_on(next_end()) {
                    restore_at_end();
                    process::exit(128 + kind.as_raw_value());
                }
            });
        });
    }

    /// Stops and continues the program until a signal ends it; `None` if the system lets no program handle these signals.
    async fn next_end() -> Option<SignalKind> {
        let of = |kind: Signal| signal(SignalKind::from_raw(kind as i32)).ok();
        let mut stopped = of(Signal::SIGTSTP)?;
        let mut continued = of(Signal::SIGCONT)?;
        let [terminate, hangup, quit] = [SignalKind::terminate(), SignalKind::hangup(), SignalKind::quit()];
        let mut terminated = signal(terminate).ok()?;
        let mut hung_up = signal(hangup).ok()?;
        let mut has_quit = signal(quit).ok()?;
        loop {
            tokio::select! {
                _ = stopped.recv() => stop(),
                _ = continued.recv() => resume(),
                _ = terminated.recv() => return Some(terminate),
                _ = hung_up.recv() => return Some(hangup),
                _ = has_quit.recv() => return Some(quit),
            }
        }
    }

    /// Stops the program, as Ctrl-Z asked, with the terminal as it was before the answer.
    fn stop() {
        if let Some(held) = &*held()
            && !is_in_background(&held.terminal)
        {
            held.drop_typed();
            held.give_back();
        }
        let _refused = raise(STOP);
        resume();
    }

    /// Turns the echo off again where the program continues in the foreground of its terminal.
    fn resume() {
        if let Some(held) = &*held()
            && !is_in_background(&held.terminal)
        {
            let _refused = held.quieten();
        }
    }

    /// Restores the terminal's settings where the program ends.
    pub(crate) fn restore_at_end() {
        if let Some(held) = take() {
            held.drop_typed();
            held.give_back();
        }
    }

    /// Says whether the system would stop this program for changing its terminal.
    fn is_in_background(terminal: &OwnedFd) -> bool {
        tcgetpgrp(terminal).is_ok_and(|group| group != getpgrp())
    }

    #[cfg(test)]
    mod tests {
        use std::{
            fs::File,
            io::Write as _,
            panic::{AssertUnwindSafe, catch_unwind},
        };

        use nix::{
            poll::{PollFd, PollFlags, PollTimeout, poll},
            pty::openpty,
        };

        use super::*;

        /// Tests take turns, since a program holds one terminal.
        fn turn() -> MutexGuard<'static, ()> {
            static TURN: Mutex<()> = Mutex::new(());
            TURN.lock().unwrap_or_else(PoisonError::into_inner)
        }

        #[test]
        fn an_end_drops_text_that_was_typed_for_this_program() {
            let _turn = turn();
            let pair = openpty(None, None).expect("a terminal of its own");
            let terminal = &pair.slave;
            let has_text = |timeout: PollTimeout| {
                let mut polled = [PollFd::new(terminal.as_fd(), PollFlags::POLLIN)];
                poll(&mut polled, timeout).expect("it can be asked") > 0
            };
            let quiet = Unechoed::begin_on(terminal.try_clone().expect("a descriptor"), Typed::Kept);
            let mut keys = File::from(pair.master);
            keys.write_all(b"exit").expect("the terminal is there");
            assert!(
                has_text(PollTimeout::from(60_000_u16)),
                "keys come without a line's end"
            );
            restore_at_end();
            drop(quiet);
            assert!(!has_text(PollTimeout::ZERO));
        }

        #[test]
        fn a_panic_gives_the_terminal_back() {
            let _turn = turn();
            // The other end stays open.
            let pair = openpty(None, None).expect("a terminal of its own");
            let terminal = &pair.slave;
            let echoes = || {
                let modes = tcgetattr(terminal).expect("it is a terminal");
                modes.local_flags.contains(LocalFlags::ECHO)
            };
            assert!(echoes());
            let ended = catch_unwind(AssertUnwindSafe(|| {
                let _quiet = Unechoed::begin_on(terminal.try_clone().expect("a descriptor"), Typed::Kept);
                assert!(!echoes());
                panic!("as an answer may");
            }));
            assert!(ended.is_err());
            assert!(echoes());
        }
    }
}

/// Does nothing: consoles of Windows show typed text only while a line is read.
#[cfg(not(unix))]
#[must_use]
#[derive(Debug)]
pub(crate) struct Unechoed(());

#[cfg(not(unix))]
impl Unechoed {
    /// Does nothing.
    pub(crate) fn begin(_: Typed) -> Self {
        Self(())
    }
}

/// Handles text that is typed meanwhile; nothing is dropped here.
#[cfg(not(unix))]
#[derive(Clone, Copy, Debug)]
pub(crate) enum Typed {
    Dropped,
    Kept,
}

/// Does nothing.
#[cfg(not(unix))]
pub(crate) fn restore_at_end() {}
