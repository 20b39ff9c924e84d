//! [`Program::verify`]: the check after each pass.

use super::{Op, Program, Stamped, Value};

/// A program that no device may run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("operation {op_idx} of the program ({op}): {reason}")]
pub struct ProgramError {
    /// Its index.
    pub op_idx: usize,
    /// The operation, printed.
    pub op: String,
    /// Why it cannot be.
    pub reason: String,
}

impl Program {
    /// Checks every operation: its operands exist, are written before, once, and have the right shapes; only the last operation
    /// ends the step.
    ///
    /// # Errors
    /// The first operation that is wrong.
    pub fn verify(&self) -> Result<(), ProgramError> {
        if self.ops.is_empty() {
            return Err(ProgramError {
                op_idx: 0,
                op: "none".to_owned(),
                reason: "nothing ends the step".to_owned(),
            });
        }
        let mut is_written = vec![false; self.values.len()];
        for op_idx in 0..self.ops.len() {
            self.check_op(op_idx, &mut is_written)
                .map_err(|reason| ProgramError {
                    op_idx,
                    op: self.line(op_idx),
                    reason,
                })?;
        }
        Ok(())
    }

    fn check_op(&self, op_idx: usize, is_written: &mut [bool]) -> Result<(), String> {
        let Stamped { op, .. } = &self.ops[op_idx];
        let known = |is_written: &[bool], value: Value| is_written.get(value.index()).copied();
        for value in op.reads() {
            match known(is_written, value) {
                Some(true) => {}
                Some(false) => return Err(format!("{value} is read before it is written")),
                None => return Err(format!("{value} is not a value of the program")),
            }
        }
        let shapes = self.shapes_of(op)?;
        let results: Vec<Value> = op.results().collect();
        for (value, shape) in results.iter().zip(&shapes) {
            match known(is_written, *value) {
                Some(false) => is_written[value.index()] = true,
                Some(true) => return Err(format!("{value} is written twice")),
                None => return Err(format!("{value} is not a value of the program")),
            }
            let found = self.values[value.index()];
            if found != *shape {
                return Err(format!("{value} is {found}, expected {shape}"));
            }
        }
        let is_last = op_idx + 1 == self.ops.len();
        match op {
            Op::Sample { .. } if !is_last => Err("it ends a step, and others follow".to_owned()),
            Op::Sample { .. } => Ok(()),
            _ if is_last => Err("the last operation does not end the step".to_owned()),
            _ => Ok(()),
        }
    }
}
