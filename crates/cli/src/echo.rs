//! [`Unechoed`]: keeps a terminal from showing what is typed while it shows an answer.
//!
//! Separate because every way out of the program has to give the terminal back: [`restore`] is also called where nothing is dropped.
//! Invariants: a job in the background leaves the terminal alone, as the system would stop it; text typed meanwhile waits for the next line
//! that is read; a signal that ends the program gives the terminal back first.

#[cfg(unix)]
pub(crate) use unix::{Unechoed, restore};

#[cfg(unix)]
mod unix {
    use std::{
        io::{self, IsTerminal as _},
        os::fd::{AsFd, OwnedFd},
        process,
        sync::{Mutex, Once, PoisonError},
        thread,
    };

    use nix::{
        sys::termios::{LocalFlags, SetArg, Termios, tcgetattr, tcsetattr},
        unistd::{getpgrp, tcgetpgrp},
    };
    use tokio::signal::unix::{SignalKind, signal};

    /// Holds the terminal and its former settings; `None` while they are unchanged.
    static BEFORE: Mutex<Option<(OwnedFd, Termios)>> = Mutex::new(None);

    /// A terminal without echo, until it is dropped.
    #[must_use]
    #[derive(Debug)]
    pub(crate) struct Unechoed(());

    impl Unechoed {
        /// Turns off the echo of the terminal on standard output, if there is one. Where that fails, typed text is shown as ever.
        pub(crate) fn begin() -> Self {
            let stdout = io::stdout();
            if stdout.is_terminal()
                && let Ok(terminal) = stdout.as_fd().try_clone_to_owned()
            {
                return Self::begin_on(terminal);
            }
            Self(())
        }

        fn begin_on(terminal: OwnedFd) -> Self {
            let mut before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner);
            if is_in_background(&terminal) || before.is_some() {
                return Self(());
            }
            if let Ok(was) = tcgetattr(&terminal) {
                let mut quiet = was.clone();
                // Ctrl-C stays a signal.
                quiet.local_flags.remove(LocalFlags::ECHO | LocalFlags::ECHONL);
                if tcsetattr(&terminal, SetArg::TCSANOW, &quiet).is_ok() {
                    *before = Some((terminal, was));
                    restore_before_end();
                }
            }
            Self(())
        }
    }

    impl Drop for Unechoed {
        fn drop(&mut self) {
            restore();
        }
    }

    /// Has the terminal restored when SIGTERM, SIGHUP or SIGQUIT ends the program. Ctrl-C has a handler of its own, which calls [`restore`].
    fn restore_before_end() {
        static STARTED: Once = Once::new();
        STARTED.call_once(|| {
            // Without the thread these signals end the program as ever.
            let _unstarted = thread::Builder::new().name("terminal".to_owned()).spawn(|| {
                let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_io().build() else {
                    return;
                };
                if let Some(kind) = runtime.block_on(next_end()) {
                    restore();
                    process::exit(128 + kind.as_raw_value());
                }
            });
        });
    }

    /// Waits for a signal that ends the program; `None` if the system lets no program handle them.
    async fn next_end() -> Option<SignalKind> {
        let [terminate, hangup, quit] = [SignalKind::terminate(), SignalKind::hangup(), SignalKind::quit()];
        let mut terminated = signal(terminate).ok()?;
        let mut hung_up = signal(hangup).ok()?;
        let mut has_quit = signal(quit).ok()?;
        Some(tokio::select! {
            _ = terminated.recv() => terminate,
            _ = hung_up.recv() => hangup,
            _ = has_quit.recv() => quit,
        })
    }

    /// Restores the terminal's settings.
    pub(crate) fn restore() {
        let before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((terminal, was)) = before.filter(|(terminal, _)| !is_in_background(terminal)) {
            // Input that waits is not dropped.
            let _refused = tcsetattr(&terminal, SetArg::TCSANOW, &was);
        }
    }

    /// Says whether the system would stop this program for changing its terminal.
    fn is_in_background(terminal: &OwnedFd) -> bool {
        tcgetpgrp(terminal).is_ok_and(|group| group != getpgrp())
    }

    #[cfg(test)]
    mod tests {
        use std::panic::{AssertUnwindSafe, catch_unwind};

        use nix::pty::openpty;

        use super::*;

        #[test]
        fn a_panic_gives_the_terminal_back() {
            // The other end stays open.
            let pair = openpty(None, None).expect("a terminal of its own");
            let terminal = &pair.slave;
            let echoes = || {
                let modes = tcgetattr(terminal).expect("it is a terminal");
                modes.local_flags.contains(LocalFlags::ECHO)
            };
            assert!(echoes());
            let ended = catch_unwind(AssertUnwindSafe(|| {
                let _quiet = Unechoed::begin_on(terminal.try_clone().expect("a descriptor"));
                assert!(!echoes());
                panic!("as an answer may");
            }));
            assert!(ended.is_err());
            assert!(echoes());
        }
    }
}

/// Does nothing: consoles of Windows show what is typed only while a line is read.
#[cfg(not(unix))]
#[must_use]
#[derive(Debug)]
pub(crate) struct Unechoed(());

#[cfg(not(unix))]
impl Unechoed {
    /// Does nothing.
    pub(crate) fn begin() -> Self {
        Self(())
    }
}

/// Does nothing.
#[cfg(not(unix))]
pub(crate) fn restore() {}
