//! [`JitLogs`]: the messages of the driver's compiler about a module.
//!
//! The driver takes addresses and sizes in an array of untyped options. Invariant: the texts are read only after the call, and up to
//! the first zero byte.

use std::ptr;

use super::api::Pointer;

/// Bytes of each log; the driver truncates longer ones.
const LOG_BYTES: usize = 16 << 10;
/// Largest number of bytes of a reason made from a log.
const MAX_REASON_BYTES: usize = 600;

/// Options of `cuModuleLoadDataEx`, as the driver's header (`cuda.h`, `CUjit_option`) numbers them.
const INFO_LOG_BUFFER: i32 = 3;
const INFO_LOG_BUFFER_SIZE_BYTES: i32 = 4;
const ERROR_LOG_BUFFER: i32 = 5;
const ERROR_LOG_BUFFER_SIZE_BYTES: i32 = 6;
const LOG_VERBOSE: i32 = 12;
/// Number of options.
const N_OPTIONS: usize = 5;

/// Memory for the two logs of a load.
#[derive(Debug)]
pub(super) struct JitLogs {
    info: Vec<u8>,
    errors: Vec<u8>,
}

impl JitLogs {
    pub(super) fn new() -> Self {
        Self {
            info: vec![0; LOG_BYTES],
            errors: vec![0; LOG_BYTES],
        }
    }

    /// Returns the options and their values: an address, or a number in its place.
    pub(super) fn options(&mut self) -> ([i32; N_OPTIONS], [Pointer; N_OPTIONS]) {
        // The driver never writes the last byte, which stays zero.
        let number = |n: usize| ptr::without_provenance_mut(n);
        (
            [
                INFO_LOG_BUFFER,
                INFO_LOG_BUFFER_SIZE_BYTES,
                ERROR_LOG_BUFFER,
                ERROR_LOG_BUFFER_SIZE_BYTES,
                LOG_VERBOSE,
            ],
            [
                self.info.as_mut_ptr().cast(),
                number(LOG_BYTES - 1),
                self.errors.as_mut_ptr().cast(),
                number(LOG_BYTES - 1),
                number(1),
            ],
        )
    }

    /// Returns the compiler's log: registers, memory, warnings.
    pub(super) fn info(&self) -> String {
        text(&self.info).trim().to_owned()
    }

    /// Returns the reason of a failure, in one line.
    pub(super) fn errors(&self) -> String {
        let lines = text(&self.errors);
        let mut line = (lines.lines())
            .map(str::trim)
            .filter(|line| !line.is_empty())
            .collect::<Vec<_>>()
            .join("; ");
        line.truncate(line.floor_char_boundary(MAX_REASON_BYTES));
        line
    }
}

fn text(log: &[u8]) -> String {
    let end = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
    String::from_utf8_lossy(&log[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_one_line_of_bounded_length() {
        let mut logs = JitLogs::new();
        assert_eq!((logs.errors(), logs.info()), (String::new(), String::new()));
        let said = b"ptxas fatal : Ptx assembly aborted\n\n  line 3; syntax error\n";
        logs.errors[..said.len()].copy_from_slice(said);
        assert_eq!(
            logs.errors(),
            "ptxas fatal : Ptx assembly aborted; line 3; syntax error"
        );
        logs.errors.fill(0xc3);
        assert!(logs.errors().len() <= MAX_REASON_BYTES);
    }
}
